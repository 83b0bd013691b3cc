"""Which scheme a guarantee leads to, in words: what each would take and cost, and why the controller keeps which."""

from __future__ import annotations

from holdfast.graph.guarantee import Guarantee
from holdfast.replica.controller import Controller, Measurement, Outlook, decide, outlook_of
from holdfast.replica.predict import Calibration, Measured
from holdfast.replica.schemes import Scheme

__all__ = ["ASSUMED", "explained"]

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


def explained(
    guarantee: Guarantee,
    seen: Measured,
    calibration: Calibration | None = None,
    hosts: int = 2,
    *,
    assumed: bool = False,
) -> list[str]:
    """A line on what is asked for, one on the figures, one per scheme, and one with the controller's reason.

    `assumed` is whether `seen` was not measured.
    """
    names = tuple(f"host {number + 1}" for number in range(hosts))
    begun = Controller(guarantee, hosts=names, calibration=calibration or Calibration())
    after, actions = decide(begun, Measurement(0.0, seen))
    outlook = outlook_of(after, seen)
    chosen = after.target
    why = actions[0].reason if actions else f"{chosen.value} keeps the guarantee and costs least"
    return [
        f"replicas: {_asked(guarantee)}",
        f"  {'assumed, since nothing was measured yet' if assumed else 'measured'}: {_figures(seen)}",
        *(f"  {_line(scheme, outlook)}{_mark(scheme, chosen, guarantee, outlook)}" for scheme in Scheme),
        f"  why: {why}",
    ]


def _asked(guarantee: Guarantee) -> str:
    bound, budget = guarantee.recovery_seconds, guarantee.budget
    told = "no recovery time is asked for" if bound is None else f"output goes on within {bound:g} s of noticing"
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


def _mark(scheme: Scheme, chosen: Scheme, guarantee: Guarantee, outlook: Outlook) -> str:
    lack = _lack(scheme, guarantee, outlook)
    if scheme is chosen:
        return f"chosen, though it is {lack}" if lack else "chosen"
    return lack or "would do, for more money"


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
