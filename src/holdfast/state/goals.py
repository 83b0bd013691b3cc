"""Which windows get a new footprint now, so that a recovery stays short. Pure.

A recovery reads the log from T on, the oldest of the last footprints, and replays the input since. T is a minimum: to
checkpoint some window changes nothing unless all windows with older footprints get new ones as well. So each answer is
"all windows older than this epoch", and the question is how far to go.

| goal | goes as far as needed for | knows |
|---|---|---|
| by size | at most so many records to read back and so many rows to replay | nothing but the log |
| by benefit | a recovery within so many seconds, at the least cost | what recovery and checkpoints take, and the pace |

A checkpoint moves a record to the end of the log and adds none to what is read back, so no goal gets the records
below the number of windows. A target out of reach gets as near to it as it can be, and `why` says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest

from holdfast.plurals import counted
from holdfast.state.extent import LogExtent, LogMark

__all__ = [
    "FootprintCosts",
    "FootprintRules",
    "Goal",
    "LogPace",
    "goal_by_age",
    "goal_by_benefit",
    "goal_by_size",
    "predicted_recovery",
]

_WEIGHT = 0.3
"""How much one measurement counts against those before it."""


@dataclass(frozen=True, slots=True)
class FootprintRules:
    """When windows get a new footprint: oldest first, while recovery would read more than `most_records` (Q) or replay
    more than `most_rows` (U), or, where neither is set, as late as a recovery within `recovery` seconds allows. No more
    than `spend` (CI) out of every `period` (CP) seconds go into that.

    With `only_open` none get one but those that open or close.
    """

    most_records: int | None = None
    most_rows: int | None = None
    spend: float = 0.0
    period: float = 0.0
    recovery: float | None = None
    only_open: bool = False


@dataclass(frozen=True, slots=True)
class Goal:
    """Give a new footprint to the windows whose last one is older than `before`, oldest first.

    Those of classes up to `spare` are left out, they close by themselves soon enough. `windows` is how many remain: an
    upper bound, because some may close or leave a footprint before it is their turn.
    """

    before: int
    windows: int
    why: str
    spare: int | None = None


@dataclass(frozen=True, slots=True)
class FootprintCosts:
    """What things take on the running system, in seconds. Zero is what was not measured yet and counts for nothing.

    `load` is per record read back, `replay` per input row, `epoch` per epoch replayed whatever its rows, `check` per
    window checkpointed. `fixed` is what a recovery takes in any case.
    """

    load: float
    replay: float
    epoch: float
    check: float
    fixed: float = 0.0

    def updated(
        self,
        *,
        load: float | None = None,
        replay: float | None = None,
        epoch: float | None = None,
        check: float | None = None,
    ) -> FootprintCosts:
        """With new measurements, smoothed: a single slow one must not start a wave of checkpoints."""
        return replace(
            self,
            load=_smoothed(self.load, load),
            replay=_smoothed(self.replay, replay),
            epoch=_smoothed(self.epoch, epoch),
            check=_smoothed(self.check, check),
        )


@dataclass(frozen=True, slots=True)
class LogPace:
    """How the system moves, per second: input rows, log records, epochs, and the panes that the watermark closes.

    `share` is the part of the time that may go into checkpoints, the paper's CI/CP. `closed` is the last pane that the
    watermark closed; where it is not known, all panes below the first with windows are taken to be closed, which spares
    a pane too early if the panes before it are empty.
    """

    rows: float
    records: float
    epochs: float
    classes: float = 0.0
    share: float = 1.0
    closed: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"the share of the time for checkpoints must be above 0 and at most 1, not {self.share:g}")


def predicted_recovery(extent: LogExtent, costs: FootprintCosts) -> float:
    """The seconds a recovery would take now."""
    return _recovery(costs, extent.q, extent.u, extent.epoch - extent.oldest)


def goal_by_size(extent: LogExtent, most_records: int | None, most_rows: int | None) -> Goal | None:
    """Checkpoint the oldest windows while there are more than `most_records` to read back or `most_rows` to replay.

    The rows can always be brought down, the records only to the number of windows. Where that is too many, the rows
    come first and then the least records, without windows whose checkpoint gains nothing.
    """
    records = math.inf if most_records is None else most_records
    rows = math.inf if most_rows is None else most_rows
    if extent.q <= records and extent.u <= rows:
        return None
    near = [prefix for prefix in _prefixes(extent) if prefix.u <= rows]
    enough = [prefix for prefix in near if prefix.q <= records]
    best = enough[0] if enough else min(near, key=lambda prefix: prefix.q, default=None)
    if best is None or not best.windows:
        return None
    causes = []
    if extent.q > records:
        causes.append(f"{counted(extent.q, 'record')} to read back of {records:,}")
    if extent.u > rows:
        causes.append(f"{counted(extent.u, 'row')} to replay of {rows:,}")
    if not enough:
        causes.append(f"{counted(best.q, 'record')} at best")
    return Goal(best.before, best.windows, f"{', '.join(causes)}: {_older(best.windows, best.before)}")


def goal_by_age(extent: LogExtent, most_epochs: int) -> Goal | None:
    """The windows of the older half, once more epochs than that would be replayed."""
    epochs = extent.epoch - extent.oldest
    if epochs <= most_epochs:
        return None
    before = extent.epoch - most_epochs // 2
    windows = extent.from_epoch(before)[2]
    return Goal(before, windows, f"{counted(epochs, 'epoch')} to replay of {most_epochs:,}: {_older(windows, before)}")


def goal_by_benefit(extent: LogExtent, costs: FootprintCosts, pace: LogPace, target: float) -> Goal | None:
    """Keep a recovery within `target` seconds with the fewest checkpoints, which also means as late as possible.

    The windows of an epoch have a deadline: the time at which a recovery that begins with that epoch would take longer
    than the target. What closes or leaves a footprint before its deadline costs nothing. So nothing is done while all
    deadlines can still be met, with one epoch to spare, by a start at a later time. Otherwise the goal goes to the last
    epoch whose deadline is pressing. A pressing deadline may be a far one: many windows take long at a small share.
    """
    classes = sorted({name for mark in extent.marks for name in mark.live})
    outlook = _RecoveryOutlook(extent, costs, pace, target, classes)
    options = list(outlook.options())
    pressing = [option for option in options if option.without > target]
    if not pressing:
        return None
    met = [option for option in pressing if option.recovery <= target]
    best = met[-1] if met else min(options, key=lambda option: option.soon)
    if best.soon >= outlook.now + outlook.growth * outlook.step:
        return None
    spare = outlook.spare
    windows = sum(_staying(mark, spare) for mark in extent.marks if mark.epoch < best.before)
    if not windows:
        return None
    # What is best may come before the deadline that is missed.
    due = best if met or best.recovery > target else min(pressing, key=lambda option: option.recovery)
    would = f"recovery would take {outlook.now + outlook.growth * due.horizon:.3g} s of {target:.3g} s"
    if not met:
        would += f" and cannot be brought within it, {due.recovery:.3g} s at best"
    return Goal(best.before, windows, f"{would}: {_older(windows, best.before)}", spare)


@dataclass(frozen=True, slots=True)
class _MarkPrefix:
    """The windows of the marks up to `last`, and what q, u and T would be if they got new footprints now."""

    before: int
    windows: int
    q: int
    u: int
    oldest: int
    last: LogMark | None = None


def _prefixes(extent: LogExtent) -> Iterator[_MarkPrefix]:
    """From no windows to all; a step per mark that has some. As `LogExtent.from_epoch`, for all epochs at once."""
    yield _MarkPrefix(extent.oldest, 0, extent.q, extent.u, extent.oldest)
    live = [place for place, mark in enumerate(extent.marks) if mark.live]
    read = list(accumulate(mark.records for mark in extent.marks[::-1]))[::-1]
    replayed = [*list(accumulate(mark.rows for mark in extent.marks[:0:-1]))[::-1], 0]
    windows = 0
    for place, following in zip_longest(live, live[1:]):
        last = extent.marks[place]
        windows += last.windows
        if following is None:
            yield _MarkPrefix(last.epoch + 1, windows, windows, 0, extent.epoch, last)
        else:
            oldest = extent.marks[following].epoch
            yield _MarkPrefix(last.epoch + 1, windows, read[following] + windows, replayed[following], oldest, last)


@dataclass(frozen=True, slots=True)
class _GoalOption:
    """A prefix as a goal, with what is predicted for the `horizon`, the time it takes to get there.

    `without` is the recovery then if the last mark were left out, `recovery` with all of it. `soon` is the recovery
    after one epoch as if that were enough to get there: it compares options apart from how long they take.
    """

    before: int
    horizon: float
    without: float
    recovery: float
    soon: float


@dataclass(frozen=True, slots=True)
class _RecoveryOutlook:
    """How the recovery time moves if nothing is done, and what could be done."""

    extent: LogExtent
    costs: FootprintCosts
    pace: LogPace
    target: float
    classes: Sequence[int]

    @property
    def now(self) -> float:
        return predicted_recovery(self.extent, self.costs)

    @property
    def replaying(self) -> float:
        """Seconds of replay that each second adds while T stays."""
        return self.costs.replay * self.pace.rows + self.costs.epoch * self.pace.epochs

    @property
    def growth(self) -> float:
        """Seconds of recovery that each second adds while T stays."""
        return self.costs.load * self.pace.records + self.replaying

    @property
    def step(self) -> float:
        """Seconds until the next epoch: nothing is seen or done sooner."""
        return 1 / self.pace.epochs if self.pace.epochs > 0 else 0.0

    @property
    def spare(self) -> int | None:
        """The last class that closes before the oldest windows are due. Goals are made anew with each epoch, and the
        oldest windows are the ones that this one gets to."""
        return self._closing(self.now)

    def options(self) -> Iterator[_GoalOption]:
        prefixes = list(_prefixes(self.extent))
        recovery = self.now
        needed = 0
        for prefix in prefixes[1:]:
            assert prefix.last is not None
            needed += _staying(prefix.last, self._closing(recovery))
            horizon = needed * self.costs.check / self.pace.share + self.step
            without = recovery + self.growth * horizon
            q = prefix.q - prefix.windows + needed
            recovery = _recovery(self.costs, q, prefix.u, self.extent.epoch - prefix.oldest)
            # With new footprints for all windows, T is the next epoch and there is one epoch less to replay.
            gained = self.replaying * self.step if prefix is prefixes[-1] else 0.0
            after, soon = (recovery + self.growth * time - gained for time in (horizon, self.step))
            yield _GoalOption(prefix.before, horizon, without, after, soon)

    def _closing(self, recovery: float) -> int | None:
        """The last class that closes before `recovery` grows beyond the target, or with the next epoch."""
        if self.pace.classes <= 0 or not self.classes:
            return None
        left = self.target - recovery
        due = left / self.growth if self.growth > 0 else math.copysign(math.inf, left)
        at_once = self.pace.classes / self.pace.epochs if self.pace.epochs > 0 else 0.0
        closed = self.classes[0] - 1 if self.pace.closed is None else self.pace.closed
        closing = closed + max(self.pace.classes * due, at_once)
        return math.floor(min(closing, self.classes[-1])) if closing >= self.classes[0] else None


def _recovery(costs: FootprintCosts, q: float, u: float, epochs: float) -> float:
    return costs.fixed + costs.load * q + costs.replay * u + costs.epoch * epochs


def _staying(mark: LogMark, spare: int | None) -> int:
    return mark.windows if spare is None else sum(n for name, n in mark.live.items() if name > spare)


def _smoothed(before: float, new: float | None) -> float:
    if new is None:
        return before
    return before + _WEIGHT * (new - before) if before else new


def _older(windows: int, before: int) -> str:
    return f"{windows:,} window{'s' * (windows != 1)} older than epoch {before}"
