"""What a commit records: where the sources stand, how far event time has come, and all state by its manifests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from holdfast.connect.base import Source
from holdfast.epoch.digest import combined
from holdfast.epoch.measuring import work_of
from holdfast.epoch.messages import Message
from holdfast.epoch.watermarks import greatest_after
from holdfast.errors import EpochFailedError
from holdfast.plan.program import Program
from holdfast.pstream import PUnit
from holdfast.state.compaction import Target, splice
from holdfast.state.extent import Extent
from holdfast.state.manifest import Manifest, Piece, seen_rows_and_bytes
from holdfast.state.partition import partition_processing_state
from holdfast.state.routing import Routing
from holdfast.store import Tier
from holdfast.stored_json import reading

__all__ = ["Base", "EpochRecord", "Footing", "made_again", "merge_commits", "new_record"]


@dataclass(frozen=True, slots=True)
class Base:
    """Where to begin again if state is lost: after `epoch`, with the state it had; if `empty`, with none; if
    `eventual`, with the last footprints of all windows."""

    epoch: int
    empty: bool = False
    eventual: bool = False

    @staticmethod
    def from_json(value: Mapping[str, Any] | None) -> Base | None:
        return None if value is None else Base(value["epoch"], value["empty"], value.get("eventual", False))


@dataclass(frozen=True, slots=True)
class Footing:
    """The footprints of an operator: the p-stream that has them, the name they have in it, and how far they reach.

    All windows of classes up to `closed` are closed. `predicted` is how many seconds a recovery was expected to take,
    `why` the reason for which windows are to get new footprints, if they are.
    """

    stream: str
    name: str
    extent: Extent
    closed: int | None = None
    predicted: float | None = None
    why: str | None = None

    def to_json(self) -> dict[str, Any]:
        extent = self.extent.to_json()
        return {
            "stream": self.stream,
            "name": self.name,
            "extent": extent,
            "closed": self.closed,
            "predicted": self.predicted,
            "why": self.why,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Footing:
        extent = Extent.from_json(value["extent"])
        return Footing(value["stream"], value["name"], extent, value["closed"], value["predicted"], value.get("why"))


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """The whole truth about a pipeline after an epoch, but for the bytes in its p-units."""

    positions: Mapping[str, Any]
    done: Mapping[str, bool]
    greatest: Mapping[str, int | None]
    routing: Mapping[str, Routing]
    state: Mapping[str, tuple[Manifest, ...]]
    receipts: Mapping[str, list[Any]] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    base: Base | None = None
    """None where all p-units lie on the stable tier."""
    policy: str | None = None
    """The checkpoint policy that was in force."""
    reason: str | None = None
    """Why that policy, where it was not the user who chose it."""
    beside: tuple[str, ...] = ()
    """The directories that may hold its p-units beside the stable tier."""
    footings: Mapping[str, Footing] = field(default_factory=dict)
    """What operators have left of their windows, under the policy `eventual`."""
    digest: Mapping[str, Any] = field(default_factory=dict)
    """Checksums of the output by sink, where replicas are compared."""
    gap: int | None = None
    """The epoch whose state it has, if a recovery left out all since."""
    generation: int = 0
    """Of the plan that was run: it changes when a person has an epoch planned again."""
    pending: Mapping[str, int] = field(default_factory=dict)
    """Greatest event times that do not count for the watermark yet: rows without an order among each other follow."""

    def to_json(self) -> dict[str, Any]:
        return {
            "positions": self.positions,
            "done": self.done,
            "greatest": self.greatest,
            "routing": {name: routing.to_json() for name, routing in self.routing.items()},
            "state": {name: [manifest.to_json() for manifest in parts] for name, parts in self.state.items()},
            "receipts": self.receipts,
            "totals": self.totals,
            "base": None if self.base is None else asdict(self.base),
            "policy": self.policy,
            "reason": self.reason,
            "beside": list(self.beside),
            "footings": {name: footing.to_json() for name, footing in self.footings.items()},
            "digest": self.digest,
            "gap": self.gap,
            "generation": self.generation,
            "pending": self.pending,
        }

    @staticmethod
    @reading("the record of an epoch")
    def from_json(value: Mapping[str, Any]) -> EpochRecord:
        return EpochRecord(
            value["positions"],
            value["done"],
            value["greatest"],
            {name: Routing.from_json(bounds) for name, bounds in value["routing"].items()},
            {name: tuple(Manifest.from_json(manifest) for manifest in parts) for name, parts in value["state"].items()},
            value["receipts"],
            value["totals"],
            Base.from_json(value.get("base")),
            value.get("policy"),
            value.get("reason"),
            tuple(value.get("beside", ())),
            {name: Footing.from_json(footing) for name, footing in value.get("footings", {}).items()},
            value.get("digest", {}),
            value.get("gap"),
            value.get("generation", 0),
            value.get("pending", {}),
        )

    def emptied(self) -> EpochRecord:
        """This record with all state empty."""
        state = {
            name: tuple(Manifest(bounds.interval(part)) for part in range(bounds.partitions))
            for name, bounds in self.routing.items()
        }
        return replace(self, state=state)

    def routed(self, routing: Mapping[str, Any]) -> EpochRecord:
        """This record with its state partitioned as the plan of the next epoch says.

        So a change of parallelism is a plan with another routing and nothing else: what dies half-way leaves either a
        plan, which is run as it is, or none.
        """
        bounds = {name: Routing.from_json(value) for name, value in routing.items()}
        if bounds == dict(self.routing):
            return self
        state = {name: partition_processing_state(parts, bounds[name]) for name, parts in self.state.items()}
        return replace(self, routing=bounds, state=state)

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

    def handover(self, plan: Mapping[str, Any], tier: Tier = "stable") -> dict[str, Any]:
        """What the assembly tasks of the next epoch need to begin: state, and the tier they write to."""
        state = self.routed(plan["routing"]).state
        return {
            "greatest": self.greatest,
            "done_before": self.done,
            "done": plan["done"],
            "pending": self.pending,
            "open": plan.get("open", {}),
            "routing": plan["routing"],
            "tier": tier,
            "state": {name: [manifest.to_json() for manifest in parts] for name, parts in state.items()},
        }

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


def new_record(program: Program, partitions: int) -> EpochRecord:
    """The record before the first epoch: every source at its start, all state empty."""
    routing = {
        node.name: Routing.even((node.partitions or partitions) if node.keys else 1) for node in program.stateful
    }
    return EpochRecord(
        positions={
            node.name: dict(node.source.start()) if isinstance(node.source, Source) else {} for node in program.sources
        },
        done={node.name: False for node in program.sources},
        greatest={node.name: None for node in program.sources},
        routing=routing,
        state={
            name: tuple(Manifest(bounds.interval(part)) for part in range(bounds.partitions))
            for name, bounds in routing.items()
        },
    )


def merge_commits(
    before: EpochRecord, plan: Mapping[str, Any], messages: list[Message]
) -> tuple[EpochRecord, dict[str, Any]]:
    """The record after an epoch, from what its tasks said, and a few facts for the report."""
    heads = [message.head for message in messages if message.kind == "commit"]
    seen = [head.get("greatest", {}) for head in heads]
    greatest, pending = greatest_after(before.greatest, before.pending, seen, plan.get("open", {}))
    state = {name: list(parts) for name, parts in before.routed(plan["routing"]).state.items()}
    receipts: dict[str, list[Any]] = {}
    cpu: dict[str, float] = {}
    facts: dict[str, Any] = {"read": 0, "bad": 0, "late": 0, "output": 0, "written": 0, "cpu": cpu}
    facts |= {"read_by": {}, "streamed": 0, "streamed_bytes": 0, "footprints": {}, "left": 0}
    facts["fetching"] = max((head.get("fetching", 0.0) for head in heads), default=0.0)
    facts["work"], facts["reading"] = work_of(heads)
    digest: dict[str, Any] = {}
    for head in heads:
        for name, part in head.get("digest", {}).items():
            digest[name] = combined(digest.get(name), part)
        cpu[f"{head['stage']}-{head['task']}"] = head["cpu"]
        for name, rows in head.get("read", {}).items():
            facts["read"] += rows
            facts["read_by"][name] = facts["read_by"].get(name, 0) + rows
        facts["bad"] += sum(head.get("bad", {}).values())
        facts["late"] += sum(head["late"].values())
        facts["written"] += head.get("written", 0)
        for name, left in head.get("footprints", {}).items():
            facts["footprints"].setdefault(name, {})[head["task"]] = left
            facts["left"] += 0 if left["unit"] is None else left["unit"]["bytes"]
        for name, manifest in head.get("state", {}).items():
            state[name][head["task"]] = Manifest.from_json(manifest)
        for name, items in head["receipts"].items():
            receipts.setdefault(name, []).extend(items)
            for item in items:
                if "unit" in item:
                    facts["streamed"] += item["rows"]
                    facts["streamed_bytes"] += item["unit"]["bytes"]
                else:
                    facts["output"] += item.get("rows", 0)
    facts["output"] += sum(message.head["rows"] for message in messages if message.kind == "rows")
    totals = dict(before.totals)
    for key in ("read", "bad", "late", "output"):
        totals[key] = totals.get(key, 0) + facts[key]
    record = EpochRecord(
        plan["positions"],
        plan["done"],
        greatest,
        {name: Routing.from_json(bounds) for name, bounds in plan["routing"].items()},
        {name: tuple(parts) for name, parts in state.items()},
        receipts,
        totals,
        digest=digest,
        generation=plan.get("generation", 0),
        pending=pending,
    )
    return record, facts


def made_again(lost: EpochRecord, record: EpochRecord, epoch: int, pipeline: str) -> EpochRecord:
    """The record of an epoch whose state was lost and is made again by a replay. What went to sinks stays as it was."""
    if dict(lost.greatest) != dict(record.greatest):
        raise EpochFailedError(
            f"the replay of '{pipeline}' read other rows than before: the greatest event times were"
            f" {dict(lost.greatest)} and are {dict(record.greatest)}",
            cure="a source must give the same rows for the same slice; use the policy 'delta' for one that cannot",
            epoch=epoch,
        )
    return replace(lost, state=record.state, routing=record.routing)
