"""Recovery in four phases, each timed: the progress, the request to upstream, the data, and the replay.

1. *progress*: the last commit and the epochs that were planned after it, from the meta store.
2. *upstream request*: from which position each source must deliver its rows again, and which p-units of p-streams those
   are.
3. *data*: the p-units of the last commit's state and of the planned epochs, verified by their checksums, in parallel.
   Nothing else is loaded.
4. *replay*: the planned epochs run again, exactly as planned. After the last of them, the fragment is where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.connect.base import Position
from holdfast.durability.footprint_recovery import Gathered
from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record import EpochRecord
from holdfast.errors import HoldfastError
from holdfast.plan.program import Program
from holdfast.pstream import PUnit, stream_store
from holdfast.pstream.link import StreamPart, StreamSource
from holdfast.pstream.punit import open_table
from holdfast.store import DirectoryStore

__all__ = ["PHASES", "Needed", "Recovery", "RecoveryReport", "needed_units"]

PHASES = ("progress", "upstream request", "data", "replay")
_LOADERS = 4


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The recovery of a fragment. `seconds` has the phases in order; `replayed` is the number of epochs."""

    fragment: str
    epoch: int
    seconds: Mapping[str, float]
    units: int
    bytes: int
    replayed: int
    positions: Mapping[str, Position]
    gathered: tuple[Gathered, ...] = ()
    """Operators whose state was gathered from footprints."""
    loading: float = 0.0
    """What of the seconds went into reading p-units."""

    @property
    def total(self) -> float:
        """The seconds of all phases."""
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True)
class Needed:
    """A p-unit without which `operator` cannot run `epoch`."""

    store: DirectoryStore
    unit: PUnit
    operator: str
    epoch: int


@dataclass(slots=True)
class Recovery:
    """Follows one recovery. `enter` begins a phase, `done` ends the last one."""

    clock: Callable[[], float]
    seconds: dict[str, float] = field(default_factory=dict)
    units: int = 0
    bytes: int = 0
    loading: float = 0.0
    _phase: str | None = None
    _since: float = 0.0

    def enter(self, phase: str) -> None:
        self._close()
        self._phase, self._since = phase, self.clock()

    def _close(self) -> None:
        if self._phase is not None:
            self.seconds[self._phase] = self.clock() - self._since
            self._phase = None

    def load(self, needed: Sequence[Needed]) -> None:
        """Check p-units, several at a time."""
        self.units, self.bytes = len(needed), sum(one.unit.bytes for one in needed)
        began = self.clock()
        with ThreadPoolExecutor(_LOADERS) as pool:
            for _ in pool.map(_check, needed):
                pass
        self.loading = self.clock() - began

    def done(
        self,
        fragment: str,
        epoch: int,
        replayed: int,
        positions: Mapping[str, Position],
        gathered: Sequence[Gathered] = (),
    ) -> RecoveryReport:
        self._close()
        return RecoveryReport(
            fragment,
            epoch,
            dict(self.seconds),
            self.units,
            self.bytes,
            replayed,
            positions,
            tuple(gathered),
            self.loading,
        )


def _check(needed: Needed) -> None:
    try:
        open_table(needed.store, needed.unit)
    except HoldfastError as error:
        raise error.at(operator=needed.operator, epoch=needed.epoch) from error.__cause__


def needed_units(
    program: Program,
    record: EpochRecord,
    committed: int,
    planned: Mapping[int, EpochPlan],
    state: DirectoryStore,
    root: Path,
) -> list[Needed]:
    """The p-units without which the fragment cannot go on after its last commit: of its state, of p-streams that
    planned epochs read, and of lookup tables that they are joined with."""
    needed = [
        Needed(state, piece.punit, name, committed + 1)
        for name, parts in record.state.items()
        for manifest in parts
        for piece in manifest.pieces
    ]
    for epoch, plan in planned.items():
        for source in program.sources:
            if isinstance(source.source, StreamSource):
                store = stream_store(root, source.source.stream, source.source.sync)
                for piece in plan.slices_of(source.name):
                    needed += [Needed(store, unit, source.name, epoch) for unit in StreamPart.of(piece).units]
        for name, version in plan.tables.items():
            use = program.lookups.get(name)
            if use is not None and use.versions is not None:
                needed.append(Needed(use.versions, version.unit, name, epoch))
    return list({(str(one.store.root), one.unit.name): one for one in needed}.values())
