"""Why a row was emitted: `hf.why` runs retained epochs again until one gives the row, and follows its key back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from holdfast.engine.epoch_rerun import EpochRunner, RanEpoch, running_again
from holdfast.engine.row_origin import RowOrigin
from holdfast.engine.row_trace import Wanted, found_rows, origins_of, read_again
from holdfast.epoch.record import EpochRecord
from holdfast.errors import DeclarationError, UnknownStateError, WrongTypeError
from holdfast.graph.nodes import Node, SideOutput, SinkNode, SourceNode, Stateful
from holdfast.graph.pipeline import Pipeline, check_pipeline
from holdfast.hidden_columns import PANE
from holdfast.operators.registry import operator_of
from holdfast.plurals import counted, ranges
from holdfast.pstream.link import StreamSink
from holdfast.state.position import supports_key
from holdfast.task.origin import Origin

__all__ = ["Condition", "why"]

Condition = str | pl.Expr | Mapping[str, Any]
_PLACED = ["epoch", "operator", "slice", "row", "place"]
_UNTOLD = ("size", "mtime_ns", "ctime_ns", "checksum")
_BOUNDS = ("window_start", "window_end")
_SLICES = {"epoch": pl.Int64, "source": pl.String, "slice": pl.Int64, "rows": pl.Int64, "where": pl.String}


def why(
    pipeline: Pipeline,
    sink: str,
    where: Condition,
    *,
    store: Path | str,
    epoch: int | None = None,
    meta: str | None = None,
) -> RowOrigin:
    """Where rows of the output come from: the epoch that put them out, its input, and the state of their key.

    `where` says which rows of `sink`: a condition in SQL ("page = '/home' and n > 3"), a Polars expression, or a dict
    of columns and values. Retained epochs are run again (see `hf.rerun`), the newest first, until one emits such a
    row; with `epoch` only that one. The input behind it is followed by key, through the epoch and those before it as
    far as they are retained; `notes` of the result say how exact that is. Nothing is written.
    """
    check_pipeline(pipeline, "hf.why")
    with running_again(pipeline, store, meta, sink=sink) as runner:
        wanted = _wanted(runner, sink, where)
        ran, rows = _search(runner, sink, wanted, epoch)
        follower = _Follower(runner)
        follower.follow_sink(sink, ran, wanted)
        return follower.origin(sink, ran, rows)


def _wanted(runner: EpochRunner, sink: str, where: Condition) -> Wanted:
    """The condition, checked against the columns of the sink."""
    schema = runner.known.program.nodes[sink].schema
    try:
        if isinstance(where, Mapping):
            parts = [pl.col(name).eq_missing(pl.lit(value)) for name, value in where.items()]
            condition = pl.all_horizontal(parts)
        else:
            condition = pl.sql_expr(where) if isinstance(where, str) else where
        kind = pl.DataFrame(schema=schema).lazy().select(condition.alias("found")).collect_schema()["found"]
    except pl.exceptions.PolarsError as error:
        said = str(error).splitlines()[0]
        raise DeclarationError(
            f"the condition cannot be used: {said}", cure=f"use the columns {', '.join(schema)}", operator=sink
        ) from error
    if kind != pl.Boolean:
        raise WrongTypeError(f"the condition gives {kind}", cure="give one that is true or false", operator=sink)
    return lambda rows: rows.filter(condition)


def _search(runner: EpochRunner, sink: str, wanted: Wanted, epoch: int | None) -> tuple[RanEpoch, pl.DataFrame]:
    """The newest epoch that emits a wanted row."""
    known = runner.known
    if epoch is None:
        committed = sorted((number for number, record in known.records.items() if record.gap is None), reverse=True)
        epochs = [number for number in committed if known.can_run(number)]
    else:
        epochs = [epoch]
    for number in epochs:
        if epoch is None and not _puts_out(runner, sink, number):
            continue
        ran = runner.run(number)
        rows = wanted(runner.output(ran)[sink])
        if rows.height:
            return ran, rows
    if not epochs and known.plans:
        known.check(max(known.plans))
    raise UnknownStateError(
        f"no such row in the output of epoch {ranges(sorted(epochs)) or 'none'} of '{known.program.name}', which can be"
        " run again",
        cure="check the condition; a row of an epoch that is no longer retained cannot be traced: `retain` of a run"
        " (--retain) sets how many epochs are kept, or for how long",
        operator=sink,
    )


def _puts_out(runner: EpochRunner, sink: str, epoch: int) -> bool:
    """Whether an epoch may have emitted rows to a sink, as far as records show."""
    known, node = runner.known, runner.known.program.nodes[sink]
    assert isinstance(node, SinkNode)
    if isinstance(node.sink, StreamSink):
        return bool(known.records[epoch].streamed.get(sink))
    if epoch > 1 and epoch - 1 not in known.records:
        return True
    return known.records[epoch].totals.get("output", 0) > known.record(epoch - 1).totals.get("output", 0)


@dataclass(frozen=True, slots=True)
class _Aim:
    """What is followed at an operator: keys, where it has some, and event times from `low` up to and excluding `high`,
    where its rows are of a window."""

    keys: pl.DataFrame | None
    low: int | None = None
    high: int | None = None

    def among(self, rows: pl.DataFrame, node: Node) -> pl.DataFrame:
        """The rows that come to the operator and are meant."""
        if self.low is not None and node.time is not None and node.time.column in rows.columns:
            rows = rows.filter(node.time.expr().is_between(self.low, self.high, closed="left"))
        if self.keys is None:
            return rows
        return rows.join(self.keys, on=self.keys.columns, how="semi", nulls_equal=True)


@dataclass(slots=True)
class _Follower:
    """Goes from rows back to what they are made of, and keeps what it finds."""

    runner: EpochRunner
    runs: dict[int, RanEpoch] = field(default_factory=dict)
    inputs: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    between: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    state: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    earlier: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    epochs: set[int] = field(default_factory=set)
    seen: set[tuple[str, int, int]] = field(default_factory=set)
    """Results that were followed: operator, epoch and number."""
    notes: dict[str, None] = field(default_factory=dict)

    def follow_sink(self, sink: str, ran: RanEpoch, wanted: Wanted) -> None:
        self.runs[ran.epoch] = ran
        self.epochs.add(ran.epoch)
        [target] = self.runner.known.program.nodes[sink].inputs
        self._follow_target(target, wanted, ran.epoch, sink)

    def _follow_target(self, target: str, wanted: Wanted, epoch: int, reader: str) -> None:
        """Rows at a target, in an epoch: to the rows of sources, and to results of operators."""
        for origin in origins_of(self.runner.known.program, target):
            if isinstance(origin, SourceNode):
                self._source_rows(origin.name, target, wanted, epoch, reader)
            elif isinstance(origin, Stateful):
                self._results(origin, target, wanted, self._ran(epoch), reader)
            else:
                assert isinstance(origin, SideOutput)
                self._side(origin, target, wanted, self._ran(epoch))

    def _source_rows(self, source: str, target: str, wanted: Wanted, epoch: int, reader: str) -> None:
        known = self.runner.known
        for read in read_again(known.program, known.declared, known.plans[epoch], source):
            numbers = found_rows(known.program, read.origin, target, wanted)
            if not len(numbers):
                continue
            said = {"epoch": pl.lit(epoch, pl.Int64), "operator": pl.lit(reader), "slice": pl.lit(read.slice, pl.Int64)}
            head = pl.DataFrame({"row": numbers + read.first}).select(
                *(value.alias(name) for name, value in said.items()),
                "row",
                *([pl.lit(read.place).alias("place")] if read.place else []),
            )
            rows = read.origin.lazy().collect()[numbers]
            clash = {name: f"{source}.{name}" for name in rows.columns if name in _PLACED}
            self.inputs.setdefault(source, []).append(pl.concat([head, rows.rename(clash)], how="horizontal"))

    def _results(self, node: Stateful, target: str, wanted: Wanted, ran: RanEpoch, reader: str) -> None:
        """The results of an operator that lead to wanted rows, and what they are made of."""
        rows = self._made(node, target, wanted, ran)
        if not rows.height:
            return
        if reader in self.runner.known.program.stage_of:
            self.between.setdefault(node.name, []).append(_at(ran.epoch, rows))
        absent = [key for key in node.keys if key not in rows.columns]
        if absent:
            self.notes[
                f"the results of '{node.name}' do not have its key ({', '.join(absent)}), so its input and state were"
                " not followed"
            ] = None
            return
        low, high = _window(node, rows)
        self._operator(node, _Aim(rows.select(node.keys).unique() if node.keys else None, low, high), ran)

    def _side(self, side: SideOutput, target: str, wanted: Wanted, ran: RanEpoch) -> None:
        """Rows that came too late are input as it is; dead letters say themselves where they are from."""
        program = self.runner.known.program
        operator = program.nodes[side.inputs[0]]
        if not isinstance(operator, Stateful):
            self.notes["dead letters name their own place; only the slices of the epoch are listed"] = None
            return
        self.notes[f"late rows of '{operator.name}' were found in its input by the values of their columns"] = None
        rows = self._made(side, target, wanted, ran)
        for edge in program.edges_into(operator.name):
            schema = program.nodes[edge.input].schema
            names = [name for name in rows.columns if name in schema and supports_key(schema[name])]
            self._follow_arrivals(edge.input, _Aim(rows.select(names).unique()), ran.epoch, operator.name)

    def _made(self, node: Node, target: str, wanted: Wanted, ran: RanEpoch) -> pl.DataFrame:
        """The rows that an operator has emitted in an epoch and that lead to wanted ones, each of them once."""
        rows = self.runner.tapped(ran, node.name)
        numbers = found_rows(self.runner.known.program, Origin(node.name, rows), target, wanted)
        fresh = [number for number in numbers if (node.name, ran.epoch, number) not in self.seen]
        self.seen.update((node.name, ran.epoch, number) for number in fresh)
        return rows[fresh]

    def _operator(self, node: Stateful, aim: _Aim, ran: RanEpoch) -> None:
        """The rows that came to an operator in an epoch and in those before it, until its key had no state."""
        known = self.runner.known
        epoch, before = ran.epoch, ran.before
        while True:
            self._arrivals(node, aim, epoch)
            found = self._state(node, aim, before)
            if epoch == ran.epoch:
                self.state.setdefault(node.name, []).append(_at(epoch, found))
            if not found.height:
                break
            if not self._can_follow(epoch - 1):
                self.earlier.setdefault(node.name, []).append(_at(epoch, found))
                break
            epoch -= 1
            before = known.record(epoch - 1)
        self._say(node, aim, epoch, ran.epoch)

    def _can_follow(self, epoch: int) -> bool:
        known = self.runner.known
        record = known.records.get(epoch)
        return (
            epoch in known.plans
            and known.has_state(epoch - 1)
            and known.is_readable(epoch)
            and (record is None or record.gap is None)
        )

    def _arrivals(self, node: Stateful, aim: _Aim, epoch: int) -> None:
        self.epochs.add(epoch)
        program = self.runner.known.program
        for edge in program.edges_into(node.name):
            self._follow_arrivals(edge.input, aim, epoch, node.name)

    def _follow_arrivals(self, target: str, aim: _Aim, epoch: int, reader: str) -> None:
        self._follow_target(
            target, lambda rows: aim.among(rows, self.runner.known.program.nodes[target]), epoch, reader
        )

    def _ran(self, epoch: int) -> RanEpoch:
        """An epoch, run again once, and only where results of operators on the way are asked for."""
        if epoch not in self.runs:
            self.runs[epoch] = self.runner.run(epoch)
        return self.runs[epoch]

    def _state(self, node: Stateful, aim: _Aim, record: EpochRecord) -> pl.DataFrame:
        """What an operator has of the keys, and of the panes of the window."""
        tables = self.runner.state(record, node.name)
        rows = tables.shown(aim.keys)
        pane = operator_of(node).pane
        if aim.low is None or aim.high is None or pane is None:
            return rows
        name = next(tables.layout.shown(table)[PANE] for table in tables.layout.tables if PANE in table.schema)
        return rows.filter(pl.col(name).is_between(aim.low // pane, (aim.high - 1) // pane))

    def _say(self, node: Stateful, aim: _Aim, first: int, last: int) -> None:
        """How exact it is what was found of an operator."""
        parts = ["the key"] if node.keys else []
        parts += ["a time in the window"] if aim.low is not None else []
        which = f" with {' and '.join(parts)}" if parts else ""
        self.notes[f"input of '{node.name}': all rows of epoch {ranges(range(first, last + 1))}{which}"] = None
        if aim.low is None:
            self.notes[f"only the operator knows which of these rows a result of '{node.name}' depends on"] = None
        elif late := sum(map(self._late, range(first, last + 1))):
            self.notes[f"{counted(late, 'row')} came too late in these epochs and may be among its input"] = None
        if node.name in self.earlier:
            self.notes[
                f"what came before epoch {first} is not listed: its effect is the state of '{node.name}' before the"
                " epochs followed"
            ] = None

    def _late(self, epoch: int) -> int:
        """How many rows came too late in an epoch, for any operator."""
        known = self.runner.known
        if epoch in self.runs:
            return self.runs[epoch].facts.late
        if epoch not in known.records or (epoch > 1 and epoch - 1 not in known.records):
            return 0
        return known.record(epoch).totals.get("late", 0) - known.record(epoch - 1).totals.get("late", 0)

    def origin(self, sink: str, ran: RanEpoch, rows: pl.DataFrame) -> RowOrigin:
        known = self.runner.known
        self.notes = {f"epoch {ran.epoch} was run again and emits these rows: that is exact": None, **self.notes}
        return RowOrigin(
            pipeline=known.program.name,
            sink=sink,
            epoch=ran.epoch,
            rows=rows,
            slices=pl.DataFrame(list(self._slices()), schema=_SLICES, orient="row"),
            inputs=_once(self.inputs),
            between=_joined(self.between),
            state=_joined(self.state),
            earlier=_joined(self.earlier),
            first=min(self.epochs),
            notes=tuple(self.notes),
        )

    def _slices(self) -> Iterator[tuple[int, str, int, int, str]]:
        for epoch in sorted(self.epochs):
            plan = self.runner.known.plans[epoch]
            for source in plan.slices:
                for number, piece in enumerate(plan.slices_of(source)):
                    yield epoch, source, number, piece.rows, json.dumps(_place(piece.where))


def _window(node: Stateful, rows: pl.DataFrame) -> tuple[int | None, int | None]:
    """The event times of the windows that results are of."""
    if not operator_of(node).bounded or not set(_BOUNDS) <= set(rows.columns):
        return None, None
    starts, ends = (rows[name].to_physical() for name in _BOUNDS)
    return int(starts.min()), int(ends.max())  # type: ignore[arg-type]


def _place(where: Any) -> Any:
    """What a slice is, without what only tells whether a file has changed."""
    if isinstance(where, Mapping):
        return {name: _place(value) for name, value in where.items() if name not in _UNTOLD and value is not None}
    return [_place(value) for value in where] if isinstance(where, list | tuple) else where


def _at(epoch: int, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with the epoch that they are of, under another name if they have such a column."""
    name = "epoch" if "epoch" not in rows.columns else "of_epoch"
    return rows.select(pl.lit(epoch, pl.Int64).alias(name), pl.all())


def _joined(frames: Mapping[str, list[pl.DataFrame]]) -> dict[str, pl.DataFrame]:
    return {name: pl.concat(parts, how="diagonal") for name, parts in frames.items()}


def _once(frames: Mapping[str, list[pl.DataFrame]]) -> dict[str, pl.DataFrame]:
    """Input rows in their order, each of them once: it may have been found on several ways."""
    return {
        name: rows.unique(_PLACED[:4], maintain_order=True).sort(_PLACED[:4]) for name, rows in _joined(frames).items()
    }
