"""Figures as people read them: rates, bytes, durations and event times in a few characters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from math import ceil

from holdfast.connect.base import Position
from holdfast.connect.time_range import END_OF_TIME
from holdfast.graph.durations import TimeUnit, ticks
from holdfast.plurals import counted
from holdfast.spans import duration

__all__ = ["amount", "duration", "moment", "quantile", "size", "source_place", "wall_time"]

_DAY = 86_400
_EPOCH_IS_PLAUSIBLE = 10 * 365 * _DAY  # an event time this far from zero counts from 1970
_LAST_YEAR = 250_000_000_000  # seconds: the end of the year 9892, behind it datetime gives up


def amount(value: float) -> str:
    """A count with at most three digits before the unit: 950, 12.3 k, 200 M."""
    return _scaled(value, 1000.0, ("", " k", " M", " G", " T"))


def size(value: float) -> str:
    """A number of bytes: 512 B, 1.5 MB."""
    return _scaled(value, 1000.0, (" B", " kB", " MB", " GB", " TB"))


def _scaled(value: float, step: float, units: Sequence[str]) -> str:
    place = 0
    while abs(value) >= step * 0.9995 and place < len(units) - 1:
        value /= step
        place += 1
    unit = units[place]
    if place == 0 and value == int(value):
        return f"{int(value)}{unit}"
    return f"{value:.0f}{unit}" if abs(value) >= 100 else f"{value:.1f}{unit}"


def moment(value: int | None, unit: TimeUnit | None) -> str:
    """An event time: as a date where it looks like one, else as a span since zero."""
    if value is None or unit is None:
        return "-"
    if value >= END_OF_TIME:
        return "end of input"
    seconds = value / ticks("1s", unit)
    if _EPOCH_IS_PLAUSIBLE <= seconds < _LAST_YEAR:
        text = datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="milliseconds")
        return text.removesuffix("+00:00").removesuffix(".000")
    return f"{seconds:,.3f} s".replace(".000 s", " s")


def wall_time(seconds: float) -> str:
    """A time of the wall clock, local."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")


def quantile(values: Sequence[float], share: float) -> float | None:
    """The least of the values that at least `share` of them do not exceed, or None of none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def source_place(position: Position) -> str:
    """Where a source stands, in a few words; of files only how many they are, however long the source has run."""
    if "recent" not in position:
        return f"at {json.dumps(position)}"
    count = position.get("count", 0) or len(position["recent"] or ())
    last = f", the last one {position['last']}" if position["last"] else ""
    begun = f"; {position['file']['name']} is read up to {position['at']:,}" if position["file"] else ""
    left_out = f"; {counted(len(position['skipped']), 'file')} skipped" if position.get("skipped") else ""
    return f"{counted(count, 'file')} taken{last}{begun}{left_out}"
