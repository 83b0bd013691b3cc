"""The scheme controller: selects the cheapest scheme that meets the guarantee. A pure function of state and event to
actions.

It moves up at once if the present scheme would break the guarantee before the controller could leave it, and down if a
cheaper one has been safe for a while. A move goes along the wheel step by step: each step is requested when the
previous one has been reached, and a new measurement may reverse it. Every scheme between two others is at least as fast
as the slower of them, so a move up never makes things worse, and a move down ends with a scheme that was checked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.graph.guarantee import Guarantee
from holdfast.replica.fragment_metrics import FragmentMetrics
from holdfast.replica.margins import ControllerMargins
from holdfast.replica.prediction import (
    LinearPrediction,
    RecoveryCalibration,
    costs,
    recovery_seconds,
    transition_seconds,
    unseen_seconds,
)
from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.schemes.passive_replication import PASSIVE_REPLICATION

__all__ = [
    "ControllerEvent",
    "Diverged",
    "GuaranteeChanged",
    "HostJoined",
    "HostLost",
    "Measurement",
    "Notice",
    "Reached",
    "RecoveryObserved",
    "SchemeController",
    "SchemeForecast",
    "SchemeStep",
    "decide",
    "forecast_of",
    "obstacle",
]

_FURTHEST_SECONDS = 600.0
"""The limit of looking ahead: with a load that can hardly be replayed, some moves take forever."""


@dataclass(frozen=True, slots=True)
class Measurement:
    at: float
    metrics: FragmentMetrics


@dataclass(frozen=True, slots=True)
class HostJoined:
    at: float
    host: str


@dataclass(frozen=True, slots=True)
class HostLost:
    """It has been silent for so long that no host counts on it any more; when it beats again, it has joined."""

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


ControllerEvent = Measurement | HostJoined | HostLost | Reached | RecoveryObserved | GuaranteeChanged | Diverged


@dataclass(frozen=True, slots=True)
class SchemeStep:
    """Take one step of the wheel, on the way to `target`."""

    scheme: Scheme
    to: Scheme
    target: Scheme
    reason: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Nothing is done, and this is why."""

    reason: str


@dataclass(frozen=True, slots=True)
class SchemeController:
    """What the controller knows. `scheme` is what the secondary is now, `target` what it shall be; `stepping` is the
    step that was asked for and not yet reached."""

    guarantee: Guarantee
    margins: ControllerMargins = field(default_factory=ControllerMargins)
    hosts: tuple[str, ...] = ()
    scheme: Scheme = PASSIVE_REPLICATION
    target: Scheme = PASSIVE_REPLICATION
    stepping: Scheme | None = None
    metrics: FragmentMetrics | None = None
    measured_at: float = -math.inf
    calibration: RecoveryCalibration = field(default_factory=RecoveryCalibration)
    safe_since: Mapping[Scheme, float] = field(default_factory=dict)
    retreated_at: float = -math.inf
    """When a scheme was left because it cost too much: for a while only what is cheaper by far is taken instead."""
    diverged: str | None = None
    said: str = ""
    """The last reason that was given, without its figures."""

    @property
    def possible(self) -> tuple[Scheme, ...]:
        """With no second host nothing can be kept ready; replicas that do not agree cannot stand in for each other."""
        if len(self.hosts) < 2:
            return tuple(scheme for scheme in wheel.SCHEMES if not scheme.needs_secondary)
        return tuple(scheme for scheme in wheel.SCHEMES if self.diverged is None or not scheme.processes)


@dataclass(frozen=True, slots=True)
class SchemeForecast:
    """What is predicted of the possible schemes: now, and at worst before they can be left. `cautious` is `seconds`
    with what the parts of a gap vary by."""

    seconds: Mapping[Scheme, LinearPrediction]
    cautious: Mapping[Scheme, LinearPrediction]
    money: Mapping[Scheme, LinearPrediction]
    horizon: Mapping[Scheme, float]
    growth: Mapping[Scheme, float]


def decide(state: SchemeController, event: ControllerEvent) -> tuple[SchemeController, tuple[SchemeStep | Notice, ...]]:
    """What to remember and what to do after one more event."""
    state = _after(state, event)
    if state.metrics is None:
        return state, ()
    forecast = forecast_of(state, state.metrics)
    safe = _keeping(state, forecast, state.margins.slack)
    state = replace(state, safe_since={scheme: state.safe_since.get(scheme, event.at) for scheme in safe})
    target, reason = _choice(state, forecast, event.at)
    alone = len(state.hosts) < 2
    if target is not state.target and not alone:
        too_dear = state.guarantee.budget is not None and state.target in state.possible
        retreats = too_dear and target not in safe and wheel.rank(target) > wheel.rank(state.target)
        state = replace(state, target=target, retreated_at=event.at if retreats else state.retreated_at)
    if alone or (target is state.scheme and state.stepping is None):
        if reason and _gist(reason) != state.said:
            return replace(state, said=_gist(reason)), (Notice(reason),)
        return state, ()
    return _step(state, reason)


def _after(state: SchemeController, event: ControllerEvent) -> SchemeController:
    """What is known after an event."""
    if isinstance(event, Measurement):
        return replace(state, metrics=event.metrics, measured_at=event.at)
    if isinstance(event, HostJoined):
        return replace(state, hosts=(*(host for host in state.hosts if host != event.host), event.host))
    if isinstance(event, HostLost):
        hosts = tuple(host for host in state.hosts if host != event.host)
        if len(hosts) < 2:
            # Nobody is left to reach a step. Who joins is made what was asked for last.
            return replace(state, hosts=hosts, scheme=state.stepping or state.scheme, stepping=None, safe_since={})
        return replace(state, hosts=hosts)
    if isinstance(event, Reached):
        return replace(state, scheme=event.scheme, stepping=None)
    if isinstance(event, RecoveryObserved):
        if state.metrics is None:
            return state
        precise = state.guarantee.precise
        predicted = recovery_seconds(event.scheme, state.metrics, precise=precise, epochs=event.epochs)
        return replace(state, calibration=state.calibration.observed(event.scheme, predicted, event.seconds))
    if isinstance(event, GuaranteeChanged):
        return replace(state, guarantee=event.guarantee, safe_since={}, said="")
    state = replace(state, diverged=f"{event.host} differed in epoch {event.epoch}")
    if state.stepping is None or state.stepping in state.possible:
        return state
    # No host will report that this step is reached: from here the wheel turns on.
    return replace(state, scheme=state.stepping, stepping=None)


def forecast_of(state: SchemeController, metrics: FragmentMetrics) -> SchemeForecast:
    """One is bound to a scheme until the next report, and as long as it takes to leave it for the fastest."""
    margins = state.margins
    fastest = min(state.possible, key=wheel.rank)
    horizon = {
        scheme: min(_FURTHEST_SECONDS, margins.report + transition_seconds(scheme, fastest, metrics))
        for scheme in state.possible
    }
    # Twice the noise: there may be more to replay than was measured, and it may be slower.
    growth = {scheme: (1 + margins.noise) ** 2 * (1 + margins.growth) ** ahead for scheme, ahead in horizon.items()}
    precise, calibration = state.guarantee.precise, state.calibration
    seconds = calibration.seconds(metrics, precise=precise)
    cautious = calibration.seconds(metrics, precise=precise, deviations=margins.deviations)
    return SchemeForecast(seconds, cautious, costs(metrics, margins.prices), horizon, growth)


def _keeping(state: SchemeController, forecast: SchemeForecast, slack: float = 1.0) -> list[Scheme]:
    """Which of the possible schemes keep the guarantee, and will until they can be left."""
    bound, budget = state.guarantee.recovery_seconds, state.guarantee.budget
    return [
        scheme
        for scheme, growth in forecast.growth.items()
        if (bound is None or forecast.cautious[scheme].at(growth * slack) <= bound)
        and (budget is None or forecast.money[scheme].at(growth * slack) <= budget)
    ]


def _cheapest(schemes: list[Scheme], money: Mapping[Scheme, float]) -> Scheme:
    """Of those that cost the same, the slowest."""
    return min(schemes, key=lambda scheme: (money[scheme], -wheel.rank(scheme)))


def _choice(state: SchemeController, forecast: SchemeForecast, at: float) -> tuple[Scheme, str]:
    """The scheme to have, and why."""
    retreated = at - state.retreated_at < state.margins.calm
    keeping = list(state.safe_since) if retreated else _keeping(state, forecast)
    money = {scheme: forecast.money[scheme].at(1.0) for scheme in state.possible}
    held = state.target
    if held in keeping:
        since = state.safe_since
        calm = [scheme for scheme in since if at - since[scheme] >= state.margins.calm]
        best = _cheapest(calm, money) if calm else held
        if money[best] < (1 - state.margins.saving) * money[held]:
            minutes = (at - since[best]) / 60
            return best, (
                f"{_figures(state, best, forecast)}; it has been safe for {minutes:.0f} min and costs less than "
                f"{held} at {money[held]:.3f}/h"
            )
        return held, ""
    if keeping:
        best = _cheapest(keeping, money)
        if held not in money:
            return best, f"{_figures(state, best, forecast)}; {held} is not possible: {obstacle(state)}"
        return best, f"{_figures(state, best, forecast)}; {held} may reach {_ahead(held, forecast)}"
    return _makeshift(state, forecast, money, at)


def _makeshift(
    state: SchemeController, forecast: SchemeForecast, money: Mapping[Scheme, float], at: float
) -> tuple[Scheme, str]:
    """No scheme is sure to keep the guarantee: one that keeps it now, else the fastest within the budget."""
    bound, budget = state.guarantee.recovery_seconds, state.guarantee.budget
    paid = [scheme for scheme in state.possible if budget is None or money[scheme] <= budget]
    now = [scheme for scheme in paid if bound is None or forecast.seconds[scheme].at(1.0) <= bound]
    held = state.target
    if now and (held in now or at - state.retreated_at >= state.margins.calm):
        sure = [
            scheme for scheme in now if bound is None or forecast.cautious[scheme].at(forecast.growth[scheme]) <= bound
        ]
        best = _cheapest(sure, money) if sure else min(now, key=wheel.rank)
        best = held if held in now else best
        return best, f"{_figures(state, best, forecast)}, and no scheme is sure to keep the guarantee if the load grows"
    # What was left because it cost too much is not taken back at the first chance.
    best = min(paid, key=wheel.rank) if paid else min(state.possible, key=lambda scheme: money[scheme])
    if held in paid and wheel.rank(best) < wheel.rank(held) and at - state.retreated_at < state.margins.calm:
        best = held
    why = f"{_figures(state, best, forecast)}, which breaks the guarantee"
    if len(state.possible) < len(wheel.SCHEMES):
        why += f"; {obstacle(state)}"
    if not paid:
        return best, f"{why}; even this, the cheapest, is over the budget of {budget:.3f}/h"
    return best, f"{why}; no faster one is " + (
        "possible" if budget is None else f"within the budget of {budget:.3f}/h"
    )


def _step(state: SchemeController, reason: str) -> tuple[SchemeController, tuple[SchemeStep | Notice, ...]]:
    """Ask for the next step, unless one is under way: then it is reached first, and turned around if need be."""
    if state.stepping is not None or state.scheme is state.target:
        return state, ()
    to = wheel.path(state.scheme, state.target)[0]
    why = reason or f"on the way to {state.target}"
    after = replace(state, stepping=to, said=_gist(reason) or state.said)
    return after, (SchemeStep(state.scheme, to, state.target, why),)


def _gist(reason: str) -> str:
    """The sentence without its figures: with other figures alone it is not said again."""
    return re.sub(r"[\d.]+", "", reason)


def _figures(state: SchemeController, scheme: Scheme, forecast: SchemeForecast) -> str:
    """What a scheme takes and costs with the load there is, and what is asked for."""
    bound, metrics = state.guarantee.recovery_seconds, state.metrics
    assert metrics is not None
    took, cost = forecast.seconds[scheme].at(1.0), forecast.money[scheme].at(1.0)
    asked = "no bound is required" if bound is None else f"{bound:.2f} s are required"
    before = unseen_seconds(scheme, metrics)
    return (
        f"{scheme} recovers in {took:.2f} s, of which {before:.2f} s pass before it begins, at {cost:.3f}/h, with"
        f" {metrics.state_bytes / 1e6:.1f} MB of state and {metrics.rows_per_second:.0f} rows/s; {asked}"
    )


def _ahead(scheme: Scheme, forecast: SchemeForecast) -> str:
    """What a scheme may reach before it can be left."""
    growth = forecast.growth[scheme]
    took, cost = forecast.cautious[scheme].at(growth), forecast.money[scheme].at(growth)
    return f"{took:.2f} s and {cost:.3f}/h within {forecast.horizon[scheme]:.0f} s"


def obstacle(state: SchemeController) -> str:
    """Why not all schemes are possible."""
    if len(state.hosts) < 2:
        return f"there is {len(state.hosts)} host, and a secondary needs a second one"
    return f"replicas do not agree ({state.diverged}): a function of the pipeline is not deterministic"
