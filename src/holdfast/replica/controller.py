"""The controller: keeps the cheapest scheme that keeps the guarantee. A pure function of state and event to actions.

Up at once, when the present scheme would break the guarantee before it could be left. Down when a cheaper one has been
safe for a while. A move goes along the wheel step by step: each step is asked for when the one before is reported to
be reached, and a new measurement may turn it around. Every scheme between two is at least as fast as the slower of
them, so a move up never makes it worse, and a move down ends with a scheme that was checked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from holdfast.graph.guarantee import Guarantee
from holdfast.replica.caution import Caution
from holdfast.replica.predict import Calibration, Line, Measured, costs, recovery_seconds, unseen_seconds
from holdfast.replica.schemes import Change, Scheme, changes, path

__all__ = [
    "Controller",
    "Diverged",
    "Event",
    "GuaranteeChanged",
    "HostJoined",
    "HostLost",
    "Measurement",
    "Move",
    "Outlook",
    "Reached",
    "RecoveryObserved",
    "Say",
    "decide",
    "obstacle",
    "outlook_of",
    "transition_seconds",
]

_FURTHEST_SECONDS = 600.0
"""Nobody looks further ahead: with a load that can hardly be replayed, some moves take for ever."""


@dataclass(frozen=True, slots=True)
class Measurement:
    at: float
    seen: Measured


@dataclass(frozen=True, slots=True)
class HostJoined:
    at: float
    host: str


@dataclass(frozen=True, slots=True)
class HostLost:
    """It has been silent for so long that nobody counts on it any more; when it beats again, it has joined."""

    at: float
    host: str


@dataclass(frozen=True, slots=True)
class Reached:
    """The secondary is what `scheme` says."""

    at: float
    scheme: Scheme


@dataclass(frozen=True, slots=True)
class RecoveryObserved:
    """There was no output for so many seconds when the primary failed under `scheme`; `epochs` were replayed, if that
    is known."""

    at: float
    scheme: Scheme
    seconds: float
    epochs: float | None = None


@dataclass(frozen=True, slots=True)
class GuaranteeChanged:
    at: float
    guarantee: Guarantee


@dataclass(frozen=True, slots=True)
class Diverged:
    """The outputs of two replicas differed: a second one that processes is of no use."""

    at: float
    host: str
    epoch: int


Event = Measurement | HostJoined | HostLost | Reached | RecoveryObserved | GuaranteeChanged | Diverged


@dataclass(frozen=True, slots=True)
class Move:
    """Take one step of the wheel, on the way to `target`."""

    scheme: Scheme
    to: Scheme
    target: Scheme
    reason: str

    @property
    def changes(self) -> tuple[Change, ...]:
        return changes(self.scheme, self.to)


@dataclass(frozen=True, slots=True)
class Say:
    """Nothing is done, and this is why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Controller:
    """What the controller knows. `scheme` is what the secondary is now, `target` what it shall be; `stepping` is the
    step that was asked for and not yet reached."""

    guarantee: Guarantee
    caution: Caution = field(default_factory=Caution)
    hosts: tuple[str, ...] = ()
    scheme: Scheme = Scheme.PASSIVE_REPLICATION
    target: Scheme = Scheme.PASSIVE_REPLICATION
    stepping: Scheme | None = None
    seen: Measured | None = None
    seen_at: float = -math.inf
    calibration: Calibration = field(default_factory=Calibration)
    safe_since: Mapping[Scheme, float] = field(default_factory=dict)
    retreated_at: float = -math.inf
    """When a scheme was left because it cost too much: for a while only what is cheaper by far is taken instead."""
    diverged: str | None = None
    told: str = ""

    @property
    def possible(self) -> tuple[Scheme, ...]:
        """With no second host nothing can be kept ready; replicas that do not agree cannot stand in for each other."""
        if len(self.hosts) < 2:
            return (Scheme.PASSIVE_REPLICATION,)
        return tuple(each for each in Scheme if self.diverged is None or not each.equipment.processes)


def transition_seconds(scheme: Scheme, to: Scheme, seen: Measured) -> float:
    """How long the moves from one scheme to another take; to take something away takes no time worth counting."""
    steps = (scheme, *path(scheme, to))
    total = 0.0
    for now, then in pairwise(steps):
        if then.rank > now.rank:
            continue
        total += seen.connect_seconds
        if now is Scheme.PASSIVE_REPLICATION:
            total += seen.deploy_seconds + seen.session_seconds
        elif now is Scheme.DEPLOYED:
            total += seen.program_seconds + seen.state_bytes / seen.load_bytes_per_second
        elif now is Scheme.PASSIVE_STANDBY_HOT:
            rows = seen.rows_per_second * (seen.sync_seconds + seen.epoch_seconds)
            total += rows / max(1.0, seen.replay_rows_per_second - seen.rows_per_second)
    return total


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is predicted of the possible schemes: now, and at worst before they can be left."""

    seconds: Mapping[Scheme, Line]
    money: Mapping[Scheme, Line]
    horizon: Mapping[Scheme, float]
    growth: Mapping[Scheme, float]


def decide(state: Controller, event: Event) -> tuple[Controller, tuple[Move | Say, ...]]:
    """What to remember and what to do after one more event."""
    state = _noted(state, event)
    seen = state.seen
    if seen is None:
        return state, ()
    outlook = outlook_of(state, seen)
    safe = _keeping(state, outlook, state.caution.slack)
    state = replace(state, safe_since={each: state.safe_since.get(each, event.at) for each in safe})
    target, reason = _choice(state, outlook, event.at)
    alone = len(state.hosts) < 2
    if target is not state.target and not alone:
        dear = state.guarantee.budget is not None and state.target in state.possible
        retreat = dear and target not in safe and target.rank > state.target.rank
        state = replace(state, target=target, retreated_at=event.at if retreat else state.retreated_at)
    if alone or (target is state.scheme and state.stepping is None):
        if reason and _gist(reason) != state.told:
            return replace(state, told=_gist(reason)), (Say(reason),)
        return state, ()
    return _step(state, reason)


def _noted(state: Controller, event: Event) -> Controller:
    if isinstance(event, Measurement):
        return replace(state, seen=event.seen, seen_at=event.at)
    if isinstance(event, HostJoined):
        return replace(state, hosts=(*(each for each in state.hosts if each != event.host), event.host))
    if isinstance(event, HostLost):
        hosts = tuple(each for each in state.hosts if each != event.host)
        if len(hosts) < 2:
            # Nobody is left to reach a step. Who joins is made what was asked for last.
            return replace(state, hosts=hosts, scheme=state.stepping or state.scheme, stepping=None, safe_since={})
        return replace(state, hosts=hosts)
    if isinstance(event, Reached):
        return replace(state, scheme=event.scheme, stepping=None)
    if isinstance(event, RecoveryObserved):
        if state.seen is None:
            return state
        precise = state.guarantee.precise
        predicted = recovery_seconds(event.scheme, state.seen, precise=precise, epochs=event.epochs)
        return replace(state, calibration=state.calibration.observed(event.scheme, predicted, event.seconds))
    if isinstance(event, GuaranteeChanged):
        return replace(state, guarantee=event.guarantee, safe_since={}, told="")
    state = replace(state, diverged=f"{event.host} differed in epoch {event.epoch}")
    if state.stepping is None or state.stepping in state.possible:
        return state
    # Nobody will report that this step is reached: from here the wheel goes on.
    return replace(state, scheme=state.stepping, stepping=None)


def outlook_of(state: Controller, seen: Measured) -> Outlook:
    """One is bound to a scheme until the next report, and as long as it takes to leave it for the fastest."""
    caution = state.caution
    fastest = min(state.possible, key=lambda each: each.rank)
    horizon = {
        each: min(_FURTHEST_SECONDS, caution.report + transition_seconds(each, fastest, seen))
        for each in state.possible
    }
    # Twice the noise: there may be more to replay than was measured, and it may be slower.
    growth = {each: (1 + caution.noise) ** 2 * (1 + caution.growth) ** horizon[each] for each in horizon}
    seconds = state.calibration.seconds(seen, precise=state.guarantee.precise)
    return Outlook(seconds, costs(seen, caution.prices), horizon, growth)


def _keeping(state: Controller, outlook: Outlook, slack: float = 1.0) -> list[Scheme]:
    """Which of the possible schemes keep the guarantee, and will until they can be left."""
    bound, budget = state.guarantee.recovery_seconds, state.guarantee.budget
    return [
        each
        for each, growth in outlook.growth.items()
        if (bound is None or outlook.seconds[each].at(growth * slack) <= bound)
        and (budget is None or outlook.money[each].at(growth * slack) <= budget)
    ]


def _choice(state: Controller, outlook: Outlook, at: float) -> tuple[Scheme, str]:
    """The scheme to have, and why."""
    retreated = at - state.retreated_at < state.caution.calm
    keeping = list(state.safe_since) if retreated else _keeping(state, outlook)
    money = {each: outlook.money[each].at(1.0) for each in state.possible}
    held = state.target
    if held in keeping:
        since = state.safe_since
        calm = [each for each in since if at - since[each] >= state.caution.calm]
        best = min(calm, key=lambda each: (money[each], -each.rank), default=held)
        if money[best] < (1 - state.caution.saving) * money[held]:
            minutes = (at - since[best]) / 60
            return best, (
                f"{_told(state, best, outlook)}; it has been safe for {minutes:.0f} min and costs less than "
                f"{held.value} at {money[held]:.3f}/h"
            )
        return held, ""
    if keeping:
        best = min(keeping, key=lambda each: (money[each], -each.rank))
        if held not in money:
            return best, f"{_told(state, best, outlook)}; {held.value} is not possible: {obstacle(state)}"
        return best, f"{_told(state, best, outlook)}; {held.value} may come to {_ahead(held, outlook)}"
    return _makeshift(state, outlook, money, at)


def _makeshift(state: Controller, outlook: Outlook, money: Mapping[Scheme, float], at: float) -> tuple[Scheme, str]:
    """No scheme is sure to keep the guarantee: one that keeps it now, else the fastest within the budget."""
    bound, budget = state.guarantee.recovery_seconds, state.guarantee.budget
    paid = [each for each in state.possible if budget is None or money[each] <= budget]
    now = [each for each in paid if bound is None or outlook.seconds[each].at(1.0) <= bound]
    held = state.target
    if now and (held in now or at - state.retreated_at >= state.caution.calm):
        sure = [each for each in now if bound is None or outlook.seconds[each].at(outlook.growth[each]) <= bound]
        best = min(sure, key=lambda each: (money[each], -each.rank)) if sure else min(now, key=lambda each: each.rank)
        best = held if held in now else best
        return best, f"{_told(state, best, outlook)}, and no scheme is sure to keep the guarantee if the load grows"
    # What was left because it cost too much is not taken back at the first chance.
    best = min(paid, key=lambda each: each.rank) if paid else min(state.possible, key=lambda each: money[each])
    if held in paid and best.rank < held.rank and at - state.retreated_at < state.caution.calm:
        best = held
    why = f"{_told(state, best, outlook)}, which breaks the guarantee"
    if len(state.possible) < len(Scheme):
        why += f"; {obstacle(state)}"
    if not paid:
        return best, f"{why}; even this, the cheapest, is over the budget of {budget:.3f}/h"
    return best, f"{why}; no faster one is " + (
        "possible" if budget is None else f"within the budget of {budget:.3f}/h"
    )


def _step(state: Controller, reason: str) -> tuple[Controller, tuple[Move | Say, ...]]:
    """Ask for the next step, unless one is under way: then it is reached first, and turned around if need be."""
    if state.stepping is not None or state.scheme is state.target:
        return state, ()
    to = path(state.scheme, state.target)[0]
    told = reason or f"on the way to {state.target.value}"
    return replace(state, stepping=to, told=_gist(reason) or state.told), (Move(state.scheme, to, state.target, told),)


def _gist(reason: str) -> str:
    """The sentence without its figures: with other figures alone it is not said again."""
    return re.sub(r"[\d.]+", "", reason)


def _told(state: Controller, scheme: Scheme, outlook: Outlook) -> str:
    bound, seen = state.guarantee.recovery_seconds, state.seen
    assert seen is not None
    took, cost = outlook.seconds[scheme].at(1.0), outlook.money[scheme].at(1.0)
    asked = "no bound is asked for" if bound is None else f"{bound:.2f} s are asked for"
    before = unseen_seconds(scheme, seen)
    return (
        f"{scheme.value} recovers in {took:.2f} s, of which {before:.2f} s pass before it begins, at {cost:.3f}/h, with"
        f" {seen.state_bytes / 1e6:.1f} MB of state and {seen.rows_per_second:.0f} rows/s; {asked}"
    )


def _ahead(scheme: Scheme, outlook: Outlook) -> str:
    """What a scheme may come to before it can be left."""
    growth = outlook.growth[scheme]
    took, cost = outlook.seconds[scheme].at(growth), outlook.money[scheme].at(growth)
    return f"{took:.2f} s and {cost:.3f}/h within {outlook.horizon[scheme]:.0f} s"


def obstacle(state: Controller) -> str:
    """Why not all schemes are possible."""
    if len(state.hosts) < 2:
        return f"there is {len(state.hosts)} host, and a secondary needs a second one"
    return f"replicas do not agree ({state.diverged}): a function of the pipeline is not deterministic"
