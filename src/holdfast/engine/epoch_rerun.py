"""An epoch run again in this process: its planned slices, the state it began with, and the code of real tasks.

Nothing is written to the store: what the tasks write goes to a directory that is removed in the end, no sink is called,
nothing is committed. The result has the rows that went out and the state before and after, and says whether they are
what was committed. An error of the user's code is raised as it is, with its frames, so that a debugger can look at it.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from holdfast.connect.base import DriverSink, TaskSink
from holdfast.engine.known_epochs import KnownEpochs, known_epochs
from holdfast.engine.rerun_result import Rerun
from holdfast.engine.state_digest import state_digests
from holdfast.epoch.digest import difference, digest_of
from holdfast.epoch.execution import EpochFinished
from holdfast.epoch.facts import EpochFacts, merge_commits
from holdfast.epoch.messages import Message, rows_for
from holdfast.epoch.plan import TaskSettings
from holdfast.epoch.record import EpochRecord
from holdfast.graph.nodes import Node, SideOutput, SinkNode, Stateful
from holdfast.graph.pipeline import Pipeline, check_pipeline
from holdfast.hidden_columns import hidden_name, visible
from holdfast.plan.program import Program
from holdfast.plan.shape import shape_of_program
from holdfast.plurals import counted
from holdfast.pstream import stream_store
from holdfast.pstream.link import StreamSink
from holdfast.pstream.units import read_unit
from holdfast.state.inspection import OperatorTables
from holdfast.state.layout import layout_of
from holdfast.store import DirectoryStore, Tiers
from holdfast.store.location import local_path
from holdfast.task.in_process import InProcessExecutor
from holdfast.task.work_directory import WorkDirectory

__all__ = ["EpochRunner", "RanEpoch", "rerun", "running_again"]


def rerun(
    pipeline: Pipeline, epoch: int, *, store: Path | str, fragment: str | None = None, meta: str | None = None
) -> Rerun:
    """Run an epoch of a pipeline again in this process, and compare the result with what was committed.

    It reads the slices of the epoch's plan from the sources and begins with the state that the epoch began with, from
    `store`. It works for every epoch that is retained with its state (`retain` of a run), and for one that is planned
    and could not be committed. Nothing is written or published, and no sink is called: `output` has the rows by sink.
    An error is raised with the frames of the code that raised it. The pipeline may be running meanwhile. `fragment` is
    needed where p-streams cut the pipeline; `meta` is the URL of the meta store, where that is not in the store.
    """
    check_pipeline(pipeline, "hf.rerun")
    with running_again(pipeline, store, meta, fragment=fragment) as runner:
        return runner.compared(epoch)


@contextmanager
def running_again(
    pipeline: Pipeline,
    store: Path | str,
    meta: str | None = None,
    *,
    fragment: str | None = None,
    sink: str | None = None,
) -> Iterator[EpochRunner]:
    """Who can run epochs of a pipeline again, with a directory for what they write. The fragment is the one of a name,
    or that with a sink."""
    with (
        known_epochs(pipeline, local_path(store, "store"), meta, fragment=fragment, sink=sink) as known,
        tempfile.TemporaryDirectory(prefix="holdfast-rerun-") as directory,
    ):
        yield EpochRunner(known, Path(directory))


@dataclass(frozen=True, slots=True)
class RanEpoch:
    """An epoch that was run again: the records before and after it, and what its tasks said."""

    epoch: int
    after: int
    """The epoch whose state was the first to begin with."""
    before: EpochRecord
    record: EpochRecord
    facts: EpochFacts
    messages: list[Message]


class EpochRunner:
    """Runs epochs of a fragment. What they write goes to `directory`."""

    def __init__(self, known: KnownEpochs, directory: Path) -> None:
        self.known = known
        self._directory = directory
        self._program = _harmless(known.program, directory)
        home = known.root / known.program.name
        self._tiers = Tiers(home / "state", directory / "state", known.places(), sync=False)

    @property
    def files(self) -> DirectoryStore:
        """All p-units: those of the store, and what was written here."""
        return self._tiers.at("volatile")

    def run(self, epoch: int) -> RanEpoch:
        """Run an epoch; those before it, too, whose state is not retained."""
        after = self.known.check(epoch)
        before = self.known.record(after)
        for number in range(after + 1, epoch):
            before = self._run(number, before, silent=True)[0]
        return RanEpoch(epoch, after, before, *self._run(epoch, before, silent=False))

    def _run(self, epoch: int, before: EpochRecord, *, silent: bool) -> tuple[EpochRecord, EpochFacts, list[Message]]:
        plan = self.known.plans[epoch]
        work = WorkDirectory(self._directory / "work", uuid.uuid4().hex)
        executor = InProcessExecutor(work, self._tiers, time.monotonic, debug=True)
        executor.open(self._program)
        try:
            executor.launch(epoch, plan, TaskSettings(silent=silent, digest=not silent))
            executor.hand_over(epoch, before.handover(plan, "volatile"))
            while not isinstance(executor.wait(epoch, watch=False, seconds=0.0), EpochFinished):
                pass
            messages = executor.execution(epoch).outcome
        finally:
            executor.end()
        return *merge_commits(before, plan, messages), messages

    def output(self, ran: RanEpoch) -> dict[str, pl.DataFrame]:
        """The rows for each sink, p-streams included."""
        return {node.name: self._rows(node, ran) for node in self.known.program.sinks}

    def put_out(self, ran: RanEpoch) -> dict[str, pl.DataFrame]:
        """The rows that each stateful operator has emitted."""
        return {node.name: self.tapped(ran, node.name) for node in self.known.program.stateful}

    def tapped(self, ran: RanEpoch, name: str) -> pl.DataFrame:
        """The rows of a stateful operator, or those that came too late for one, if there is a stream of them."""
        return _concat(rows_for(ran.messages, _tap(name)), self.known.program.nodes[name].schema)

    def state(self, record: EpochRecord, operator: str) -> OperatorTables:
        """The state of an operator in a record."""
        shape = shape_of_program(self.known.program).operators[operator]
        return OperatorTables(layout_of(operator, shape, {}), record.state[operator], self.files)

    def _rows(self, node: SinkNode, ran: RanEpoch) -> pl.DataFrame:
        rows = _streamed(node, ran.record, self._directory)
        return _concat(rows_for(ran.messages, node.name), node.schema) if rows is None else rows

    # comparing with what was committed

    def compared(self, epoch: int) -> Rerun:
        """Run an epoch again, and say what is equal to what was committed."""
        ran = self.run(epoch)
        operators = [node.name for node in self.known.program.stateful]
        output = self.output(ran)
        return Rerun(
            pipeline=self.known.program.name,
            epoch=epoch,
            after=ran.after,
            output=output,
            put_out=self.put_out(ran),
            before={name: self.state(ran.before.routed(ran.record.routing), name).shown() for name in operators},
            state={name: self.state(ran.record, name).shown() for name in operators},
            read=dict(ran.facts.read_by),
            bad=ran.facts.bad,
            late=dict(ran.facts.late_by),
            found=dict(self._differences(ran, output)),
        )

    def _differences(self, ran: RanEpoch, output: Mapping[str, pl.DataFrame]) -> Iterator[tuple[str, str | None]]:
        """By what was compared, how it differs; None where it does not."""
        record = self.known.records.get(ran.epoch)
        if record is None or record.gap is not None:
            return
        yield from self._counts(ran, record, output)
        for node in self.known.program.sinks:
            rows, receipts = output[node.name], record.receipts.get(node.name, ())
            theirs = _streamed(node, record, self.known.root)
            if theirs is None and isinstance(node.sink, TaskSink):
                theirs = node.sink.seen(ran.epoch, receipts, node.schema)
            known = record.digest.get(node.name) or (None if theirs is None else digest_of(_plain(theirs)))
            if known is not None:
                yield f"rows of {node.name}", difference({node.name: known}, {node.name: digest_of(_plain(rows))})
            elif receipts and all("rows" in receipt for receipt in receipts):
                expected = sum(int(receipt["rows"]) for receipt in receipts)
                yield f"number of rows of {node.name}", _unequal(expected, rows.height)
        if self.known.has_state(ran.epoch):
            for operator in self.known.program.stateful:
                digests = (state_digests(self.known.program, operator, one, self.files) for one in (record, ran.record))
                yield f"state of {operator.name}", difference(*digests)

    def _counts(
        self, ran: RanEpoch, record: EpochRecord, output: Mapping[str, pl.DataFrame]
    ) -> Iterator[tuple[str, str | None]]:
        if ran.epoch > 1 and ran.epoch - 1 not in self.known.records:
            return
        before = self.known.record(ran.epoch - 1)
        sinks = [node.name for node in self.known.program.sinks if not isinstance(node.sink, StreamSink)]
        put_out = sum(output[name].height for name in sinks)
        mine = {"read": ran.facts.read, "bad": ran.facts.bad, "late": ran.facts.late, "output": put_out}
        found = {name: record.totals.get(name, 0) - before.totals.get(name, 0) for name in mine}
        said = [f"{name}: {how}" for name, rows in mine.items() if (how := _unequal(found[name], rows)) is not None]
        yield "numbers of rows", ", ".join(said) or None


def _plain(rows: pl.DataFrame) -> pl.DataFrame:
    """The columns that people see."""
    return rows.select(visible(rows.columns))


def _unequal(committed: int, now: int) -> str | None:
    return None if committed == now else f"{counted(committed, 'row')} committed, now {now:,}"


def _streamed(node: SinkNode, record: EpochRecord, root: Path) -> pl.DataFrame | None:
    """The rows for a p-stream that a record names, as long as the stream has them; None if it has not, or if the sink
    is none."""
    if not isinstance(node.sink, StreamSink):
        return None
    store = stream_store(root, node.sink.stream)
    receipts = sorted(record.streamed.get(node.name, ()), key=lambda receipt: receipt.sender)
    if any(store.found(receipt.unit.name) is None for receipt in receipts):
        return None
    names = node.schema.names()
    return _concat([read_unit(store, receipt.unit).select(names) for receipt in receipts], node.schema)


def _tap(name: str) -> str:
    return hidden_name(f"tap-{name}")


def _harmless(program: Program, directory: Path) -> Program:
    """The program with sinks that do nothing, and one for each output of a stateful operator. P-streams are written
    as always, to a directory: which rows carry bounds depends on them."""
    nodes: dict[str, Node] = {}
    for name, node in program.nodes.items():
        if isinstance(node, SinkNode):
            sink = node.sink.bound(directory, False) if isinstance(node.sink, StreamSink) else DriverSink()
            node = replace(node, sink=sink)
        nodes[name] = node
        if isinstance(node, Stateful | SideOutput):
            tap = SinkNode(name=_tap(name), inputs=(name,), schema=node.schema, time=None, sink=DriverSink())
            nodes[tap.name] = tap
    return replace(program, nodes=nodes, order=tuple(nodes))


def _concat(frames: list[pl.DataFrame], schema: pl.Schema) -> pl.DataFrame:
    return pl.concat(frames) if frames else pl.DataFrame(schema=schema)
