"""Join of two streams within an interval of event time: rows wait in tables by their times, and are joined when the
watermark has passed the later of both.

A pair has a time, the later of its two rows'. It counts for both rows if it does not lie behind the watermark that each
found; a row that no pair can count for is late. A row without a partner is emitted when no pair can come any more. So
each result has one moment at which it comes, which follows from the rows alone, and comes once.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from holdfast.connect.time_range import END_OF_TIME
from holdfast.graph.joined_streams import JOINED_TIME
from holdfast.graph.nodes import IntervalJoin
from holdfast.hidden_columns import BOUND, NUMBER, PANE, POSITION, ROW_TIME, WINDOW, hidden_name
from holdfast.operators.contract import Operator, StateTable
from holdfast.operators.state_merge import PaneMerge
from holdfast.operators.step import Batch, Grain, StepContext, StepInput, StepResult, effective_bound
from holdfast.state.manifest import Manifest
from holdfast.state.pipeline_shape import StateMeaning
from holdfast.state.tables import PaneTable
from holdfast.store import DirectoryStore

__all__ = ["IntervalJoins"]

_SIDES = ("left", "right")
_BOUNDS = ("window_start", "window_end")
_HIDDEN = (POSITION, PANE, BOUND)


class IntervalJoins(Operator[IntervalJoin]):
    declared_as = IntervalJoin
    numbered = False
    forgets = True
    no_footprints = "its rows wait by their times, and not in windows"

    def grain(self, behind: Grain | None) -> Grain:
        return Grain(1)

    def tables(self, inputs: Sequence[pl.Schema]) -> tuple[StateTable, ...]:
        hidden: dict[str, pl.DataType] = {PANE: pl.Int64(), BOUND: pl.Int64()}
        return tuple(
            StateTable(side, False, pl.Schema({**columns, **hidden}), (PANE,))
            for side, columns in zip(_SIDES, inputs, strict=True)
        )

    def meaning(self, inputs: Sequence[pl.Schema]) -> StateMeaning:
        sides = tuple({name: str(dtype) for name, dtype in columns.items()} for columns in inputs)
        return StateMeaning(window=f"from {self.node.low} to {self.node.high}", state=sides)

    def merged_table(self, table: str, stored: pl.Schema, watermark: int | None, store: DirectoryStore) -> PaneMerge:
        return PaneMerge(PaneTable(table, store), None if watermark is None else self._expired(watermark))

    def wrong_until(self, wrong: int, watermark: int) -> int | None:
        if wrong > self._expired(watermark):
            return None
        return wrong + self.node.added_time

    def explain(self) -> list[str]:
        node = self.node
        return [
            f"{node.how} join on {', '.join(node.keys)} of rows from {node.low} to {node.high} ticks apart",
            f"rows wait as state for {node.added_time} ticks behind the watermark",
        ]

    def _expired(self, watermark: int) -> int:
        """The last time whose rows are not needed: neither for a pair, nor to tell that another one has a partner."""
        return watermark - self.node.added_time - 1

    def step(self, arrivals: StepInput, context: StepContext, manifest: Manifest) -> StepResult:
        node = self.node
        tables = [PaneTable(side, context.writer.store) for side in _SIDES]
        waits = (node.left_wait, node.right_wait)
        new, late = zip(*(_arrived(arrivals.batches(port), wait) for port, wait in enumerate(waits)), strict=True)
        output = pl.DataFrame(schema=node.schema)
        expired = None
        before, after = context.watermark_before, context.watermark_after
        if after is not None:
            first = -END_OF_TIME if before is None else before
            low = max(first - node.added_time, -END_OF_TIME)
            sides = [
                pl.concat([*table.read(manifest, low, after - 1), rows.filter(pl.col(PANE) < after)])
                for table, rows in zip(tables, new, strict=True)
            ]
            output = _results(node, sides[0], sides[1], first, after)
            expired = self._expired(after)
        for table, rows in zip(tables, new, strict=True):
            manifest = table.append(manifest, context.writer, rows, expired)
        gone = sum(rows.height for rows in late)
        behind = _alone(node, late[0], late[1], (pl.col(PANE), pl.col(PANE))) if gone else None
        return StepResult(manifest, output, behind, gone)


def _arrived(batches: Sequence[Batch], wait: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows that wait for partners, and those for which there can be none any more. Of the watermarks before them,
    those are kept that lie after the row."""
    rows = pl.concat([batch.frame.with_columns(effective_bound(batch).alias(BOUND)) for batch in batches])
    rows = rows.rename({ROW_TIME: PANE}).with_columns(pl.when(pl.col(BOUND) > pl.col(PANE)).then(BOUND).alias(BOUND))
    columns = [name for name in rows.columns if name not in _HIDDEN]
    rows = rows.select(POSITION, *columns, PANE, BOUND)
    late = pl.col(BOUND).is_not_null() & (pl.col(PANE) + wait < pl.col(BOUND))
    return rows.filter(~late), rows.filter(late)


def _results(node: IntervalJoin, left: pl.DataFrame, right: pl.DataFrame, first: int, after: int) -> pl.DataFrame:
    """What has its time from `first` on and before `after`."""
    left, right = left.with_row_index(NUMBER), right.with_row_index(NUMBER)
    now = pl.col(PANE) >= first
    # The later row of a pair has a time of now: the left one, whatever the right one has, or else the right one.
    pairs = pl.concat([_pairs(node, left.filter(now), right), _pairs(node, left.filter(~now), right.filter(now))])
    found = [_shown(node, pairs, left, right)]
    waits = {"left": node.left_wait, "right": node.right_wait}
    lonely = []
    for side, rows, shown in (
        ("left", left, node.how in ("left", "full")),
        ("right", right, node.how in ("right", "full")),
    ):
        due = (pl.col(PANE) + waits[side]).is_between(first, after - 1)
        decided = rows.filter(due) if shown else rows.clear()
        others = right if side == "left" else left
        matches = _pairs(node, decided, others) if side == "left" else _pairs(node, others, decided)
        met = matches.select(pl.col(side).alias(NUMBER)).unique()
        lonely.append(decided.join(met, on=NUMBER, how="anti"))
    times = (pl.col(PANE) + node.left_wait, pl.col(PANE) + node.right_wait)
    found.append(_alone(node, lonely[0], lonely[1], times))
    return pl.concat(found).sort(JOINED_TIME, *node.keys, maintain_order=True)


def _pairs(node: IntervalJoin, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    """The numbers of rows (`left`, `right`) that go together, and the time of each pair.

    Rows are joined by stretches of time as long as the interval, of which it touches two: so a key with very many rows
    costs no more than three times what it gives.
    """
    width = node.high - node.low + 1
    keys = list(node.keys)
    stretch = pl.col(PANE).floordiv(width)
    earliest = (pl.col(PANE) + node.low).floordiv(width)
    ours = left.select(
        pl.col(NUMBER).alias("left"), *_as_keys(keys), pl.col(PANE).alias("time"), pl.col(BOUND).alias("bound"),
        pl.concat_list(earliest, earliest + 1).alias(WINDOW),
    ).explode(WINDOW)  # fmt: skip
    theirs = right.select(
        pl.col(NUMBER).alias("right"), *_as_keys(keys), pl.col(PANE).alias("other time"),
        pl.col(BOUND).alias("other bound"), stretch.alias(WINDOW),
    )  # fmt: skip
    joined = ours.join(theirs, on=[*(hidden_name(f"key{n}") for n in range(len(keys))), WINDOW], how="inner")
    apart = pl.col("other time") - pl.col("time")
    at = pl.max_horizontal("time", "other time")
    counts = (at >= pl.col("bound").fill_null(at)) & (at >= pl.col("other bound").fill_null(at))
    pairs = joined.filter(apart.is_between(node.low, node.high) & counts)
    return pairs.select("left", "right", at.alias(JOINED_TIME))


def _as_keys(keys: list[str]) -> list[pl.Expr]:
    """Key columns under names that no column of a user has."""
    return [pl.col(key).alias(hidden_name(f"key{number}")) for number, key in enumerate(keys)]


def _shown(node: IntervalJoin, pairs: pl.DataFrame, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    """The columns of both rows of each pair."""
    ours, theirs = _columns(node, left, right)
    one = left[pairs["left"]].select(pl.col(name).alias(shown) for name, shown in ours.items())
    two = right[pairs["right"]].select(pl.col(name).alias(shown) for name, shown in theirs.items())
    made = pl.concat([one, two, pairs.select(JOINED_TIME)], how="horizontal")
    return _as_declared(node, made)


def _alone(node: IntervalJoin, left: pl.DataFrame, right: pl.DataFrame, times: tuple[pl.Expr, pl.Expr]) -> pl.DataFrame:
    """Rows of either side by themselves, with nulls for the other. Keys are there of both sides."""
    ours, theirs = _columns(node, left, right)
    theirs = {**{key: key for key in node.keys}, **theirs}
    made = []
    for rows, names, time in ((left, ours, times[0]), (right, theirs, times[1])):
        shown = rows.select(*(pl.col(name).alias(shown) for name, shown in names.items()), time.alias(JOINED_TIME))
        nothing = [pl.lit(None, dtype).alias(name) for name, dtype in node.schema.items() if name not in shown.columns]
        made.append(_as_declared(node, shown.with_columns(nothing)))
    return pl.concat(made)


def _columns(node: IntervalJoin, left: pl.DataFrame, right: pl.DataFrame) -> tuple[dict[str, str], dict[str, str]]:
    """Under which name each column of both sides is shown."""
    kept = [
        [name for name in side.columns if name not in (*_HIDDEN, NUMBER) and (name not in _BOUNDS or name in node.keys)]
        for side in (left, right)
    ]
    ours = {name: name for name in kept[0]}
    theirs = {name: name + node.suffix if name in ours else name for name in kept[1] if name not in node.keys}
    return ours, theirs


def _as_declared(node: IntervalJoin, rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(pl.col(JOINED_TIME).cast(node.schema[JOINED_TIME])).select(node.schema.names())
