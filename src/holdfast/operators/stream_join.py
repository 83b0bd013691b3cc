"""Windowed join of two streams: rows wait in pane tables and are joined when their window closes."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from holdfast.graph.nodes import StreamJoin
from holdfast.hidden_columns import BOUND, FROM, PANE, POSITION, ROW_SEQ, ROW_TIME, WINDOW
from holdfast.operators.contract import StateTable
from holdfast.operators.lift import from_expr
from holdfast.operators.pane_footprints import FOOTPRINTS, Current, PaneTrace, index_loaded, names_of, read_windows
from holdfast.operators.panes import PaneOperator, expired_panes, window_range
from holdfast.operators.sliding import WindowShape
from holdfast.operators.step import StepContext, StepInput, StepResult, effective_bound
from holdfast.state.manifest import Interval, Manifest
from holdfast.state.pipeline_shape import StateMeaning
from holdfast.state.tables import PaneTable, Writer
from holdfast.store import DirectoryStore

__all__ = ["StreamJoins"]

_SIDES = ("left", "right")
_BOUNDS = ("window_start", "window_end")


class StreamJoins(PaneOperator[StreamJoin]):
    declared_as = StreamJoin

    def tables(self, inputs: Sequence[pl.Schema]) -> tuple[StateTable, ...]:
        hidden: dict[str, pl.DataType] = {name: pl.Int64() for name in (*ROW_SEQ, PANE, FROM)}
        return tuple(
            StateTable(side, False, pl.Schema({**columns, **hidden}), (*ROW_SEQ, PANE))
            for side, columns in zip(_SIDES, inputs, strict=True)
        )

    def meaning(self, inputs: Sequence[pl.Schema]) -> StateMeaning:
        sides = tuple({name: str(dtype) for name, dtype in columns.items()} for columns in inputs)
        return StateMeaning(window=str(self.node.window), state=sides)

    def pane_table(self, table: str, store: DirectoryStore) -> PaneTable:
        """The rows that wait on one side."""
        return PaneTable(table, store)

    def load(self, inputs: Sequence[pl.Schema], rows: pl.DataFrame, interval: Interval, writer: Writer) -> Manifest:
        names = names_of(self.node)
        manifest = Manifest(interval)
        for table in self.tables(inputs):
            waiting = rows.filter(pl.col(table.name).is_not_null()).select(*names, table.name).unnest(table.name)
            waiting = waiting.select(POSITION, *table.schema.names())
            manifest = self.pane_table(table.name, writer.store).append(manifest, writer, waiting, None)
        return index_loaded(self.node, rows, manifest, writer)

    def explain(self) -> list[str]:
        node = self.node
        return [f"{node.how} join on {', '.join(node.keys)} in {node.window}; rows wait in state until it closes"]

    def step(self, arrivals: StepInput, context: StepContext, manifest: Manifest) -> StepResult:
        node, shape, store = self.node, self.shape, context.writer.store
        tables = [self.pane_table(side, store) for side in _SIDES]
        new: list[pl.DataFrame] = []
        late_rows = 0
        for port in range(2):
            rows, late = _arrived(arrivals, port, shape)
            new.append(rows)
            late_rows += late
        traced = PaneTrace(context.trace, node, store) if context.trace is not None else None
        if traced is not None:
            new = traced.unseen(manifest, new)
        output = pl.DataFrame(schema=node.schema)
        expired = None
        if context.watermark_after is not None:
            first, last = _range(manifest, new, shape, context)
            if first <= last:
                low, high = first * shape.step, last * shape.step + shape.length - 1
                sides = [
                    _in_windows(
                        pl.concat([*table.read(manifest, low, high), rows.filter(pl.col(PANE).is_between(low, high))]),
                        shape, first, last,
                    )
                    for table, rows in zip(tables, new, strict=True)
                ]  # fmt: skip
                output = _join(node, shape, sides[0], sides[1])
            expired = expired_panes(shape, context.watermark_after)
        for table, rows in zip(tables, new, strict=True):
            manifest = table.append(manifest, context.writer, rows, expired)
        if traced is not None:
            records = _records(node, new, [rows.schema for rows in new])
            manifest = traced.leave(manifest, context.writer, records, _current(node, tables, new), expired)
        else:
            manifest = manifest.with_table(FOOTPRINTS, ())
        return StepResult(manifest, output, None, late_rows)


def _records(node: StreamJoin, sides: Sequence[pl.DataFrame], schemas: Sequence[pl.Schema]) -> pl.DataFrame:
    """Each waiting row as a record of its window: one column per side, of which one is filled."""
    names = names_of(node)
    payloads = [
        pl.Struct({column: dtype for column, dtype in schema.items() if column not in names}) for schema in schemas
    ]
    frames = []
    for number, rows in enumerate(sides):
        waiting = pl.struct(pl.exclude(names)).alias(_SIDES[number])
        other = pl.lit(None, payloads[1 - number]).alias(_SIDES[1 - number])
        frames.append(rows.select(*names, waiting, other).select(*names, *_SIDES))
    return pl.concat(frames)


def _current(node: StreamJoin, tables: Sequence[PaneTable], new: Sequence[pl.DataFrame]) -> Current:
    def current(manifest: Manifest, names: pl.DataFrame | None) -> pl.DataFrame | None:
        found = [read_windows(table, manifest, names, names_of(node)) for table in tables]
        sides = [side if side is not None else rows.head(0) for side, rows in zip(found, new, strict=True)]
        columns = [side.select(rows.columns) for side, rows in zip(sides, new, strict=True)]
        return _records(node, columns, [rows.schema for rows in new])

    return current


def _arrived(arrivals: StepInput, port: int, shape: WindowShape) -> tuple[pl.DataFrame, int]:
    """The rows of one side with pane and first window, without those that are too late for any."""
    time = pl.col(ROW_TIME)
    frames = [
        batch.frame.with_columns(effective_bound(batch).alias(BOUND), time.floordiv(shape.pane).alias(PANE))
        for batch in arrivals.batches(port)
    ]
    rows = pl.concat(frames).with_columns(
        pl.when(pl.col(BOUND) > time).then(from_expr(shape, pl.col(BOUND))).alias(FROM)
    )
    rows = rows.drop(BOUND, ROW_TIME)
    late = pl.col(FROM).is_not_null() & (pl.col(PANE).floordiv(shape.step) < pl.col(FROM))
    kept = rows.filter(~late)
    return kept, rows.height - kept.height


def _range(manifest: Manifest, new: list[pl.DataFrame], shape: WindowShape, context: StepContext) -> tuple[int, int]:
    ranges = [window_range(manifest, side, rows, shape, context) for side, rows in zip(_SIDES, new, strict=True)]
    spans = [(first, last) for first, last in ranges if first <= last]
    if not spans:
        return 0, -1
    return min(first for first, _ in spans), max(last for _, last in spans)


def _in_windows(rows: pl.DataFrame, shape: WindowShape, first: int, last: int) -> pl.DataFrame:
    """One row per closing window the row belongs to; for tumbling windows that is the row itself."""
    low = pl.max_horizontal(
        (pl.col(PANE) - shape.length).floordiv(shape.step) + 1, pl.col(FROM), pl.lit(first, pl.Int64)
    )
    high = pl.min_horizontal(pl.col(PANE).floordiv(shape.step), pl.lit(last, pl.Int64))
    spread = rows.with_columns(pl.int_ranges(low, high + 1).alias(WINDOW)).filter(pl.col(WINDOW).list.len() > 0)
    return spread.explode(WINDOW).drop(POSITION, PANE, FROM)


def _join(node: StreamJoin, shape: WindowShape, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    keys = list(node.keys)
    dropped = [bound for bound in _BOUNDS if bound not in keys]
    joined = left.drop(dropped, strict=False).join(
        right.drop(dropped, strict=False), on=[*keys, WINDOW], how=node.how, suffix=node.suffix, coalesce=True,
        nulls_equal=False,
    )  # fmt: skip
    start = pl.col(WINDOW) * shape.slide
    bounds = {"window_start": start, "window_end": start + shape.size}
    added = [bounds[name].cast(node.schema[name]).alias(name) for name in _BOUNDS if name not in keys]
    return joined.with_columns(added).select(node.schema.names()).sort(node.schema.names()[0])
