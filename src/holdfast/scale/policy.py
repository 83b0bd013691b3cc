"""The scaling policy: from reports about an operator to what is to be done about it. Pure.

Out: a bottleneck is split so far that its utilisation comes under the threshold, along the measured load. A hot key
gets a partition of its own, once; then an obstacle is reported. In: partitions are merged when they would
stay well below the threshold together. What keeps it from going back and forth: the distance between the two marks,
the number of calm reports, and the pause after each change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from holdfast.engine.scaling_rules import Scaling
from holdfast.scale.detector import Streaks, Utilisation, observed
from holdfast.scale.splits import Split, split
from holdfast.state.key_load import LoadProfile
from holdfast.state.routing import Routing

__all__ = ["OperatorKind", "OperatorLoad", "PolicyState", "ScaleAction", "ScalingObstacle", "decide"]

_WORTH_MOVING = 0.8
"""With no more partitions to be had, load is moved between them if the heaviest then has at most this part of it."""


class OperatorKind(Enum):
    """What can be done with an operator: split by key, given more tasks, or nothing."""

    KEYED = "keyed"
    READING = "reading"
    SINGLE = "single"


@dataclass(frozen=True, slots=True)
class OperatorLoad:
    """A report about an operator: CPU use by partition and, of a keyed one, its bounds and the load of its keys."""

    operator: str
    kind: OperatorKind
    at: float
    use: Utilisation
    bounds: tuple[int, ...] = (0,)
    profile: LoadProfile = field(default_factory=LoadProfile)

    @property
    def partitions(self) -> int:
        return len(self.use.cpu)


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What the policy remembers of an operator. `reported` are the obstacles that were reported, each once; they are
    forgotten after `quiet` reports without a busy partition."""

    streaks: Streaks = field(default_factory=Streaks)
    changed_at: float = -math.inf
    reported: frozenset[str] = frozenset()
    quiet: int = 0


@dataclass(frozen=True, slots=True)
class ScaleAction:
    """Give the operator so many partitions, or so many tasks that read, which have no bounds."""

    operator: str
    before: int
    partitions: int
    bounds: tuple[int, ...] | None
    reason: str


@dataclass(frozen=True, slots=True)
class ScalingObstacle:
    """The operator is a bottleneck, and nothing can be done about it here."""

    operator: str
    partitions: int
    reason: str


def decide(
    state: PolicyState, load: OperatorLoad, scaling: Scaling, most: int
) -> tuple[PolicyState, ScaleAction | ScalingObstacle | None]:
    """What to remember and what to do after one more report. `most` bounds the partitions."""
    if load.at - state.changed_at < scaling.cooldown:
        return replace(state, streaks=Streaks()), None
    streaks = observed(state.streaks, load.use, scaling)
    quiet = 0 if any(streaks.above) else state.quiet + 1
    reported = state.reported if quiet < scaling.calm else frozenset[str]()
    state = replace(state, streaks=streaks, reported=reported, quiet=quiet)
    action: ScaleAction | ScalingObstacle | None = None
    if busy := streaks.bottlenecks(scaling):
        action = _out(load, busy, scaling, max(most, load.partitions))
    elif streaks.is_calm(scaling):
        action = _in(load, streaks, scaling)
    if isinstance(action, ScaleAction):
        return PolicyState(changed_at=load.at), action
    if isinstance(action, ScalingObstacle):
        if action.reason in state.reported:
            return state, None
        return replace(state, reported=state.reported | {action.reason}), action
    return state, None


def _out(load: OperatorLoad, busy: Sequence[int], scaling: Scaling, most: int) -> ScaleAction | ScalingObstacle:
    shares = load.use.shares
    worst = max(busy, key=lambda number: shares[number])
    what = "reading task" if load.kind is OperatorKind.READING else "partition"
    cause = (
        f"{what} {worst} used {shares[worst]:.2f} of a CPU in the last of {scaling.reports} reports in a row"
        f" above {scaling.threshold:g}"
    )

    def stuck(why: str) -> ScalingObstacle:
        return ScalingObstacle(
            load.operator, load.partitions, f"a {what} uses more than {scaling.threshold:g} of a CPU; {why}"
        )

    if load.kind is OperatorKind.SINGLE:
        return stuck("rows without a key cannot be split: group by a key first, or aggregate in two steps")
    if load.kind is OperatorKind.READING:
        if load.partitions >= most:
            return stuck(f"there are {most} of them, and no more are allowed")
        tasks = max(load.partitions + 1, math.ceil(load.use.total / scaling.threshold))
        return ScaleAction(load.operator, load.partitions, min(most, tasks), None, cause)
    routing = Routing(load.bounds)
    single = [number for number in busy if (own := routing.interval(number)).hi - own.lo == 1]
    if len(single) == len(busy):
        names = {key.position: key.key for key in load.profile.heavy}
        key = names.get(load.bounds[worst], "at one position")
        return stuck(f"it has only key {key}, which cannot be split further")
    if load.partitions >= most:
        moved = split(load.profile, load.partitions)
        if moved.bounds != load.bounds and moved.heaviest * load.use.total <= _WORTH_MOVING * shares[worst]:
            return _scale(load, moved, f"{cause}; load is moved between the existing partitions")
        return stuck(f"there are {most} of them, and no more are allowed")
    made = split(load.profile, load.partitions + 1)
    while len(made.bounds) < most and _rest(made) * load.use.total > scaling.threshold:
        made = split(load.profile, len(made.bounds) + 1)
    return _scale(load, made, cause)


def _rest(made: Split) -> float:
    """The part of the load that the heaviest partition will have, but for those of hot keys alone."""
    alone = {key.position for key in made.hot if key.alone}
    pairs = zip(made.bounds, made.shares, strict=True)
    return max((share for bound, share in pairs if bound not in alone), default=0.0)


def _in(load: OperatorLoad, streaks: Streaks, scaling: Scaling) -> ScaleAction | None:
    calm = f"all {load.partitions} together used at most {streaks.peak:.2f} of a CPU in {streaks.calm} reports in a row"
    if load.kind is OperatorKind.READING:
        tasks = max(scaling.least, math.ceil(streaks.peak / scaling.low_mark))
        return ScaleAction(load.operator, load.partitions, tasks, None, calm) if tasks < load.partitions else None
    if load.kind is OperatorKind.SINGLE:
        return None
    for partitions in range(scaling.least, load.partitions):
        made = split(load.profile, partitions)
        if made.heaviest * streaks.peak <= scaling.low_mark:
            return _scale(load, made, calm)
    return None


def _scale(load: OperatorLoad, made: Split, cause: str) -> ScaleAction:
    # A key that is alone already is no news.
    routing = Routing(load.bounds)
    owned = {own.lo for number in range(load.partitions) if (own := routing.interval(number)).hi - own.lo == 1}
    alone = [str(key) for key in made.hot if key.alone and key.position not in owned]
    mixed = [str(key) for key in made.hot if not key.alone]
    notes = []
    if alone:
        notes.append(f"hot: {', '.join(alone)}; a partition of its own, which cannot be split further")
    if mixed:
        notes.append(f"hot: {', '.join(mixed)}; there are too few partitions to give it one of its own")
    reason = "; ".join([cause, *notes])
    return ScaleAction(load.operator, load.partitions, len(made.bounds), made.bounds, reason)
