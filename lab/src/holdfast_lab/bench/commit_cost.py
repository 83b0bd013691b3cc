"""What a commit costs, by how many partitions the state has: CPU time and bytes, whole records against changes.

Each epoch changes the state of one partition. No Spark: only the meta store is at work.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from msgspec import structs

from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record import EpochRecord
from holdfast.epoch.record_change import RecordChain
from holdfast.epoch.transaction import committing
from holdfast.meta import MetaStore
from holdfast.pstream import PUnit
from holdfast.state.manifest import FULL_INTERVAL, Manifest, Piece
from holdfast.state.routing import Routing

__all__ = ["CommitCost", "measure_commits", "to_json"]

_PARTITIONS = (2, 512)
_PIECES = 8
_EPOCHS = 256


@dataclass(frozen=True, slots=True)
class CommitCost:
    """Of commits of a state of so many partitions."""

    partitions: int
    whole: bool
    cpu_ms: float
    record_bytes: float

    def line(self) -> str:
        how = "whole records" if self.whole else "changes"
        return f"{self.partitions} partitions, {how}: {self.cpu_ms:.2f} ms of CPU, {self.record_bytes:,.0f} bytes"


def measure_commits(place: Path) -> list[CommitCost]:
    return [
        _measure(place / f"{partitions}-{whole}", partitions, whole=whole)
        for partitions in _PARTITIONS
        for whole in (True, False)
    ]


def to_json(costs: Sequence[CommitCost]) -> dict[str, Any]:
    rows = [{"partitions": c.partitions, "whole": c.whole, "cpu_ms": c.cpu_ms, "bytes": c.record_bytes} for c in costs]
    return {"query": "commits", "engine": "holdfast", "commits": rows}


def _measure(place: Path, partitions: int, *, whole: bool) -> CommitCost:
    meta, chain = MetaStore(place), None if whole else RecordChain()
    try:
        lease = meta.acquire("commits", "bench", 0.0, 1e9)
        record, spent = _record(partitions), []
        for epoch in range(1, _EPOCHS + 1):
            record = _changed(record, epoch)
            plan = EpochPlan({}, record.positions, record.done, (1, 1), record.routing)
            with committing(meta, lease, epoch) as transaction:
                transaction.plan(plan, 0.0)
            began = time.thread_time()
            with committing(meta, lease, epoch) as transaction:
                text = transaction.record(record, 0.0, chain=chain)
            if chain is not None and text is not None:
                chain.wrote(epoch, record, text, 0.0)
            spent.append(time.thread_time() - began)
        sizes = [len(commit.record) for commit in meta.commits("commits")]
    finally:
        meta.close()
    return CommitCost(partitions, whole, round(1e3 * mean(spent), 3), round(mean(sizes)))


def _record(partitions: int) -> EpochRecord:
    routing = Routing.even(partitions)
    parts = tuple(
        Manifest(routing.interval(part), tuple(_piece(f"{part}-{number}") for number in range(_PIECES)))
        for part in range(partitions)
    )
    return EpochRecord({"rows": {"row": 0}}, {"rows": False}, {"rows": 0}, {"totals": routing}, {"totals": parts})


def _changed(record: EpochRecord, epoch: int) -> EpochRecord:
    """With a new piece of one partition in the place of its oldest."""
    parts = list(record.state["totals"])
    at = epoch % len(parts)
    parts[at] = replace(parts[at], pieces=(*parts[at].pieces[1:], _piece(f"{epoch:012d}-{at}")))
    return structs.replace(record, positions={"rows": {"row": epoch}}, state={"totals": tuple(parts)})


def _piece(name: str) -> Piece:
    unit = PUnit(f"totals/keyed/{name}.arrow", 1_000, 20_000, "0123456789abcdef")
    return Piece("keyed", unit, FULL_INTERVAL, FULL_INTERVAL)
