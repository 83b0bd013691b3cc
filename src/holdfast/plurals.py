"""Counts in sentences for people: "1 epoch", "2 epochs", "25,000 rows"."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the singular or in the plural."""
    ending = "" if number == 1 else "es" if noun.endswith("tch") else "s"
    return f"{number:,} {noun}{ending}"
