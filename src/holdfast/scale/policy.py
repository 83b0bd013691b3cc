"""The scaling policy: from reports about an operator to what is to be done about it. Pure.

Out: a bottleneck is split so far that its utilisation comes under the threshold, along the measured load. A hot key
gets a partition of its own, once; then it is said that no more can be done. In: partitions are merged when they would
stay well below the threshold together. What keeps it from going back and forth: the distance between the two marks,
the number of calm reports, and the pause after each change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from holdfast.scale.detector import Streaks, Utilisation, observed
from holdfast.scale.settings import Scaling
from holdfast.scale.splits import Split, split
from holdfast.state.load import LoadProfile
from holdfast.state.routing import Routing

__all__ = ["Kind", "Measured", "OperatorState", "Scale", "Stuck", "decide"]

_WORTH_MOVING = 0.8
"""With no more partitions to be had, load is moved between them if the heaviest then has at most this part of it."""


class Kind(Enum):
    """What can be done with an operator: split by key, given more tasks, or nothing."""

    KEYED = "keyed"
    READING = "reading"
    SINGLE = "single"


@dataclass(frozen=True, slots=True)
class Measured:
    """A report about an operator: CPU use by partition and, of a keyed one, its bounds and the load of its keys."""

    operator: str
    kind: Kind
    at: float
    use: Utilisation
    bounds: tuple[int, ...] = (0,)
    profile: LoadProfile = field(default_factory=LoadProfile)

    @property
    def partitions(self) -> int:
        return len(self.use.cpu)


@dataclass(frozen=True, slots=True)
class OperatorState:
    """What the policy remembers of an operator. `told` is what could not be helped, so that it is said once; it is
    forgotten after `quiet` reports without a busy partition."""

    streaks: Streaks = field(default_factory=Streaks)
    changed_at: float = -math.inf
    told: frozenset[str] = frozenset()
    quiet: int = 0


@dataclass(frozen=True, slots=True)
class Scale:
    """Give the operator so many partitions, or so many tasks that read, which have no bounds."""

    operator: str
    before: int
    partitions: int
    bounds: tuple[int, ...] | None
    reason: str


@dataclass(frozen=True, slots=True)
class Stuck:
    """The operator is a bottleneck, and nothing can be done about it here."""

    operator: str
    partitions: int
    reason: str


def decide(
    state: OperatorState, seen: Measured, scaling: Scaling, most: int
) -> tuple[OperatorState, Scale | Stuck | None]:
    """What to remember and what to do after one more report. `most` bounds the partitions."""
    if seen.at - state.changed_at < scaling.cooldown:
        return replace(state, streaks=Streaks()), None
    streaks = observed(state.streaks, seen.use, scaling)
    quiet = 0 if any(streaks.above) else state.quiet + 1
    told = state.told if quiet < scaling.calm else frozenset[str]()
    state = replace(state, streaks=streaks, told=told, quiet=quiet)
    action: Scale | Stuck | None = None
    if busy := streaks.bottlenecks(scaling):
        action = _out(seen, busy, scaling, max(most, seen.partitions))
    elif streaks.is_calm(scaling):
        action = _in(seen, streaks, scaling)
    if isinstance(action, Scale):
        return OperatorState(changed_at=seen.at), action
    if isinstance(action, Stuck):
        if action.reason in state.told:
            return state, None
        return replace(state, told=state.told | {action.reason}), action
    return state, None


def _out(seen: Measured, busy: Sequence[int], scaling: Scaling, most: int) -> Scale | Stuck:
    shares = seen.use.shares
    worst = max(busy, key=lambda number: shares[number])
    what = "reading task" if seen.kind is Kind.READING else "partition"
    cause = (
        f"{what} {worst} used {shares[worst]:.2f} of a CPU in the last of {scaling.reports} reports in a row"
        f" above {scaling.threshold:g}"
    )

    def stuck(why: str) -> Stuck:
        return Stuck(seen.operator, seen.partitions, f"a {what} uses more than {scaling.threshold:g} of a CPU; {why}")

    if seen.kind is Kind.SINGLE:
        return stuck("rows without a key cannot be split: group by a key first, or aggregate in two steps")
    if seen.kind is Kind.READING:
        if seen.partitions >= most:
            return stuck(f"there are {most} of them, and no more are allowed")
        tasks = max(seen.partitions + 1, math.ceil(seen.use.total / scaling.threshold))
        return Scale(seen.operator, seen.partitions, min(most, tasks), None, cause)
    routing = Routing(seen.bounds)
    single = [number for number in busy if (own := routing.interval(number)).hi - own.lo == 1]
    if len(single) == len(busy):
        names = {each.position: each.key for each in seen.profile.heavy}
        key = names.get(seen.bounds[worst], "at one position")
        return stuck(f"it has nothing but key {key}, which cannot be split further")
    if seen.partitions >= most:
        moved = split(seen.profile, seen.partitions)
        if moved.bounds != seen.bounds and moved.heaviest * seen.use.total <= _WORTH_MOVING * shares[worst]:
            return _scale(seen, moved, f"{cause}; load is moved between the partitions there are")
        return stuck(f"there are {most} of them, and no more are allowed")
    made = split(seen.profile, seen.partitions + 1)
    while len(made.bounds) < most and _rest(made) * seen.use.total > scaling.threshold:
        made = split(seen.profile, len(made.bounds) + 1)
    return _scale(seen, made, cause)


def _rest(made: Split) -> float:
    """The part of the load that the heaviest partition will have, but for those of hot keys alone."""
    alone = {each.position for each in made.hot if each.alone}
    pairs = zip(made.bounds, made.shares, strict=True)
    return max((share for bound, share in pairs if bound not in alone), default=0.0)


def _in(seen: Measured, streaks: Streaks, scaling: Scaling) -> Scale | None:
    calm = f"all {seen.partitions} together used at most {streaks.peak:.2f} of a CPU in {streaks.calm} reports in a row"
    if seen.kind is Kind.READING:
        tasks = max(scaling.least, math.ceil(streaks.peak / scaling.low_mark))
        return Scale(seen.operator, seen.partitions, tasks, None, calm) if tasks < seen.partitions else None
    if seen.kind is Kind.SINGLE:
        return None
    for partitions in range(scaling.least, seen.partitions):
        made = split(seen.profile, partitions)
        if made.heaviest * streaks.peak <= scaling.low_mark:
            return _scale(seen, made, calm)
    return None


def _scale(seen: Measured, made: Split, cause: str) -> Scale:
    # A key that is alone already is no news.
    routing = Routing(seen.bounds)
    owned = {own.lo for number in range(seen.partitions) if (own := routing.interval(number)).hi - own.lo == 1}
    alone = [str(each) for each in made.hot if each.alone and each.position not in owned]
    mixed = [str(each) for each in made.hot if not each.alone]
    notes = []
    if alone:
        notes.append(f"hot: {', '.join(alone)}; a partition of its own, which cannot be split further")
    if mixed:
        notes.append(f"hot: {', '.join(mixed)}; there are too few partitions to give it one of its own")
    reason = "; ".join([cause, *notes])
    return Scale(seen.operator, seen.partitions, len(made.bounds), made.bounds, reason)
