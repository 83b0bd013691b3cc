"""The epochs of a fragment that its store knows: their plans and records, and from which state each can be run again.

The store is only read. The program may be newer than the last start: what was renamed since has its new name here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.engine.fragment_runs import chosen_fragments, kept_placements
from holdfast.engine.stream_links import bind_streams
from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record import EpochRecord, blank_record
from holdfast.epoch.record_change import records_of
from holdfast.errors import DeclarationError, UnknownStateError
from holdfast.graph.nodes import Node, SinkNode
from holdfast.graph.pipeline import Pipeline
from holdfast.meta import MetaStore, opened_meta
from holdfast.plan.cuts import Fragment, cut_pipeline
from holdfast.plan.evolution import evolve
from holdfast.plan.places import cuts_of
from holdfast.plan.program import Program, compile_program
from holdfast.plurals import ranges
from holdfast.pstream import stream_store
from holdfast.pstream.link import StreamPart, StreamSource
from holdfast.state.inspection import kept_shape
from holdfast.store import DirectoryStore

__all__ = ["KnownEpochs", "known_epochs"]

_RETAIN = "`retain` of a run (--retain) sets how many epochs are kept, or for how long"


@dataclass(frozen=True, slots=True)
class KnownEpochs:
    """`declared` are the operators as the user has declared them: the program leaves out what nothing reads."""

    program: Program
    declared: Mapping[str, Node]
    root: Path
    plans: Mapping[int, EpochPlan]
    records: Mapping[int, EpochRecord]
    _there: dict[int, bool] = field(default_factory=dict)

    def places(self) -> tuple[Path, ...]:
        """Where p-units of some record may be, apart from the stable tier."""
        names = dict.fromkeys(place for record in self.records.values() for place in record.other_places)
        return tuple(map(Path, names))

    def record(self, epoch: int) -> EpochRecord:
        """The record after an epoch, also before the first one."""
        return self.records[epoch] if epoch else blank_record(self.program)

    def has_state(self, epoch: int) -> bool:
        """Whether the state after an epoch is retained: the store knows more epochs than those."""
        if epoch == 0:
            return True
        if epoch not in self.records:
            return False
        if epoch not in self._there:
            files = DirectoryStore(self.root / self.program.name / "state", other_places=self.places())
            self._there[epoch] = all(files.found(name) is not None for name in self.records[epoch].files())
        return self._there[epoch]

    def base(self, epoch: int) -> int | None:
        """The last epoch before this one whose state is retained, where all that were planned since can be run, too;
        None if there is none."""
        for after in range(epoch - 1, -1, -1):
            if self.has_state(after):
                return after
            record = self.records.get(after)
            # What a recovery left out was never run: running it gives another state.
            if after not in self.plans or (record is not None and record.gap is not None):
                return None
        return None

    def is_readable(self, epoch: int) -> bool:
        """Whether the p-streams still have what an epoch has read of them. Other sources are asked by reading."""
        return not any(True for _ in self._released(epoch))

    def _released(self, epoch: int) -> Iterator[str]:
        for node in self.program.sources:
            if isinstance(node.source, StreamSource):
                files = stream_store(self.root, node.source.stream)
                units = (
                    unit for piece in self.plans[epoch].slices_of(node.name) for unit in StreamPart.of(piece).units
                )
                if any(files.found(unit.name) is None for unit in units):
                    yield node.source.stream

    def can_run(self, epoch: int) -> bool:
        if epoch not in self.plans or (after := self.base(epoch)) is None:
            return False
        return all(self.is_readable(number) for number in range(after + 1, epoch + 1))

    def check(self, epoch: int) -> int:
        """After which epoch to begin in order to run this one; an error where it cannot be run."""
        name = self.program.name
        if self.program.spark_input is not None:
            raise DeclarationError(
                f"the epochs of '{name}' are batches of Structured Streaming, which only Spark can read again",
                cure="read the state before and after it with `holdfast state`",
                operator=self.program.spark_input.name,
                epoch=epoch,
            )
        if epoch not in self.plans:
            raise UnknownStateError(f"epoch {epoch} of '{name}' is not retained", cure=self._choice(), epoch=epoch)
        after = self.base(epoch)
        if after is None:
            raise UnknownStateError(
                f"the state with which epoch {epoch} of '{name}' began is not retained",
                cure=self._choice(),
                epoch=epoch,
            )
        for number in range(after + 1, epoch + 1):
            if released := next(self._released(number), None):
                raise UnknownStateError(
                    f"epoch {number} of '{name}' has read p-stream '{released}', which has released those rows since",
                    cure=f"{self._choice()}; a p-stream keeps what a reader has not read: a second pipeline that reads"
                    " it and is stopped keeps the rows",
                    epoch=epoch,
                )
        return after

    def _choice(self) -> str:
        found = [epoch for epoch in sorted(self.plans) if self.can_run(epoch)]
        if not found:
            return f"no epoch can be run again now; {_RETAIN}"
        return f"these can be run again: {ranges(found)}; {_RETAIN}"


@contextmanager
def known_epochs(
    pipeline: Pipeline, store: Path, meta: str | None, *, fragment: str | None = None, sink: str | None = None
) -> Iterator[KnownEpochs]:
    """What a store knows of the epochs of a pipeline, or of one of its fragments: the one of a name, or with a sink."""
    with opened_meta(store, meta) as opened:
        found = _fragment(pipeline, opened, store, fragment, sink)
        root = store.resolve()
        program = bind_streams(compile_program(found.pipeline), opened, root, sync=False)
        commits, planned = opened.history(program.name)
        if not commits and not planned:
            raise _nothing(pipeline, opened, store)
        changes = evolve(program, kept_shape(opened, program.name), commits[0].epoch if commits else 0)
        sources, operators = changes.sources, changes.operators
        texts = {one.epoch: one.plan for one in commits} | {one.epoch: one.plan for one in planned}
        plans = {epoch: EpochPlan.decode(text).renamed(sources, operators) for epoch, text in texts.items()}
        records = {epoch: record.renamed(sources, operators) for epoch, record in records_of(commits).items()}
        yield KnownEpochs(program, found.pipeline.nodes, root, plans, records)


def _fragment(pipeline: Pipeline, meta: MetaStore, store: Path, name: str | None, sink: str | None) -> Fragment:
    placements = kept_placements(pipeline, meta)
    if any(cut.name not in placements for cut in cuts_of(pipeline.nodes)):
        raise _nothing(pipeline, meta, store)
    fragments = cut_pipeline(pipeline, placements).fragments
    if sink is not None:
        return _with_sink(pipeline, fragments, sink)
    if name is None and len(fragments) > 1:
        short = ", ".join(part.name.removeprefix(f"{pipeline.name}.") for part in fragments)
        raise DeclarationError(
            f"p-streams cut '{pipeline.name}' into fragments, and each has its own epochs",
            cure=f"give `fragment` (--fragment), one of: {short}",
        )
    return chosen_fragments(pipeline, fragments, [] if name is None else [name])[0]


def _with_sink(pipeline: Pipeline, fragments: Sequence[Fragment], sink: str) -> Fragment:
    sinks = {
        node.name: fragment
        for fragment in fragments
        for node in fragment.pipeline.nodes.values()
        if isinstance(node, SinkNode)
    }
    if sink not in sinks:
        raise DeclarationError(
            f"pipeline '{pipeline.name}' has no sink '{sink}'", cure=f"its sinks are: {', '.join(sinks)}"
        )
    return sinks[sink]


def _nothing(pipeline: Pipeline, meta: MetaStore, store: Path) -> UnknownStateError:
    known = meta.pipelines()
    return UnknownStateError(
        f"pipeline '{pipeline.name}' has no epoch in {store}",
        cure=f"the store has: {', '.join(known)}" if known else "run the pipeline first",
    )
