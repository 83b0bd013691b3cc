"""What a commit records: the positions of the sources, the progress of event time, and all state by its manifests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from holdfast.connect.base import Position, Receipt, Source
from holdfast.connect.source_answers import checked_position
from holdfast.epoch.digest import OutputDigest
from holdfast.epoch.epoch_times import EpochTimes
from holdfast.epoch.handover import HandOver
from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.task_commit import StreamReceipt
from holdfast.errors import EpochFailedError, OperatorError
from holdfast.formats import EPOCH_VERSION
from holdfast.graph.nodes import SourceNode
from holdfast.operators.footprint_messages import FootprintOrder
from holdfast.plan.evolution import under
from holdfast.plan.program import Program
from holdfast.plan.watermarks import greatest_after
from holdfast.pstream import PUnit
from holdfast.state.extent import LogExtent
from holdfast.state.levels import Target, splice
from holdfast.state.manifest import Manifest, Piece, seen_rows_and_bytes
from holdfast.state.partition import partition_processing_state
from holdfast.state.routing import Routing
from holdfast.store import Tier
from holdfast.stored_json import JsonForm
from holdfast.versioned_message import EpochVersion

__all__ = ["Base", "EpochRecord", "Footing", "blank_record", "made_again", "new_record", "start_positions"]


@dataclass(frozen=True, slots=True)
class Base:
    """Where to begin again if state is lost: after `epoch`, with the state it had; if `empty`, with none; if
    `eventual`, with the last footprints of all windows."""

    epoch: int
    empty: bool = False
    eventual: bool = False


@dataclass(frozen=True, slots=True)
class Footing:
    """The footprints of an operator: the p-stream that has them, the name they have in it, and how far they reach.

    All windows of classes up to `closed` are closed. `predicted` is how many seconds a recovery was expected to take,
    `why` the reason for which windows are to get new footprints, if they are.
    """

    stream: str
    name: str
    extent: LogExtent
    closed: int | None = None
    predicted: float | None = None
    why: str | None = None


class EpochRecord(msgspec.Struct, frozen=True, rename={"other_places": "beside"}):
    """The whole truth about a pipeline after an epoch, but for the bytes in its p-units."""

    positions: Mapping[str, Position]
    done: Mapping[str, bool]
    greatest: Mapping[str, int | None]
    routing: Mapping[str, Routing]
    state: Mapping[str, tuple[Manifest, ...]]
    receipts: Mapping[str, tuple[Receipt, ...]] = {}
    """What is prepared in task sinks. Records of before have the p-units of p-streams among it."""
    totals: Mapping[str, int] = {}
    base: Base | None = None
    """None where all p-units lie on the stable tier."""
    policy: str | None = None
    """The checkpoint policy that was in force."""
    reason: str | None = None
    """Why that policy, where it was not the user who chose it."""
    other_places: tuple[str, ...] = ()
    """The directories that may hold its p-units, apart from the stable tier. Stored as `beside`."""
    footings: Mapping[str, Footing] = {}
    """What operators have left of their windows, under the policy `eventual`."""
    digest: Mapping[str, OutputDigest] = {}
    """Checksums of the output by sink, where replicas are compared."""
    gap: int | None = None
    """The epoch whose state it has, if a recovery left out all since."""
    gaps: int = 0
    """How many recoveries have left something out until now. Records in which this differs do not belong together."""
    generation: int = 0
    """Of the plan that was run: it changes when a person has an epoch planned again."""
    pending: Mapping[str, int] = {}
    """Greatest event times that do not count for the watermark yet: rows without an order among each other follow."""
    streamed: Mapping[str, tuple[StreamReceipt, ...]] = {}
    """The p-units that were written for p-streams, by sink."""
    idle: tuple[str, ...] = ()
    """The sources that windows did not wait for, because they had been silent for long."""
    clock: float | None = None
    """The clock of the epoch's plan, which never goes back: what operators keep by the clock uses it."""
    times: EpochTimes | None = None
    """Where the time of the epoch went, where that is known; commit and publication are those of the epoch before."""
    version: EpochVersion = EPOCH_VERSION

    def encode(self) -> str:
        return _FORM.encode(self)

    @staticmethod
    def decode(text: str | bytes) -> EpochRecord:
        return _FORM.decode(text)

    def after(self, epoch: int, before: EpochRecord, *, stable: bool) -> EpochRecord:
        """This record of a secondary, behind what the primary has committed as `epoch`. Checkpoints are the primary's:
        what is in memory is rebuilt from them."""
        base = Base(epoch) if before.base is None and not stable else before.base
        return replace(self, base=base, policy=before.policy, reason=before.reason, other_places=before.other_places)

    def renamed(self, sources: Mapping[str, str], operators: Mapping[str, str]) -> EpochRecord:
        """The record where sources and operators have new names."""
        return replace(
            self,
            positions=under(sources, self.positions),
            done=under(sources, self.done),
            greatest=under(sources, self.greatest),
            pending=under(sources, self.pending),
            idle=tuple(under(sources, dict.fromkeys(self.idle))),
            routing=under(operators, self.routing),
            state=under(operators, self.state),
            footings=under(operators, self.footings),
        )

    def emptied(self) -> EpochRecord:
        """This record with all state empty."""
        state = {
            name: tuple(Manifest(bounds.interval(part)) for part in range(bounds.partitions))
            for name, bounds in self.routing.items()
        }
        return replace(self, state=state)

    def routed(self, routing: Mapping[str, Routing]) -> EpochRecord:
        """This record with its state partitioned as the plan of the next epoch says.

        So a change of parallelism is a plan with another routing and nothing else: what dies half-way leaves either a
        plan, which is run as it is, or none.
        """
        if dict(routing) == dict(self.routing):
            return self
        state = {name: partition_processing_state(parts, routing[name]) for name, parts in self.state.items()}
        return replace(self, routing=routing, state=state)

    def spliced(self, target: Target, merged: Sequence[Piece], by: Sequence[Piece]) -> EpochRecord | None:
        """This record with merged pieces in the place of those they were made of; None if it has those no more.

        The rows are the same, so it is a record of the same epoch. What was committed stays as it is: the next epoch
        begins from this record, and its commit is the first to name the new p-units.
        """
        parts = self.state.get(target.operator, ())
        if target.part >= len(parts):
            return None
        manifest = parts[target.part]
        pieces = splice(manifest.table(target.table), merged, by)
        if pieces is None:
            return None
        after = (*parts[: target.part], manifest.with_table(target.table, pieces), *parts[target.part + 1 :])
        return replace(self, state={**self.state, target.operator: after})

    def handover(
        self, plan: EpochPlan, tier: Tier = "stable", footprints: Mapping[str, FootprintOrder] | None = None
    ) -> HandOver:
        """What the assembly tasks of the next epoch need to begin."""
        return HandOver(
            greatest=self.greatest,
            done_before=self.done,
            done=plan.done,
            pending=self.pending,
            open=plan.open,
            routing=plan.routing,
            state=self.routed(plan.routing).state,
            tier=tier,
            footprints=footprints or {},
            clock=self.clock,
        )

    def seen(self) -> dict[str, int | None]:
        """The greatest event time of each source's rows, whether it counts for the watermark yet or not."""
        return greatest_after(self.greatest, self.pending, (), {})[0]

    def files(self) -> frozenset[str]:
        """The p-units that this record needs."""
        return frozenset(
            piece.punit.name for parts in self.state.values() for manifest in parts for piece in manifest.pieces
        )

    def units(self) -> list[PUnit]:
        """The p-units of all state, each once: partitions may share them."""
        pieces = (piece for parts in self.state.values() for manifest in parts for piece in manifest.pieces)
        return list({piece.punit.name: piece.punit for piece in pieces}.values())

    def state_rows(self) -> int:
        return sum(seen_rows_and_bytes(parts)[0] for parts in self.state.values())

    def state_bytes(self) -> int:
        return sum(unit.bytes for unit in self.units())


_FORM = JsonForm(EpochRecord, "the record of an epoch", EPOCH_VERSION)


def new_record(program: Program, partitions: int) -> EpochRecord:
    """The record before the first epoch: every source at its start, all state empty."""
    return replace(blank_record(program, partitions), positions=start_positions(program))


def start_positions(program: Program) -> dict[str, Position]:
    return {node.name: _start(node) for node in program.sources}


def blank_record(program: Program, partitions: int = 1) -> EpochRecord:
    """The same without asking the sources where they start."""
    routing = {
        node.name: Routing.even((node.partitions or partitions) if node.keys else 1) for node in program.stateful
    }
    return EpochRecord(
        positions={},
        done={node.name: False for node in program.sources},
        greatest={node.name: None for node in program.sources},
        routing=routing,
        state={
            name: tuple(Manifest(bounds.interval(part)) for part in range(bounds.partitions))
            for name, bounds in routing.items()
        },
    )


def _start(node: SourceNode) -> Position:
    if not isinstance(node.source, Source):
        return {}
    try:
        return dict(checked_position("start", node.source.start()))
    except OperatorError as error:
        raise error.at(operator=node.name) from error.__cause__


def made_again(lost: EpochRecord, record: EpochRecord, epoch: int, pipeline: str) -> EpochRecord:
    """The record of an epoch whose state was lost and is made again by a replay. What went to sinks stays as it was."""
    if dict(lost.greatest) != dict(record.greatest):
        raise EpochFailedError(
            f"the replay of '{pipeline}' read different rows than before: the greatest event times were"
            f" {dict(lost.greatest)} and are {dict(record.greatest)}",
            cure="a source must give the same rows for the same slice; use the policy 'delta' for one that cannot",
            epoch=epoch,
        )
    return replace(lost, state=record.state, routing=record.routing)
