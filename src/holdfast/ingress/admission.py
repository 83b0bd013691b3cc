"""Which rows of clients may come in, by their event times.

This is decided once, by the receiver's clock, before a row is acknowledged. Rows that may not come in are treated as
those that do not fit the schema: all of a batch is refused, or they are skipped.
"""

from __future__ import annotations

from itertools import accumulate

import polars as pl

from holdfast.connect.formats.file_format import BadRow, Rows
from holdfast.connect.formats.lines import LineParser
from holdfast.connect.sources.received import ReceivedSource
from holdfast.connect.time_range import BadTimes
from holdfast.errors import SchemaMismatchError

__all__ = ["NEVER_SKIPPED", "admit_frame", "admit_lines"]

NEVER_SKIPPED = "correct it, or declare push(..., bad_rows='skip') to accept the rows that fit"


def admit_lines(rows: Rows, block: bytes, parser: LineParser, source: ReceivedSource) -> Rows:
    """The rows of a block of lines, with those whose times are not allowed among the bad ones."""
    if source.times is None:
        return rows
    frame, outside = source.times.split(rows.frame, source.clock())
    if outside is None:
        return rows
    lines = block.split(b"\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    bad = {row.at for row in rows.bad}
    fitting = [
        number
        for number, line in enumerate(lines)
        if starts[number] not in bad and starts[number] < len(block) and not parser.is_blank(line + b"\n")
    ]
    found = [
        BadRow(starts[fitting[at]], reason, lines[fitting[at]].rstrip(b"\r").decode(errors="replace"))
        for at, reason in zip(outside.at, outside.reasons(), strict=True)
    ]
    return Rows(frame, tuple(sorted([*rows.bad, *found], key=lambda row: row.at)))


def admit_frame(frame: pl.DataFrame, source: ReceivedSource, place: str = "") -> tuple[pl.DataFrame, BadTimes | None]:
    """The rows that may come in, and those that are skipped. `place` says where the rows are among others."""
    if source.times is None:
        return frame, None
    admitted, outside = source.times.split(frame, source.clock())
    if outside is not None and source.bad_rows == "fail":
        where = f"{place}, row {outside.at[0] + 1}" if place else f"row {outside.at[0] + 1}"
        raise SchemaMismatchError(f"{where}: {outside.reasons(1)[0]}", cure=NEVER_SKIPPED, place=where)
    return admitted, outside
