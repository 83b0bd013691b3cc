"""What a program does with state: read it as a Polars or a Spark DataFrame, and compare two epochs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, overload

import polars as pl

from holdfast.connect.spark_types import for_spark
from holdfast.errors import WrongTypeError
from holdfast.hidden_columns import hidden_name
from holdfast.meta import opened_meta
from holdfast.state.inspection import Keys, OperatorState, not_retained, open_operator, shown_state
from holdfast.state.key_matches import join_on_keys
from holdfast.state.layout import TABLE, TableLayout
from holdfast.state.past_moment import Moment
from holdfast.store.location import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["state", "state_diff"]

_ROW, _REST, _TIMES = hidden_name("row"), hidden_name("rest"), hidden_name("times")
_BEFORE, _AFTER = hidden_name("before"), hidden_name("after")


@overload
def state(
    store: Path | str, pipeline: str, operator: str, *, epoch: int | None = None, at: Moment | None = None,
    key: Keys | None = None,    spark: None = None, meta: str | None = None,
) -> pl.DataFrame: ...  # fmt: skip


@overload
def state(
    store: Path | str, pipeline: str, operator: str, *, epoch: int | None = None, at: Moment | None = None,
    key: Keys | None = None,    spark: SparkSession, meta: str | None = None,
) -> DataFrame: ...  # fmt: skip


def state(
    store: Path | str,
    pipeline: str,
    operator: str,
    *,
    epoch: int | None = None,
    at: Moment | None = None,
    key: Keys | None = None,
    spark: SparkSession | None = None,
    meta: str | None = None,
) -> pl.DataFrame | DataFrame:
    """The state of an operator after a retained epoch, by default the last; a Spark DataFrame if a session is given.

    `epoch` is its number. `at` is a moment ("1 h ago", a datetime or its text, a timedelta before now): the last
    retained epoch that was committed by then. `retain` of a run says how long epochs are retained.

    `key` is a dict of the key columns, a list of such, or a Polars DataFrame: then only the state of those keys is
    read, by looking their positions up. Columns that the state has beside those of the operator have plain names:
    `table` where the operator keeps several tables, `pane` for the partial results of windows. The pipeline may be
    running meanwhile. `meta` is the URL of the meta store, where that is not in the store.
    """
    _, rows = shown_state(local_path(store, "store"), pipeline, operator, epoch, at, key=key, meta=meta)
    return rows if spark is None else _to_spark(rows, spark, operator)


def state_diff(
    store: Path | str, pipeline: str, operator: str, before: int, after: int, *, meta: str | None = None
) -> pl.DataFrame:
    """What changed in the state of an operator from one retained epoch to another.

    `change` is `added`, `removed` or `changed`. Then come the key columns (with `pane` for state by pane), and each
    other column twice, as `x_before` and `x_after`. State by pane may hold several rows of a key and pane, partial
    results that are not merged yet; those are compared as they are, so that merging them is a change.
    """
    store = local_path(store, "store")
    with opened_meta(store, meta) as opened:
        old = open_operator(opened, store, pipeline, operator, before)
        new = open_operator(opened, store, pipeline, operator, after)
    for opened_state in (old, new):
        if opened_state.is_gone():
            raise not_retained(opened_state)
    frames = [_table_diff(old, new, table) for table in new.layout.tables]
    return pl.concat(frames, how="diagonal_relaxed") if frames else pl.DataFrame(schema={"change": pl.String})


def _table_diff(old: OperatorState, new: OperatorState, table: TableLayout) -> pl.DataFrame:
    layout = new.layout
    shown = layout.shown(table)
    identity = [name for name in table.identity if name in shown]
    values = [name for name in table.schema if name in shown and name not in identity]
    left, right = (found.table(table).select(*identity, *values) for found in (old, new))
    left, right = _only_in(left, right, values), _only_in(right, left, values)
    # Rows that are left over on both sides under one identity have changed, one into the other.
    left, right = (_numbered(rows, identity, _ROW) for rows in (left, right))
    joined = left.with_columns(pl.lit(True).alias(_BEFORE)).join(
        right.with_columns(pl.lit(True).alias(_AFTER)), on=[*identity, _ROW], how="full", coalesce=True,
        nulls_equal=True, suffix=_AFTER, maintain_order="left_right",
    )  # fmt: skip
    both = pl.col(_BEFORE).is_not_null() & pl.col(_AFTER).is_not_null()
    change = pl.when(both).then(pl.lit("changed")).when(pl.col(_BEFORE)).then(pl.lit("removed")).otherwise(
        pl.lit("added")
    )  # fmt: skip
    columns = [pl.lit(table.name).alias(TABLE)] if layout.several else []
    columns += [pl.col(name).alias(shown[name]) for name in identity]
    for name in values:
        columns += [pl.col(name).alias(f"{shown[name]}_before")]
        columns += [pl.col(f"{name}{_AFTER}").alias(f"{shown[name]}_after")]
    return joined.select(change.alias("change"), *columns)


def _only_in(rows: pl.DataFrame, other: pl.DataFrame, values: list[str]) -> pl.DataFrame:
    """The rows that `other` does not have, or has fewer times."""
    every = [name for name in rows.columns if name not in values]
    mine, theirs = (
        _numbered(frame.with_columns(_comparable(frame, values)), [*every, _REST], _TIMES) for frame in (rows, other)
    )
    found = join_on_keys(
        mine.with_row_index(_ROW), theirs.select(*every, _REST, _TIMES), [*every, _REST, _TIMES], "inner"
    )
    return rows[mine.with_row_index(_ROW).join(found.select(_ROW), on=_ROW, how="anti")[_ROW]]


def _comparable(frame: pl.DataFrame, values: list[str]) -> pl.Series:
    """The values of each row as one text: equal texts, equal values, whatever their types."""
    if not values:
        return pl.Series(_REST, [""] * frame.height, dtype=pl.String)
    return pl.Series(_REST, [repr(row) for row in frame.select(values).iter_rows()], dtype=pl.String)


def _numbered(rows: pl.DataFrame, within: list[str], name: str) -> pl.DataFrame:
    """Rows with their number among those that are alike in `within`."""
    if not within:
        return rows.with_row_index(name)
    return rows.with_columns(pl.int_range(pl.len()).over(within).alias(name))


def _to_spark(rows: pl.DataFrame, spark: SparkSession, operator: str) -> DataFrame:
    """The same rows in Spark."""
    try:
        return spark.createDataFrame(for_spark(rows).to_arrow(compat_level=pl.CompatLevel.oldest()))
    except Exception as error:
        raise WrongTypeError(
            f"its state has a column that Spark cannot hold: {str(error).splitlines()[0]}",
            cure="read it as a Polars DataFrame, cast that column, and pass the frame to Spark",
            operator=operator,
        ) from error
