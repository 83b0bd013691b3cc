"""What the log of a Delta table says about the values of a file, so that readers can leave it out: from its footer."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

__all__ = ["modified_ms", "statistics_of"]

_LONGEST_TEXT = 256
_STATISTICS_COLUMNS = 32


def statistics_of(path: Path, rows: int) -> str:
    """In the words of the log, as JSON."""
    footer = pq.read_metadata(path)
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number in range(min(footer.num_columns, _STATISTICS_COLUMNS)):
        column = footer.schema.column(number)
        name = column.path
        if "." in name or column.max_repetition_level:
            continue  # of nested columns it has none
        groups = [footer.row_group(group).column(number).statistics for group in range(footer.num_row_groups)]
        if not groups or any(group is None for group in groups):
            continue
        if all(group.has_null_count for group in groups):
            nulls[name] = sum(group.null_count for group in groups)
        known = [group for group in groups if group.has_min_max]
        if len(known) == len(groups):
            low, high = (_shown(pick(known)) for pick in (_least, _greatest))
            if low is not None and high is not None:
                least[name], greatest[name] = low, high
    return json.dumps({"numRecords": rows, "minValues": least, "maxValues": greatest, "nullCount": nulls})


def _least(groups: Sequence[Any]) -> Any:
    return min(group.min for group in groups)


def _greatest(groups: Sequence[Any]) -> Any:
    return max(group.max for group in groups)


def _shown(value: Any) -> Any:
    """A value in the words of the log; None if it has none for it."""
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.isoformat(timespec="microseconds")
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else None
    if isinstance(value, Decimal):
        # A number that is rounded would be a wrong bound.
        return float(value) if Decimal(repr(float(value))) == value else None
    return value if isinstance(value, int | float) else None


def modified_ms(path: Path) -> int:
    """When a file was written, as the log has it."""
    return os.stat(path).st_mtime_ns // 1_000_000
