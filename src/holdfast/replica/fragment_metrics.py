"""Metrics of a running fragment, from which recovery time and cost are predicted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields

import msgspec

__all__ = ["FragmentMetrics"]

_MAY_BE_NONE = ("changed_bytes_per_second",)
_DIVISORS = ("replay_rows_per_second", "load_bytes_per_second", "checkpoint_seconds", "sync_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentMetrics:
    """Bytes of the input and of the output are those that travel.

    `checkpoint_seconds` and `sync_seconds` are how old a checkpoint and a state at the secondary can get.
    `utilisation` is how many CPUs the primary uses."""

    state_bytes: float
    rows_per_second: float
    replay_rows_per_second: float
    load_bytes_per_second: float
    utilisation: float
    row_bytes: float = 100.0
    output_bytes_per_second: float = 0.0
    changed_bytes_per_second: float | None = None
    """How much of the state changes, if only that is written and followed; None: always all of it."""
    deploy_seconds: float = 2.0
    session_seconds: float = 4.0
    program_seconds: float = 0.5
    connect_seconds: float = 0.05
    commit_seconds: float = 0.02
    epoch_seconds: float = 0.5
    rhythm_seconds: float = 0.5
    """From one commit to the next, as long as there is input."""
    epochs_per_second: float = 0.0
    overhead_seconds: float = 0.0
    """What an epoch takes in addition to its rows. Epochs are replayed as they were planned, however small."""
    fetch_seconds: float = 0.0
    """How much of an epoch its sources take to deliver its rows: a queue has them already."""
    resume_seconds: float = 0.0
    """How much longer a replay takes than its epochs took, because nothing has run there before."""
    resume_standing_seconds: float = 0.0
    """The same where the tasks stand already, and have only not run an epoch yet."""
    checkpoint_seconds: float = 10.0
    sync_seconds: float = 2.0
    detection_seconds: float = 1.0
    """From the last heartbeat of a host until another one takes its seat."""
    idle_bytes: float = 6e8
    """Memory of a process with a warm session."""
    spreads: Mapping[str, float] = field(default_factory=dict)
    """By how much some of these seconds vary from one time to the next, by name: standard deviations."""

    @property
    def input_bytes_per_second(self) -> float:
        return self.rows_per_second * self.row_bytes

    def written_bytes_per_second(self, every_seconds: float) -> float:
        """What it takes to have a copy of the state that is at most so old: what changes or, if that is not known
        apart, all of it every time."""
        changed = self.changed_bytes_per_second
        return self.state_bytes / every_seconds if changed is None else changed

    def to_json(self) -> dict[str, float | Mapping[str, float] | None]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> FragmentMetrics:
        """Unknown names are ignored, what has a default may be missing; ValueError for what cannot be measured."""
        known = {item.name for item in fields(cls)}
        given = {name: figure for name, figure in value.items() if name in known}
        spreads = given.pop("spreads", {})
        if not isinstance(spreads, Mapping):
            raise ValueError(f"spreads is {spreads!r}, not an object with the name and the spread of each")
        spreads = {name: figure for name, figure in spreads.items() if name in known}
        for name, figure in (*given.items(), *((f"spreads.{name}", figure) for name, figure in spreads.items())):
            if figure is None and name in _MAY_BE_NONE:
                continue
            if isinstance(figure, bool) or not isinstance(figure, int | float) or not 0 <= figure < math.inf:
                raise ValueError(f"{name} is {figure!r}, not a number that can be measured")
            if figure == 0 and name in _DIVISORS:
                raise ValueError(f"{name} is 0")
        needed = [item.name for item in fields(cls) if item.default is MISSING and item.default_factory is MISSING]
        missing = [name for name in needed if name not in given]
        if missing:
            raise ValueError(f"{', '.join(missing)} missing")
        return msgspec.convert({**given, "spreads": spreads}, cls)
