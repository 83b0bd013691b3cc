"""What a running host observes, condensed into the input of predictions. Pure: observations in, a new account out.

Rates are ratios of sums that decay with time, so that epochs of any length have the right weight. Rare events, such as
a start or a checkpoint, are smoothed per occurrence. The account can be stored, and the next process continues with it.
Impossible values, such as seconds of a clock that went backwards, are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from holdfast.replica.fragment_metrics import FragmentMetrics

__all__ = [
    "CheckpointSaved",
    "EpochMeasured",
    "Idled",
    "MetricsTracker",
    "Observation",
    "Resident",
    "Stage",
    "StateLoaded",
    "Took",
]

Stage = Literal[
    "deploy", "session", "program", "connect", "commit", "detection", "sync", "first_epoch", "resume",
    "resume_standing",
]  # fmt: skip
"""Starting a process, opening a session, loading the program, connecting to inputs or outputs, a commit, noticing a
failure; how old a state that is followed got before the next one came; what the first epoch of a process takes longer
than those after it; and what a replay takes longer than its epochs
do in passing, since nothing was run there before, without tasks that stand and with them."""

_MOST = 1e18
_SHORTEST_SECONDS = 1e-3
_LEAST_SECONDS = 1e-6
_ASSUMED_LOAD_BYTES_PER_SECOND = 2e8
_SLOW_SECONDS = 600.0
_FEWEST_EPOCHS = 1e-6
"""Epochs that have faded to less than this say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochMeasured:
    """`seconds` is the time since the commit before, so that all of them add up to the time that has passed;
    `busy_seconds` is how long the epoch took to run and commit, `fetch_seconds` what of it sources took to give their
    rows, `cpu_seconds` what it used of CPUs. Bytes of input and output are those that travel; `state_bytes` is all of
    the state after it, `changed_bytes` what it wrote of it."""

    seconds: float
    busy_seconds: float
    cpu_seconds: float
    rows: float
    input_bytes: float
    output_bytes: float
    state_bytes: float
    changed_bytes: float
    fetch_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Idled:
    """So many seconds passed without input, and without an epoch that counts them."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """It took `seconds` to write so many bytes; the checkpoint before was `age` seconds old when that began."""

    bytes: float
    seconds: float
    age: float


@dataclass(frozen=True, slots=True)
class StateLoaded:
    """A checkpoint was read."""

    bytes: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Took:
    what: Stage
    seconds: float


@dataclass(frozen=True, slots=True)
class Resident:
    """Memory of a process with a warm session and no state."""

    bytes: float


Observation = EpochMeasured | Idled | CheckpointSaved | StateLoaded | Took | Resident


@dataclass(frozen=True, slots=True)
class Speed:
    """An amount and the seconds it took, both smoothed: large pieces count for more than small ones."""

    amount: float = 0.0
    seconds: float = 0.0

    def after(self, amount: float, seconds: float, weight: float) -> Speed:
        if _sane(amount) < 1 or _sane(seconds) < _LEAST_SECONDS:
            return self  # too little to say anything
        share = 1 - weight if self.seconds else 0.0
        return Speed(share * self.amount + _sane(amount), share * self.seconds + _sane(seconds))

    @property
    def per_second(self) -> float | None:
        """None if there was nothing yet."""
        return self.amount / self.seconds if self.amount and self.seconds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsTracker:
    """The account. Rates are those of the last `within` seconds, roughly; of what happens now and then, the last
    occasion counts by `weight`. What is missing in a stored one starts again."""

    within: float = 10.0
    weight: float = 0.3
    seconds: float = 0.0
    busy_seconds: float = 0.0
    fetch_seconds: float = 0.0
    cpu_seconds: float = 0.0
    rows: float = 0.0
    input_bytes: float = 0.0
    output_bytes: float = 0.0
    changed_bytes: float = 0.0
    epochs: float = 0.0
    """How many, faded like the sums above."""
    state_bytes: float | None = None
    row_bytes: float | None = None
    capacity: float = 0.0
    """The best rows per busy second of late: a small epoch is slow by its overhead, and says little of a replay."""
    loaded: Speed = field(default_factory=Speed)
    saved: Speed = field(default_factory=Speed)
    checkpoint_seconds: float | None = None
    idle_bytes: float | None = None
    took: Mapping[str, float] = field(default_factory=dict)
    variances: Mapping[str, float] = field(default_factory=dict)
    """Of what happens now and then: how far it was from what was usual, squared."""
    rhythms: float = 0.0
    rhythm_seconds: float = 0.0
    rhythm_squares: float = 0.0
    """How many times between commits, their sum without waiting for input, and that of their squares. They fade slowly:
    a single epoch that was late is no reason to take another scheme."""
    longest_rhythm: float = 1.0
    """Commits that come less often wait for input, and not for this fragment."""

    def after(self, observation: Observation) -> MetricsTracker:
        """The account with one more observation."""
        if isinstance(observation, EpochMeasured):
            return self._after_epoch(observation)
        if isinstance(observation, Idled):
            return self._faded(_sane(observation.seconds))
        if isinstance(observation, CheckpointSaved):
            age = _sane(observation.age) + _sane(observation.seconds)
            return replace(
                self,
                saved=self.saved.after(observation.bytes, observation.seconds, self.weight),
                checkpoint_seconds=self._smoothed(self.checkpoint_seconds, age),
                variances=self._varying("checkpoint", self.checkpoint_seconds, age),
            )
        if isinstance(observation, StateLoaded):
            return replace(self, loaded=self.loaded.after(observation.bytes, observation.seconds, self.weight))
        if isinstance(observation, Resident):
            return replace(self, idle_bytes=self._smoothed(self.idle_bytes, observation.bytes))
        what, before = observation.what, self.took.get(observation.what)
        known = self._smoothed(before, observation.seconds)
        if known is None:
            return self
        varying = self._varying(what, before, observation.seconds)
        return replace(self, took={**self.took, what: known}, variances=varying)

    def measured(self) -> FragmentMetrics | None:
        """What predictions are made of; None before the first epoch that took any time."""
        if self.state_bytes is None or self.seconds < _SHORTEST_SECONDS:
            return None
        stages = get_args(Stage)
        known: dict[str, float | None] = {f"{name}_seconds": took for name, took in self.took.items() if name in stages}
        first = known.pop("first_epoch_seconds", None)
        known.setdefault("resume_seconds", first)  # until there was a takeover
        known["row_bytes"], known["idle_bytes"] = self.row_bytes, self.idle_bytes
        known["checkpoint_seconds"] = self.checkpoint_seconds
        known["epoch_seconds"] = self.busy_seconds / self.epochs if self.epochs else None
        known["fetch_seconds"] = self.fetch_seconds / self.epochs if self.epochs else None
        known["epochs_per_second"] = self.epochs / self.seconds
        known["overhead_seconds"] = self._overhead()
        known["rhythm_seconds"] = self._rhythm(known["epoch_seconds"] or 0.0)
        for what in ("checkpoint_seconds", "sync_seconds"):
            if (age := known.get(what)) is not None:
                known[what] = max(_SHORTEST_SECONDS, age)
        return FragmentMetrics(
            state_bytes=self.state_bytes,
            rows_per_second=self.rows / self.seconds,
            replay_rows_per_second=self._replay_speed(),
            load_bytes_per_second=self.loaded.per_second or self.saved.per_second or _ASSUMED_LOAD_BYTES_PER_SECOND,
            utilisation=self.cpu_seconds / self.seconds,
            output_bytes_per_second=self.output_bytes / self.seconds,
            changed_bytes_per_second=self.changed_bytes / self.seconds,
            spreads=self._spreads(),
            **{name: value for name, value in known.items() if value is not None},
        )

    def _after_epoch(self, observation: EpochMeasured) -> MetricsTracker:
        rows, busy, size = _sane(observation.rows), _sane(observation.busy_seconds), _sane(observation.input_bytes)
        passed = _sane(observation.seconds)
        before = self._faded(passed)
        counts = self.state_bytes is not None  # there was a commit before
        rhythm = counts * max(busy, min(passed, self.longest_rhythm))
        return replace(
            before,
            rhythms=before.rhythms + counts,
            rhythm_seconds=before.rhythm_seconds + rhythm,
            rhythm_squares=before.rhythm_squares + rhythm * rhythm,
            busy_seconds=before.busy_seconds + busy,
            fetch_seconds=before.fetch_seconds + min(busy, _sane(observation.fetch_seconds)),
            cpu_seconds=before.cpu_seconds + _sane(observation.cpu_seconds),
            rows=before.rows + rows,
            input_bytes=before.input_bytes + size,
            output_bytes=before.output_bytes + _sane(observation.output_bytes),
            changed_bytes=before.changed_bytes + _sane(observation.changed_bytes),
            epochs=before.epochs + 1,
            state_bytes=_sane(observation.state_bytes),
            row_bytes=self._smoothed(self.row_bytes, size / rows) if rows >= 1 else self.row_bytes,
            capacity=max(before.capacity, rows / busy if busy >= _SHORTEST_SECONDS else 0.0),
        )

    def _faded(self, seconds: float) -> MetricsTracker:
        """After so many seconds in which there was nothing."""
        share, slowly = math.exp(-seconds / self.within), math.exp(-seconds / _SLOW_SECONDS)
        return replace(
            self,
            seconds=share * self.seconds + seconds,
            busy_seconds=share * self.busy_seconds,
            fetch_seconds=share * self.fetch_seconds,
            cpu_seconds=share * self.cpu_seconds,
            rows=share * self.rows,
            input_bytes=share * self.input_bytes,
            output_bytes=share * self.output_bytes,
            changed_bytes=share * self.changed_bytes,
            epochs=share * self.epochs,
            rhythms=slowly * self.rhythms,
            rhythm_seconds=slowly * self.rhythm_seconds,
            rhythm_squares=slowly * self.rhythm_squares,
            capacity=slowly * self.capacity,
        )

    def _rhythm(self, epoch: float) -> float | None:
        if self.epochs < _FEWEST_EPOCHS:
            return None
        return max(epoch, min(self.seconds / self.epochs, self.longest_rhythm))

    def _spreads(self) -> dict[str, float]:
        """Standard deviations by the names of the figures."""
        found = {f"{what}_seconds": math.sqrt(square) for what, square in self.variances.items()}
        first = found.pop("first_epoch_seconds", 0.0)
        if "resume" not in self.took and first:
            found["resume_seconds"] = first
        if self.rhythms >= _FEWEST_EPOCHS:
            mean = self.rhythm_seconds / self.rhythms
            found["rhythm_seconds"] = math.sqrt(max(0.0, self.rhythm_squares / self.rhythms - mean * mean))
        return found

    def _replay_speed(self) -> float:
        """Rows are replayed as fast as in the best epoch of late. The time of a replay itself says little: its epochs
        may be small, and the first ones slow, which are the overhead and `resume`."""
        usual = self.rows / self.busy_seconds if self.busy_seconds >= _SHORTEST_SECONDS else 0.0
        return max(1.0, usual, self.capacity)

    def _overhead(self) -> float:
        """What epochs take in addition to their rows at the speed of a replay."""
        if self.epochs < _FEWEST_EPOCHS:
            return 0.0
        return max(0.0, self.busy_seconds - self.rows / self._replay_speed()) / self.epochs

    def _varying(self, what: str, before: float | None, now: float) -> Mapping[str, float]:
        """The variances after something took so long; the first time says nothing of how it varies."""
        if before is None or not math.isfinite(now):
            return self.variances
        off = _sane(now) - before
        square = (1 - self.weight) * (self.variances.get(what, 0.0) + self.weight * off * off)
        return {**self.variances, what: square}

    def _smoothed(self, before: float | None, now: float) -> float | None:
        if not math.isfinite(now):
            return before
        return _sane(now) if before is None else before + self.weight * (_sane(now) - before)


def _sane(value: float) -> float:
    """Not negative, and so small that sums and squares of it are numbers."""
    return min(_MOST, max(0.0, value)) if math.isfinite(value) else 0.0
