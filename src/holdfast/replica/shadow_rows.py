"""The rows in which a shadow differs from what was committed: the epoch is run again with the old code, in this
process, and what only one of the two has emitted is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import polars as pl
from msgspec import structs

from holdfast.engine.epoch_rerun import running_again
from holdfast.epoch.digest import value_text
from holdfast.errors import HoldfastError
from holdfast.graph.pipeline import Pipeline
from holdfast.hidden_columns import visible
from holdfast.replica.shadow_report import ShadowReport

__all__ = ["only_in", "with_rows"]

_MOST_ROWS = 20
_MOST_TEXT = 300


def with_rows(
    report: ShadowReport, shadow: pl.DataFrame | None, old: Pipeline, store: Path, meta: str | None
) -> ShadowReport:
    """The report with the rows that differ in the first sink that does, or with why they cannot be had. `shadow` are
    the rows of the new code."""
    sink = next(iter(report.differences), "")
    if report.state != "differs" or shadow is None or report.epoch is None:
        return report
    fragment = None if report.fragment == old.name else report.fragment
    try:
        with running_again(old, store, meta, fragment=fragment) as runner:
            ran = runner.compared(report.epoch)
            if ran.differences:
                return structs.replace(report, problem="the old code does not reproduce what was committed")
            committed = ran.output[sink]
    except (HoldfastError, OSError, KeyError) as error:
        return structs.replace(report, problem=f"no rows to show: {error}")
    theirs, own = only_in(committed.select(visible(committed.columns)), shadow)
    return structs.replace(report, only_committed=theirs, only_shadow=own)


def only_in(committed: pl.DataFrame, shadow: pl.DataFrame) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The first rows, as text, that only one side has; a row counts as often as it is there."""
    one, other = _counted(committed), _counted(shadow)
    return _first(one - other), _first(other - one)


def _counted(rows: pl.DataFrame) -> Counter[str]:
    return Counter(_row_text(row) for row in rows.iter_rows(named=True))


def _row_text(row: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value_text(value)}" for name, value in row.items())[:_MOST_TEXT]


def _first(rows: Counter[str]) -> tuple[str, ...]:
    found: list[str] = []
    for row, times in sorted(rows.items()):
        found += [row] * times
        if len(found) >= _MOST_ROWS:
            break
    return tuple(found[:_MOST_ROWS])
