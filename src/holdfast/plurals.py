"""Counts in sentences for people: "1 epoch", "2 epochs", "25,000 rows"."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["counted", "ranges"]

_MOST_RUNS = 6


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the singular or in the plural."""
    ending = "" if number == 1 else "es" if noun.endswith("tch") else "s"
    return f"{number:,} {noun}{ending}"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in order as the runs that they form: "1 to 4, 7, 9 to 12"; of many runs the first and the last ones."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    named = [" to ".join(map(str, run)) for run in runs]
    if len(named) > _MOST_RUNS:
        named = [*named[:2], "…", *named[2 - _MOST_RUNS :]]
    return ", ".join(named)
