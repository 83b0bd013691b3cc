"""Counts in sentences for people: "1 epoch", "2 epochs", "25,000 rows"."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the singular or with a plural s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
