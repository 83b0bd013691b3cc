"""The simulated part of the experiment `controller`: days of made-up load in seconds, several loads and guarantees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.graph.guarantee import Guarantee
from holdfast.replica.margins import ControllerMargins
from holdfast.replica.prediction import Prices, recovery_cost, recovery_seconds
from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast_lab.experiment.definition import Bar, Settings, at_most
from holdfast_lab.experiment.plots import COLOURS, readable
from holdfast_lab.experiment.streammine3g.controller_parts import ControllerPart, SubFigure
from holdfast_lab.simulate.loads import Load, limited, trace
from holdfast_lab.simulate.simulated_load import LoadRun, LoadSample, measured_at, run_load

__all__ = ["LoadCase", "asked", "figures", "series", "simulated"]

_NAME = "simulated"
_POINTS = 1_500
_BUDGET = 0.5
_WARM_SECONDS = 120.0
"""Until the first scheme is reached nothing counts, in `run_load` as well."""


@dataclass(frozen=True, slots=True)
class LoadCase:
    """A load, by its seed, under a guarantee, and what became of it."""

    seed: int
    guarantee: Guarantee
    run: LoadRun

    @property
    def label(self) -> str:
        return label_of(self.guarantee)


def simulated(settings: Settings) -> ControllerPart:
    """Every load under every guarantee; the one with the most moves is drawn."""

    every = settings.pick(quick=30.0, full=10.0)
    margins = ControllerMargins(report=every)
    cases = []
    for seed in range(settings.seed, settings.seed + settings.pick(quick=3, full=6)):
        loads = list(limited(trace(seed, settings.days, every), margins.growth))
        settings.say(f"load {seed}: {_told(loads)}")
        cases += [
            LoadCase(seed, guarantee, run_load(loads, guarantee, margins, seed=seed))
            for guarantee in asked(quick=settings.quick)
        ]
    shown = max((case for case in cases if case.guarantee.budget is None), key=lambda case: len(case.run.moves))
    points = series(shown.run)
    return ControllerPart(
        name=_NAME,
        rows=[figures(case, settings.days, every) for case in cases],
        bars=_bars(cases, settings.days, every),
        notes=_notes(settings.days, every, shown),
        draw=lambda figure: _draw(figure, points, shown),
        also={"shown": {"load": shown.seed, "guarantee": shown.label}, "series": points, "moves": _moves(shown.run)},
    )


def asked(*, quick: bool) -> list[Guarantee]:

    bounds = (1.7, 2.5, 6.5) if quick else (0.6, 1.6, 1.7, 2.0, 2.5, 6.5, 20.0)
    return [
        *(Guarantee(bound) for bound in bounds),
        Guarantee(2.5, delivery="gap"),
        Guarantee(2.5, budget=_BUDGET),
    ]


def label_of(guarantee: Guarantee) -> str:
    told = f"{guarantee.recovery_seconds:g} s"
    if not guarantee.precise:
        told += ", gap"
    return told if guarantee.budget is None else f"{told}, at most {guarantee.budget:g}/h"


def figures(case: LoadCase, days: float, every: float) -> dict[str, Any]:
    """What is told of a run. Ratios are of the money of the secondary: this run's over another way's."""

    run, hours = case.run, 24 * days
    best = run.best_fixed
    truths = [measured_at(sample.load) for sample in run.samples]
    cpus = sum(truth.utilisation for truth in truths)
    second = sum(recovery_cost(ACTIVE_REPLICATION, truth, Prices()).cpus for truth in truths)
    active = max(recovery_seconds(ACTIVE_REPLICATION, truth, precise=case.guarantee.precise) for truth in truths)
    return {
        "load": case.seed,
        "guarantee": case.label,
        "recovery_s": case.guarantee.recovery_seconds,
        "moves": len(run.moves),
        "turns": run.turns,
        "violations_s": len(run.broken) * every,
        "impossible_s": run.hopeless,
        "money_per_h": run.money / hours,
        "best_fixed": None if best is None else best.name,
        "cost_over_fixed": None if best is None else run.money / run.fixed[best],
        "cost_over_active": run.money / run.dearest,
        "cost_over_least": run.money / run.least,
        "worst_recovery_s": max(sample.seconds for sample in run.samples if sample.load.at > _WARM_SECONDS),
        "active_recovery_s": active,
        "active_cpus_over_one": (cpus + second) / cpus,
        "mostly": max(run.seconds, key=lambda scheme: run.seconds[scheme]).name,
        "hours": {scheme.name: seconds / 3600 for scheme, seconds in run.seconds.items() if seconds},
    }


def _bars(cases: Sequence[LoadCase], days: float, every: float) -> list[Bar]:
    """What may cost what it takes must always be kept; near a budget nobody is sure to be able to pay."""
    free = [case for case in cases if case.guarantee.budget is None]
    fixed = [(case.run.money, case.run.fixed[best]) for case in free if (best := case.run.best_fixed) is not None]
    return [
        at_most(
            "seconds in which a scheme would have kept the guarantee, and the one there was did not (no budget)",
            sum(len(case.run.broken) * every for case in free),
            0,
        ),
        at_most(
            "money over that of the best fixed schemes that keep the guarantee, chosen afterwards",
            sum(own for own, _ in fixed) / sum(other for _, other in fixed) if fixed else None,
            1.0,
        ),
        at_most(
            "money over that of active replication all the time, at worst",
            max(case.run.money / case.run.dearest for case in cases),
            1.0,
        ),
        at_most("turns around per day, at most", max(case.run.turns for case in cases) / days, 48),
    ]


def _notes(days: float, every: float, shown: LoadCase) -> list[str]:
    return [
        f"Simulated: load for {days:g} d, one report every {every:g} s, by `loads.py` (a day's curve, steps, bursts,"
        " noise) with a growth of at most 0.5 % per second; measurements are off by up to 5 %, moves take their time,"
        " and about two recoveries per day correct the predictions. Nothing is run.",
        "`violations_s` is the time in which a failure would have taken longer than guaranteed though another scheme"
        " would have kept it; `impossible_s` is that in which none would, or none within the budget. With a budget,"
        " what could just be paid is not always taken, because the load may grow.",
        "Money is that of the secondary. `cost_over_fixed` compares with the scheme that would have cost least of those"
        " that keep the guarantee all the time, which nobody knows beforehand; `cost_over_active` with active"
        " replication; `cost_over_least` with the best scheme of every moment, moved to at no cost and at once.",
        f"The plot is of load {shown.seed} under {shown.label}.",
        "The text of the paper that is at hand ends before its evaluation: it has the schemes, what they cost in words,"
        " and the wheel.",
    ]


def _told(loads: Sequence[Load]) -> str:
    rows = [load.rows_per_second for load in loads]
    state = max(load.state_bytes for load in loads)
    return f"{min(rows):,.0f} to {max(rows):,.0f} rows/s, up to {state / 1e6:,.0f} MB of state"


def _moves(run: LoadRun) -> list[dict[str, Any]]:
    return [
        {"hour": at / 3600, "from": move.scheme.name, "to": move.to.name, "why": move.reason} for at, move in run.moves
    ]


def series(run: LoadRun) -> dict[str, list[Any]]:
    """The run as columns of at most so many points; money is what was spent until then."""

    step = -(-len(run.samples) // _POINTS)
    best = run.best_fixed
    ways: dict[str, Scheme | None] = {"adaptive": None, "active": ACTIVE_REPLICATION}
    if best is not None:
        ways["best_fixed"] = best
    spent = dict.fromkeys(ways, 0.0)
    made: dict[str, list[Any]] = {name: [] for name in ("hour", "rows_per_s", "state_mb", "scheme", "predicted_s")}
    made |= {name: [] for name in ("recovery_s", *(f"{way}_money" for way in ways))}
    before: LoadSample | None = None
    for number, sample in enumerate(run.samples):
        hours = 0.0 if before is None else (sample.load.at - before.load.at) / 3600
        before = sample
        for way, scheme in ways.items():
            hourly = sample.money if scheme is None else recovery_cost(scheme, measured_at(sample.load), Prices()).money
            spent[way] += hours * hourly
        if number % step:
            continue
        values = (sample.load.at / 3600, sample.load.rows_per_second, sample.load.state_bytes / 1e6, sample.scheme.name)
        for name, value in zip(made, (*values, sample.predicted, sample.seconds, *spent.values()), strict=True):
            made[name].append(value)
    return made


def _draw(figure: SubFigure, points: Mapping[str, Sequence[Any]], shown: LoadCase) -> None:
    load, scheme, recovery, money = figure.subplots(4, 1, sharex=True)
    _draw_load(load, points)
    _draw_scheme(scheme, points)
    _draw_recovery(recovery, points, shown.guarantee.recovery_seconds or 0.0)
    _draw_money(money, points, _fixed_label(shown))
    money.set_xlim(0, points["hour"][-1])


def _draw_load(axes: Any, points: Mapping[str, Sequence[Any]]) -> None:

    axes.plot(points["hour"], points["rows_per_s"], color=COLOURS[0], label="rows/s")
    axes.set_ylabel("rows/s")
    _logarithmic(axes)
    state = axes.twinx()
    state.plot(points["hour"], points["state_mb"], color=COLOURS[1], label="state")
    state.set_ylabel("state, MB")
    state.grid(visible=False)
    _legend(axes, state)


def _draw_scheme(axes: Any, points: Mapping[str, Sequence[Any]]) -> None:

    names = [scheme.name for scheme in wheel.SCHEMES]
    axes.step(points["hour"], [names.index(name) for name in points["scheme"]], where="post", color=COLOURS[2])
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_ylim(len(names) - 0.5, -0.5)


def _draw_recovery(axes: Any, points: Mapping[str, Sequence[Any]], bound: float) -> None:

    warm = next(place for place, hour in enumerate(points["hour"]) if hour * 3600 > _WARM_SECONDS)
    hours = points["hour"][warm:]
    axes.plot(hours, points["recovery_s"][warm:], color=COLOURS[0], label="it would take")
    axes.plot(hours, points["predicted_s"][warm:], color=COLOURS[1], linewidth=0.6, label="predicted")
    axes.axhline(bound, color=COLOURS[3], linestyle="--", label="guaranteed")
    axes.set_ylabel("recovery, s")
    axes.set_ylim(bottom=0)
    _legend(axes)


def _draw_money(axes: Any, points: Mapping[str, Sequence[Any]], fixed: str) -> None:

    labels = {"active_money": "active replication", "best_fixed_money": fixed, "adaptive_money": "controller"}
    for name, colour, style in zip(labels, (3, 2, 0), ("-", "--", "-"), strict=True):
        if name in points:
            axes.plot(points["hour"], points[name], color=COLOURS[colour], linestyle=style, label=labels[name])
    axes.set_ylabel("money spent")
    axes.set_xlabel("hours")
    _legend(axes)


def _logarithmic(axes: Any) -> None:

    axes.set_yscale("log")
    readable(axes.yaxis)
    axes.yaxis.set_minor_formatter("")


def _fixed_label(shown: LoadCase) -> str:
    best = shown.run.best_fixed
    return "" if best is None else f"always {best.name}"


def _legend(*axes: Any) -> None:
    handles = [axis.get_legend_handles_labels() for axis in axes]
    lines = [line for found, _ in handles for line in found]
    axes[0].legend(lines, [label for _, found in handles for label in found], loc="best", fontsize=7, ncols=3)
