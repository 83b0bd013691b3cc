"""Which scheme a guarantee leads to, in words: what each would take and cost, and why the controller keeps which.

Where hosts run the pipeline it is not asked anew what a controller would choose: one has chosen, or the user has, and
that is what is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.graph.guarantee import Guarantee
from holdfast.replica.agreement import Agreed
from holdfast.replica.controller import Controller, Diverged, Measurement, Outlook, decide, obstacle, outlook_of
from holdfast.replica.deployment import Deployment
from holdfast.replica.predict import Calibration, Measured
from holdfast.replica.schemes import Scheme

__all__ = ["ASSUMED", "Kept", "explained", "kept_of"]

ASSUMED = Measured(
    state_bytes=1e8,
    rows_per_second=1e4,
    replay_rows_per_second=1e6,
    load_bytes_per_second=2e8,
    utilisation=0.2,
    output_bytes_per_second=1e5,
    changed_bytes_per_second=1e6,
)
"""A small pipeline on a small machine: what is reckoned with as long as nothing was measured."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The scheme that hosts keep, and who has said so."""

    scheme: Scheme
    why: str


def kept_of(agreed: Agreed, deployment: Deployment) -> Kept:
    """What hosts have agreed on, and by whose word."""
    scheme = agreed.seats.scheme
    decided = [each["to"] for each in agreed.notes.get("decisions", ()) if each["to"] is not None]
    if deployment.scheme is not None:
        said = "--scheme says so, and the controller only predicts"
        return Kept(scheme, said if scheme is deployment.scheme else f"turned by hand from {deployment.scheme.value}")
    if decided and decided[-1] != scheme.value:
        return Kept(scheme, f"turned by hand from {decided[-1]}; the controller goes on from there")
    return Kept(
        scheme, "the controller has decided so" if decided else "the controller has found no reason to leave it"
    )


def explained(
    guarantee: Guarantee,
    seen: Measured,
    calibration: Calibration | None = None,
    hosts: int = 2,
    *,
    assumed: bool = False,
    diverged: Mapping[str, Any] | None = None,
    kept: Kept | None = None,
) -> list[str]:
    """A line on what is asked for, one on the figures, one per scheme, and one with the reason: that of a controller
    that begins now or, where hosts run it, for what is `kept`.

    `assumed` is whether `seen` was not measured; `diverged` names the replica that differed, and in which epoch.
    """
    names = tuple(f"host {number + 1}" for number in range(hosts))
    state = Controller(guarantee, hosts=names, calibration=calibration or Calibration())
    if diverged is not None:
        state, _ = decide(state, Diverged(0.0, diverged["host"], diverged["epoch"]))
    after, actions = decide(state, Measurement(0.0, seen))
    outlook = outlook_of(after, seen)
    chosen = after.target
    why = actions[0].reason if actions else f"{chosen.value} keeps the guarantee and costs least"
    if kept is not None:
        chosen, why = kept.scheme, kept.why
        why += "" if len(after.possible) == len(Scheme) else f"; {obstacle(after)}"
    word = "chosen" if kept is None else "kept"
    return [
        f"replicas: {_asked(guarantee)}",
        f"  {'assumed, since nothing was measured yet' if assumed else 'measured'}: {_figures(seen)}",
        *(f"  {_line(scheme, outlook)}{_mark(scheme, chosen, word, guarantee, outlook)}" for scheme in Scheme),
        f"  why: {why}",
    ]


def _asked(guarantee: Guarantee) -> str:
    bound, budget = guarantee.recovery_seconds, guarantee.budget
    told = "no recovery time is asked for" if bound is None else f"no gap in the output longer than {bound:g} s"
    lost = "nothing is left out" if guarantee.precise else "what was not processed may be left out"
    return f"{told}, {lost}, " + ("whatever it costs" if budget is None else f"for at most {budget:g}/h")


def _figures(seen: Measured) -> str:
    return (
        f"{seen.state_bytes / 1e6:.1f} MB of state, {seen.rows_per_second:.0f} rows/s on {seen.utilisation:.2f} CPUs, "
        f"replayed at {seen.replay_rows_per_second:.0f} rows/s, checkpoints every {seen.checkpoint_seconds:.0f} s read "
        f"at {seen.load_bytes_per_second / 1e6:.0f} MB/s"
    )


def _line(scheme: Scheme, outlook: Outlook) -> str:
    took, cost = outlook.seconds[scheme].at(1.0), outlook.money[scheme].at(1.0)
    return f"{scheme.value:21}{took:8.2f} s {cost:9.3f}/h  "


def _mark(scheme: Scheme, chosen: Scheme, word: str, guarantee: Guarantee, outlook: Outlook) -> str:
    lack = _lack(scheme, guarantee, outlook)
    if scheme is chosen:
        return f"{word}, though it is {lack}" if lack else word
    less = outlook.money[scheme].at(1.0) < outlook.money[chosen].at(1.0)
    return lack or f"would do, for {'less' if less else 'more'} money"


def _lack(scheme: Scheme, guarantee: Guarantee, outlook: Outlook) -> str:
    """Why the scheme does not do: now, or at worst before it can be left."""
    if scheme not in outlook.growth:
        return "not possible"
    bound, budget = guarantee.recovery_seconds, guarantee.budget
    growth, within = outlook.growth[scheme], f"within {outlook.horizon[scheme]:.0f} s"
    seconds, money = outlook.seconds[scheme], outlook.money[scheme]
    if bound is not None and seconds.at(growth) > bound:
        return "too slow" + ("" if seconds.at(1.0) > bound else f": it may come to {seconds.at(growth):.2f} s {within}")
    if budget is not None and money.at(growth) > budget:
        return "too dear" + ("" if money.at(1.0) > budget else f": it may come to {money.at(growth):.3f}/h {within}")
    return ""
