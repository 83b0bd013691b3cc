"""Which scheme a guarantee leads to, in words: the predicted recovery time and cost of each, and the controller's
choice.

If hosts already run the pipeline, the report shows the scheme that the controller or the user has chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.graph.guarantee import Guarantee
from holdfast.replica.deployment import Deployment
from holdfast.replica.fragment_metrics import FragmentMetrics
from holdfast.replica.fragment_notes import Divergence
from holdfast.replica.prediction import RecoveryCalibration
from holdfast.replica.scheme_controller import (
    Diverged,
    Measurement,
    SchemeController,
    SchemeForecast,
    decide,
    forecast_of,
    obstacle,
)
from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.seat_store import Agreed

__all__ = ["ASSUMED", "SchemeInUse", "explained", "scheme_in_use"]

ASSUMED = FragmentMetrics(
    state_bytes=1e8,
    rows_per_second=1e4,
    replay_rows_per_second=1e6,
    load_bytes_per_second=2e8,
    utilisation=0.2,
    output_bytes_per_second=1e5,
    changed_bytes_per_second=1e6,
)
"""A small pipeline on a small machine: assumed as long as nothing was measured."""


@dataclass(frozen=True, slots=True)
class SchemeInUse:
    """The scheme that hosts run under, and what chose it."""

    scheme: Scheme
    why: str


def scheme_in_use(agreed: Agreed, deployment: Deployment) -> SchemeInUse:
    """The scheme that hosts have agreed on, and what chose it."""
    scheme = agreed.seats.scheme
    decided = [decision.to for decision in agreed.notes.decisions if decision.to is not None]
    if deployment.scheme is not None:
        fixed = "set by --scheme; the controller only predicts"
        return SchemeInUse(
            scheme, fixed if scheme is deployment.scheme else f"set by hand, before that {deployment.scheme.name}"
        )
    if decided and decided[-1] != scheme.name:
        return SchemeInUse(scheme, f"set by hand, before that {decided[-1]}; the controller continues from there")
    return SchemeInUse(scheme, "the controller chose it" if decided else "the controller found no reason to leave it")


def explained(
    guarantee: Guarantee,
    metrics: FragmentMetrics,
    calibration: RecoveryCalibration | None = None,
    hosts: int = 2,
    *,
    assumed: bool = False,
    diverged: Divergence | None = None,
    in_use: SchemeInUse | None = None,
) -> list[str]:
    """A line on what is asked for, one on the figures, one per scheme, and one with the reason: that of a controller
    that begins now or, where hosts run it, for the scheme that is `in_use`.

    `assumed` is whether `metrics` was not measured; `diverged` names the replica that differed, and in which epoch.
    """
    names = tuple(f"host {number + 1}" for number in range(hosts))
    state = SchemeController(guarantee, hosts=names, calibration=calibration or RecoveryCalibration())
    if diverged is not None:
        state, _ = decide(state, Diverged(0.0, diverged.host, diverged.epoch))
    after, actions = decide(state, Measurement(0.0, metrics))
    forecast = forecast_of(after, metrics)
    chosen = after.target
    why = actions[0].reason if actions else f"{chosen.name} keeps the guarantee and costs least"
    if in_use is not None:
        chosen, why = in_use.scheme, in_use.why
        why += "" if len(after.possible) == len(wheel.SCHEMES) else f"; {obstacle(after)}"
    word = "chosen" if in_use is None else "in use"
    return [
        f"replicas: {_asked(guarantee)}",
        f"  {'assumed, since nothing has been measured yet' if assumed else 'measured'}: {_figures(metrics)}",
        *(f"  {_line(scheme, forecast)}{_mark(scheme, chosen, word, guarantee, forecast)}" for scheme in wheel.SCHEMES),
        f"  why: {why}",
    ]


def _asked(guarantee: Guarantee) -> str:
    bound, budget = guarantee.recovery_seconds, guarantee.budget
    asked = "no limit on recovery time" if bound is None else f"no gap in the output longer than {bound:g} s"
    lost = "nothing is dropped" if guarantee.precise else "unprocessed rows may be dropped"
    return f"{asked}, {lost}, " + ("whatever it costs" if budget is None else f"for at most {budget:g}/h")


def _figures(metrics: FragmentMetrics) -> str:
    return (
        f"{metrics.state_bytes / 1e6:.1f} MB of state, {metrics.rows_per_second:.0f} rows/s"
        f" on {metrics.utilisation:.2f} CPUs, replayed at {metrics.replay_rows_per_second:.0f} rows/s,"
        f" checkpoints every {metrics.checkpoint_seconds:.0f} s read at {metrics.load_bytes_per_second / 1e6:.0f} MB/s"
    )


def _line(scheme: Scheme, forecast: SchemeForecast) -> str:
    took, cost = forecast.seconds[scheme].at(1.0), forecast.money[scheme].at(1.0)
    return f"{scheme.name:21}{took:8.2f} s {cost:9.3f}/h  "


def _mark(scheme: Scheme, chosen: Scheme, word: str, guarantee: Guarantee, forecast: SchemeForecast) -> str:
    lack = _lack(scheme, guarantee, forecast)
    if scheme is chosen:
        return f"{word}, though it is {lack}" if lack else word
    less = forecast.money[scheme].at(1.0) < forecast.money[chosen].at(1.0)
    return lack or f"sufficient, for {'less' if less else 'more'} money"


def _lack(scheme: Scheme, guarantee: Guarantee, forecast: SchemeForecast) -> str:
    """Why the scheme does not do: now, or at worst before it can be left."""
    if scheme not in forecast.growth:
        return "not possible"
    bound, budget = guarantee.recovery_seconds, guarantee.budget
    growth, within = forecast.growth[scheme], f"within {forecast.horizon[scheme]:.0f} s"
    now, money = forecast.seconds[scheme].at(1.0), forecast.money[scheme]
    worst = forecast.cautious[scheme].at(growth)
    if bound is not None and worst > bound:
        return "too slow" + ("" if now > bound else f": it may reach {worst:.2f} s {within}")
    if budget is not None and money.at(growth) > budget:
        return "too dear" + ("" if money.at(1.0) > budget else f": it may reach {money.at(growth):.3f}/h {within}")
    return ""
