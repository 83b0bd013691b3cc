"""What each scheme would take to recover and what it costs, from what was measured. Pure.

Recovery time is the gap that a reader of the output sees, at worst: from the last epoch before the failure to the first
one after it. That is what passes between two epochs anyhow, noticing the failure, and the steps of the recovery; the
failure comes just before the next commit, checkpoint or state sync. Where both hosts put out, nothing need be noticed.
Predictions are corrected by a factor per scheme that follows the gaps that were measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any

from holdfast.replica.schemes import Scheme, Step

__all__ = [
    "Calibration",
    "Cost",
    "Line",
    "Measured",
    "Prices",
    "costs",
    "recovery_cost",
    "recovery_seconds",
    "step_seconds",
    "unseen_seconds",
]

_GIGABYTE = 1e9
_MAY_BE_NONE = ("changed_bytes_per_second",)
_DIVISORS = ("replay_rows_per_second", "load_bytes_per_second", "checkpoint_seconds", "sync_seconds")
_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of a fragment that runs. Bytes of the input and of the output are those that travel.

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
    """What an epoch takes beside its rows. Epochs are replayed as they were planned, however small."""
    fetch_seconds: float = 0.0
    """What of an epoch its sources take to give its rows: a queue has them."""
    resume_seconds: float = 0.0
    """What a replay takes longer than its epochs took, because nothing was run there before."""
    checkpoint_seconds: float = 10.0
    sync_seconds: float = 2.0
    detection_seconds: float = 1.0
    """From the last sign of a host to when another one takes its seat."""
    idle_bytes: float = 6e8
    """Memory of a process with a warm session."""

    def to_json(self) -> dict[str, float | None]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, float | None]) -> Measured:
        """What is not known by name is passed over, what has a default may be left out; ValueError for nonsense."""
        names = {each.name for each in fields(cls)}
        given: dict[str, Any] = {name: each for name, each in value.items() if name in names}
        for name, each in given.items():
            if each is None and name in _MAY_BE_NONE:
                continue
            if isinstance(each, bool) or not isinstance(each, int | float) or not 0 <= each < math.inf:
                raise ValueError(f"{name} is {each!r}, not a number that can be measured")
            if each == 0 and name in _DIVISORS:
                raise ValueError(f"{name} is 0")
        missing = [each.name for each in fields(cls) if each.default is MISSING and each.name not in given]
        if missing:
            raise ValueError(f"{', '.join(missing)} missing")
        return cls(**given)


@dataclass(frozen=True, slots=True)
class Prices:
    """Money for a CPU and for a gigabyte of memory by the hour, and for each gigabyte sent or written."""

    cpu_hour: float = 0.04
    memory_hour: float = 0.005
    network: float = 0.01
    disk: float = 0.002


@dataclass(frozen=True, slots=True)
class Cost:
    """What the secondary takes: CPUs, bytes of memory, bytes per second on the network and to the disk, and all of it
    as money per hour."""

    cpus: float
    memory: float
    network: float
    disk: float
    money: float


def step_seconds(step: Step, seen: Measured, age: float, *, precise: bool = True, epochs: float | None = None) -> float:
    """How long one step takes if the state is `age` seconds old, or so many `epochs` where that is known. With gap
    recovery nothing is replayed."""
    if step is Step.DEPLOY:
        return seen.deploy_seconds
    if step is Step.SESSION:
        return seen.session_seconds
    if step is Step.PROGRAM:
        return seen.program_seconds
    if step is Step.LOAD_STATE:
        return seen.state_bytes / seen.load_bytes_per_second
    if step is Step.PUBLISH:
        # Two epochs may be in flight.
        return 2 * seen.commit_seconds
    if step in (Step.CONNECT_DOWNSTREAM, Step.CONNECT_UPSTREAM):
        return seen.connect_seconds
    if not precise:
        return 0.0
    rows = seen.rows_per_second * (age + seen.epoch_seconds)
    number = seen.epochs_per_second * (age + seen.epoch_seconds)
    if epochs is not None and number:
        rows, number = rows * epochs / number, epochs
    replay = rows / seen.replay_rows_per_second + number * seen.overhead_seconds
    if step is Step.REPLAY_UPSTREAM:
        replay += rows * seen.row_bytes / seen.load_bytes_per_second
    else:
        replay = max(0.0, replay - number * seen.fetch_seconds)
    return (seen.resume_seconds if number else 0.0) + replay


def unseen_seconds(scheme: Scheme, seen: Measured) -> float:
    """The part of the gap before a recovery begins: what passes between two commits, and noticing the failure."""
    return seen.rhythm_seconds + (0.0 if scheme.equipment.publishes else seen.detection_seconds)


def recovery_seconds(scheme: Scheme, seen: Measured, *, precise: bool = True, epochs: float | None = None) -> float:
    """The gap in the output: what is not seen of it, the steps of the recovery together, and the first commit after
    them. At worst or, afterwards, with as many `epochs` as were replayed."""
    age = seen.checkpoint_seconds if scheme.rank >= Scheme.DEPLOYED.rank else seen.sync_seconds
    steps = (step_seconds(step, seen, age, precise=precise, epochs=epochs) for step in scheme.recovery)
    return unseen_seconds(scheme, seen) + seen.commit_seconds + sum(steps)


def recovery_cost(scheme: Scheme, seen: Measured, prices: Prices) -> Cost:
    """What the secondary takes while nothing fails."""
    has = scheme.equipment
    input_rate = seen.rows_per_second * seen.row_bytes
    # A state that is followed is read again every so often; one that the secondary computes itself is not.
    changed = seen.changed_bytes_per_second
    sync = seen.state_bytes / seen.sync_seconds if changed is None else changed
    if not has.state or has.processes:
        sync = 0.0
    checkpoint = seen.state_bytes / seen.checkpoint_seconds if changed is None else changed
    cpus = 0.0
    memory = 0.0
    if has.session:
        cpus, memory = 0.01, seen.idle_bytes
    if has.state:
        memory += seen.state_bytes
    if has.input:
        cpus += 0.1 * seen.utilisation
        memory += input_rate * (seen.epoch_seconds if has.processes else seen.sync_seconds)
    if has.processes:
        cpus += 0.9 * seen.utilisation
    network = (input_rate if has.input else 0.0) + sync + (seen.output_bytes_per_second if has.publishes else 0.0)
    hourly = (
        cpus * prices.cpu_hour
        + memory / _GIGABYTE * prices.memory_hour
        + network * _HOUR / _GIGABYTE * prices.network
        + checkpoint * _HOUR / _GIGABYTE * prices.disk
    )
    return Cost(cpus, memory, network, checkpoint, hourly)


@dataclass(frozen=True, slots=True)
class Line:
    """A figure as a function of how many times the present state and load there is: `fixed` + n · `growing`."""

    fixed: float
    growing: float

    def at(self, times: float) -> float:
        return self.fixed + times * self.growing


@dataclass(frozen=True, slots=True)
class Calibration:
    """By how much recoveries took longer than predicted, smoothed: 1 if there was none yet."""

    factors: Mapping[Scheme, float] = field(default_factory=dict)
    weight: float = 0.3

    def seconds(self, seen: Measured, *, precise: bool = True) -> dict[Scheme, Line]:
        """Every scheme's recovery time. A scheme with fewer steps is never predicted to be slower: a factor that was
        learnt in a bad hour must not turn the wheel around."""
        made: dict[Scheme, Line] = {}
        nothing = replace(seen, state_bytes=0.0, rows_per_second=0.0)
        fixed = growing = 0.0
        for scheme in Scheme:
            factor = self.factors.get(scheme, 1.0)
            least = recovery_seconds(scheme, nothing, precise=precise)
            fixed = max(fixed, factor * least)
            growing = max(growing, factor * (recovery_seconds(scheme, seen, precise=precise) - least))
            made[scheme] = Line(fixed, growing)
        return made

    def observed(self, scheme: Scheme, predicted: float, took: float) -> Calibration:
        """After a recovery that was predicted, with no correction, to take `predicted` seconds."""
        if predicted <= 0:
            return self
        before = self.factors.get(scheme)
        ratio = min(10.0, max(0.1, took / predicted))
        if before is not None:
            factor = before + self.weight * (ratio - before)
        else:
            # One recovery is chance as much as the prediction is: but that it was too slow is believed at once.
            factor = ratio if ratio > 1 else (1 + ratio) / 2
        return replace(self, factors={**self.factors, scheme: factor})

    def to_json(self) -> dict[str, float]:
        """The factors by the names of the schemes."""
        return {scheme.value: factor for scheme, factor in self.factors.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, float]) -> Calibration:
        return cls({scheme: value[scheme.value] for scheme in Scheme if scheme.value in value})


def costs(seen: Measured, prices: Prices) -> dict[Scheme, Line]:
    """Every scheme's money per hour."""
    nothing = replace(
        seen,
        state_bytes=0.0,
        rows_per_second=0.0,
        utilisation=0.0,
        output_bytes_per_second=0.0,
        changed_bytes_per_second=None if seen.changed_bytes_per_second is None else 0.0,
    )
    made = {}
    for scheme in Scheme:
        least = recovery_cost(scheme, nothing, prices).money
        made[scheme] = Line(least, recovery_cost(scheme, seen, prices).money - least)
    return made
