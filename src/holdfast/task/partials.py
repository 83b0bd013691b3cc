"""Partials of windows: a task lifts its rows and combines them per pane before they leave, so that millions of rows
become thousands."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from holdfast.graph.durations import EventTime
from holdfast.graph.nodes import WindowAggregate
from holdfast.graph.stateless.stateless_operator import Stateless
from holdfast.hidden_columns import BOUND, FROM, PANE, ROW_TIME, ROWS
from holdfast.operators.dense_lift import dense_partials, is_dense
from holdfast.operators.lift import combine_partials, from_expr, lift_partials, mark_late
from holdfast.operators.panes import pane_shape
from holdfast.plan.chain import Chain
from holdfast.plan.program import Edge, Program
from holdfast.task.allowed_times import check_times
from holdfast.task.origin import FEW_ROWS, Origin

__all__ = ["Partials"]

_RECOMBINE_ROWS = 500_000
_ROWS_PER_PANE_SLICE = 100_000


@dataclass(slots=True)
class Partials:
    """What gathers in a task, by edge and source. `number` adds the order of arrival to rows."""

    program: Program
    number: Callable[[pl.LazyFrame, Origin, int, tuple[str, ...]], pl.LazyFrame]
    late_rows: Counter[str]
    _gathered: dict[tuple[int, int], list[pl.DataFrame]] = field(default_factory=dict)
    _keep_join_below: dict[int, bool] = field(default_factory=dict)
    _not_dense: set[int] = field(default_factory=set)

    def add(self, edge: Edge, source: int, frame: pl.DataFrame) -> None:
        """Rows that are partials already."""
        self._gathered.setdefault((edge.number, source), []).append(frame)

    def finish(self) -> Iterator[tuple[Edge, int, WindowAggregate, pl.DataFrame]]:
        """What has gathered, combined."""
        for (number, source), gathered in self._gathered.items():
            edge = [*self.program.edges, *self.program.lifts][number]
            node = self.program.window_of(edge)
            filled = [frame for frame in gathered if frame.height]
            if filled:
                yield edge, source, node, self._combined(node, filled)
        self._gathered.clear()

    def lift(
        self,
        edge: Edge,
        chain: Chain,
        frames: dict[str, pl.LazyFrame],
        origin: Origin,
        source: int,
        time_kept: bool,
    ) -> None:
        node = self.program.window_of(edge)
        shape = pane_shape(node)
        late_join = edge.before_join if self._keep_join_below.get(edge.number, True) else None
        entry = edge.input if late_join is None else self.program.nodes[late_join].inputs[0]
        gathered = self._gathered.setdefault((edge.number, source), [])
        rows = frames[entry]
        # Of rows without times some may be bounded, and those of a window are then not all in its panes.
        in_panes = origin.times is not None or BOUND not in origin.frame.columns
        countable = time_kept and in_panes and late_join is None
        if countable and origin.frame.height <= FEW_ROWS and self._count(edge, node, rows, origin, gathered) is None:
            return
        # Panes as slices of ordered rows: then the pane is a constant and need not be grouped by.
        if time_kept and origin.times is not None and origin.frame.height:
            times = origin.times
            first = (times[0] + origin.shift) // shape.pane
            last = (times[-1] + origin.shift) // shape.pane
            if (last - first + 1) * _ROWS_PER_PANE_SLICE <= origin.frame.height or first == last:
                edges = np.arange(first + 1, last + 1) * shape.pane - origin.shift
                cuts = [0, *np.searchsorted(times.to_numpy(), edges, side="left").tolist(), len(times)]
                for pane, (start, stop) in enumerate(itertools.pairwise(cuts), start=first):
                    if start < stop:
                        cut = rows
                        if first != last:
                            cut = chain.frames([entry], {origin.name: origin.lazy(start, stop)})[entry]
                        gathered.append(self._partials_of(edge, node, cut, origin, source, late_join, pane=pane))
                self._shrink(node, gathered)
                return
        if countable:
            left = self._count(edge, node, rows, origin, gathered)
            if left is None:
                return
            rows = left
        before = origin.frame.height
        made = self._partials_of(edge, node, rows, origin, source, late_join, pane=None)
        if late_join is not None and made.height * 4 > before:
            self._keep_join_below[edge.number] = False
        made, dropped = mark_late(made, shape, None)
        if dropped:
            self.late_rows[edge.consumer] += dropped
        gathered.append(made)
        self._shrink(node, gathered)

    def _count(
        self,
        edge: Edge,
        node: WindowAggregate,
        rows: pl.LazyFrame,
        origin: Origin,
        gathered: list[pl.DataFrame],
    ) -> pl.LazyFrame | None:
        """Lift rows by counting; where that is not possible, the rows to be lifted otherwise."""
        if edge.number in self._not_dense or not is_dense(node, self._input_schema(edge)):
            return rows
        if edge.input == origin.name and not origin.shift:
            collected = origin.frame[list(edge.columns)]
        else:
            collected = origin.collect(rows.select(edge.columns))
        counted = dense_partials(collected, node, self._time_of(edge), pane_shape(node))
        if counted is None:
            self._not_dense.add(edge.number)
            return collected.lazy()
        gathered.append(counted)
        self._shrink(node, gathered)
        return None

    def _input_schema(self, edge: Edge) -> pl.Schema:
        return self.program.nodes[edge.input].schema

    def _time_of(self, edge: Edge) -> EventTime:
        time = self.program.nodes[edge.input].time
        assert time is not None
        return time

    def _partials_of(
        self,
        edge: Edge,
        node: WindowAggregate,
        rows: pl.LazyFrame,
        origin: Origin,
        source: int,
        late_join: str | None,
        pane: int | None,
    ) -> pl.DataFrame:
        """Lift one batch of rows. With a `pane`, all rows are known to be in it."""
        shape = pane_shape(node)
        time = self._time_of(edge)
        bounded = BOUND in rows.collect_schema()
        keys = list(node.keys)
        join = None
        if late_join is not None:
            found = self.program.nodes[late_join]
            assert isinstance(found, Stateless)
            join = found.key_join
            assert join is not None
            keys = list(dict.fromkeys([*join.on, *(key for key in node.keys if key not in join.added)]))
        if any(aggregate.ordered for aggregate in node.aggregates):
            rows = self.number(rows.with_columns(time.expr().alias(ROW_TIME)), origin, source, edge.columns)
        if pane is not None and not bounded:
            prepare = [expr for aggregate in node.aggregates for expr in aggregate.prepare]
            lift = [expr for aggregate in node.aggregates for expr in aggregate.lift]
            lift.append(pl.len().cast(pl.Int64).alias(ROWS))
            rows = rows.with_columns(prepare) if prepare else rows
            lifted = rows.group_by(keys).agg(lift) if keys else rows.select(lift).filter(pl.col(ROWS) > 0)
            partials = lifted.with_columns(pl.lit(pane, pl.Int64).alias(PANE), pl.lit(None, pl.Int64).alias(FROM))
        else:
            rows = rows.with_columns(time.expr().floordiv(shape.pane).alias(PANE))
            if bounded:
                rows = rows.with_columns(from_expr(shape, pl.col(BOUND)).alias(FROM))
            partials = lift_partials(rows, node, keys, bounded)
        if join is not None:
            partials = combine_partials(join.apply(partials), node, [*node.keys, PANE, FROM], rows=True)
        made = origin.collect(partials.select(*node.keys, PANE, FROM, *node.state_schema, ROWS))
        check_times(made[PANE], edge, shape.pane)
        return made

    def _shrink(self, node: WindowAggregate, gathered: list[pl.DataFrame]) -> None:
        """Combine what has gathered once it is large, so that a task's memory follows its groups, not its rows."""
        if len(gathered) > 1 and sum(frame.height for frame in gathered) > _RECOMBINE_ROWS:
            merged = self._combined(node, gathered)
            gathered.clear()
            gathered.append(merged)

    def _combined(self, node: WindowAggregate, gathered: list[pl.DataFrame]) -> pl.DataFrame:
        if len(gathered) == 1:
            return gathered[0]
        groups = [*node.keys, PANE, FROM]
        merged = combine_partials(pl.concat(gathered).lazy(), node, groups, rows=True).collect()
        return merged.select(gathered[0].columns)
