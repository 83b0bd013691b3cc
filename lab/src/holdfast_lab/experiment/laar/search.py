"""Experiment `laar-search`, Figs. 4 to 6 of LAAR: what searches for a strategy find, and how soon."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from holdfast.laar.ft_search import SearchStats, ft_search
from holdfast.laar.model import Model
from holdfast.laar.optimiser import solve
from holdfast.laar.solution import Solution
from holdfast_lab.experiment.definition import Experiment, Figure, Result, Row, Settings, at_least, at_most
from holdfast_lab.experiment.laar.applications import PROBLEMS, problem
from holdfast_lab.experiment.plots import COLOURS, readable

__all__ = ["EXPERIMENT"]

_MILP, _FT = "optimiser", "FT-Search"
_KINDS = {"optimal": "BST", "feasible": "SOL", "infeasible": "NUL", "unknown": "TMO"}
_FIRSTS = ("first_cost_vs_best", "first_time_vs_best")
_PRUNINGS = ("COMPL", "DOM", "CPU", "COST")
_SECONDS = 10.0
_QUICK_PROBLEMS = 40
_SOURCE = "LAAR, §4.5"
_PAPER: tuple[Row, ...] = (
    {"solver": _FT, "ic": "all", "first_cost_vs_best": 1.057, "first_time_vs_best": 0.37,
     "source": f"{_SOURCE}, Fig. 5: means where an optimum was found, within 10 min on 6 cores"},
    *({"solver": _FT, "ic": ic, "BST": None, "source": f"{_SOURCE}, Fig. 4: in the plot alone"}
      for ic in ("0.5", "0.6", "0.7", "0.8", "0.9")),
)  # fmt: skip


def run(settings: Settings) -> Result:

    rng = random.Random(settings.seed)
    numbers = settings.pick(quick=sorted(rng.sample(range(PROBLEMS), _QUICK_PROBLEMS)), full=list(range(PROBLEMS)))
    searched = set(settings.pick(quick=numbers, full=rng.sample(range(PROBLEMS), 120)))
    ft_seconds = settings.pick(quick=0.5, full=_SECONDS)
    found: list[dict[str, Any]] = []
    for number in numbers:
        found += _solved(number, settings.seed, ft_seconds if number in searched else None)
        if len(found) % 20 == 0:
            settings.say(f"problem {number}: {found[-1]['seconds']:.2f} s, {found[-1]['status']}")
    targets = sorted({solved["ic"] for solved in found})
    rows = [
        _row(solver, ic, [solved for solved in found if solved["solver"] == solver and ic in ("all", solved["ic"])])
        for solver in (_MILP, _FT)
        for ic in [*targets, "all"]
    ]
    whole = next(row for row in rows if row["solver"] == _MILP and row["ic"] == "all")
    return Result(
        keys=("solver", "ic"),
        rows=rows,
        paper=_PAPER,
        bars=[
            at_least(f"share of the problems solved or refuted within {_SECONDS:g} s", whole["proven_share"], 1.0),
            at_most("median time of the optimiser, s", whole["median_s"], 0.5),
            at_most("strategies or refutations on which the two differ", _differ(found), 0),
        ],
        notes=[
            f"{len(numbers)} generated applications of 2 to 144 PEs on 1 to 12 hosts, each with one target; a limit of"
            f" {_SECONDS:g} s for the optimiser, in two threads at most. FT-Search is in Python, in one thread, with"
            f" {ft_seconds:g} s for {len(searched)} of the problems; the paper's ran on 6 cores for up to 10 min.",
            "BST: optimal; SOL: a solution, not known to be optimal; NUL: proven to be without one; TMO: nothing.",
            "Problem N has the seed 100000 * --seed + N, 1 + N % 12 hosts with 2 + N // 12 % 11 PEs each and the target"
            " (5 + N % 5) / 10: `holdfast laar generate` makes it again. The JSON has each.",
            "`first vs best` are FT-Search's first solution and its optimum, where it found one; prunings are counted"
            " by values of a PE that were cut off, `height` is how much of the tree below each was cut.",
            f"FT-Search gets a sample of the problems: {PROBLEMS} would take it {_minutes(found, PROBLEMS):.0f} min.",
            "The paper: completeness prunes most often, then DOM; CPU prunes higher up in the tree; COST does least.",
        ],
        plot=lambda figure: _plot(figure, rows, found),
        shown=("problems", "BST", "SOL", "NUL", "TMO", "median_s", "p95_s", "most_s", "first_cost_vs_best",
               "first_time_vs_best"),
        also={"problems": found, "seed": settings.seed},
    )  # fmt: skip


def _solved(number: int, seed: int, ft_seconds: float | None) -> list[dict[str, Any]]:

    said = problem(number, seed)
    about = {"number": number, "hosts": said.hosts, "pes": len(said.pes), "ic": f"{float(said.ic_target):g}"}
    found = [{**about, "solver": _MILP, **_told(solve(said, _SECONDS), None)}]
    if ft_seconds is not None:
        found.append({**about, "solver": _FT, **_told(*ft_search(Model(said), ft_seconds))})
    return found


def _told(solution: Solution, stats: SearchStats | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "status": str(solution.status),
        "seconds": solution.seconds,
        "cost": None if solution.cost is None else float(solution.cost),
        "bound": solution.bound,
    }
    if stats is None:
        return told
    told |= {"nodes": stats.nodes, "pruned": dict(stats.pruned), "depth": dict(stats.depth)}
    if stats.first_cost is not None and solution.cost and stats.first_seconds is not None and stats.best_seconds:
        told["first_cost_vs_best"] = float(stats.first_cost / solution.cost)
        told["first_time_vs_best"] = stats.first_seconds / stats.best_seconds
    return told


def _row(solver: str, ic: str, own: Sequence[Row]) -> dict[str, Any]:

    times = [solved["seconds"] for solved in own]
    row: dict[str, Any] = {"solver": solver, "ic": ic, "problems": len(own)}
    row |= {kind: sum(solved["status"] == status for solved in own) for status, kind in _KINDS.items()}
    if own:
        row["proven_share"] = (row["BST"] + row["NUL"]) / len(own)
        row |= {"median_s": float(np.median(times)), "p95_s": float(np.quantile(times, 0.95)), "most_s": max(times)}
    if solver == _FT and ic == "all" and own:
        best = _first_and_best(own)
        for name in _FIRSTS:
            row[name] = float(np.mean([solved[name] for solved in best])) if best else None
        total = sum(sum(solved["pruned"].values()) for solved in own)
        for name in _PRUNINGS:
            row[f"pruned_{name}"] = sum(solved["pruned"][name] for solved in own) / max(1, total)
            heights = [1 - solved["depth"][name] / solved["pruned"][name] / (2 * solved["pes"])
                       for solved in own if solved["pruned"][name]]  # fmt: skip
            row[f"height_{name}"] = float(np.mean(heights)) if heights else None
    return row


def _first_and_best(found: Sequence[Row]) -> list[Row]:
    """The searches whose first solution can be compared with the optimum."""
    return [solved for solved in found if solved["status"] == "optimal" and _FIRSTS[0] in solved]


def _minutes(found: Sequence[Row], problems: int) -> float:
    """How long FT-Search would take for so many problems."""
    times = [float(solved["seconds"]) for solved in found if solved["solver"] == _FT]
    return problems * sum(times) / max(1, len(times)) / 60


def _differ(found: Sequence[Row]) -> int:
    """Problems on which both searches claim to be done, and do not say the same."""
    known = {solved["number"]: solved for solved in found if solved["solver"] == _MILP}
    differ = 0
    for solved in found:
        other = known[solved["number"]]
        if solved["solver"] == _FT and {solved["status"], other["status"]} <= {"optimal", "infeasible"}:
            same = solved["status"] == other["status"]
            near = same and (
                solved["cost"] is None or abs(solved["cost"] - other["cost"]) <= 1e-7 * abs(solved["cost"])
            )
            differ += not near
    return differ


def _plot(figure: Figure, rows: Sequence[Row], found: Sequence[Row]) -> None:

    (kinds, times, prunings), firsts = figure.subplots(2, 3, width_ratios=(3, 3, 2), height_ratios=(3, 2))
    own = [row for row in rows if row["ic"] != "all" and row["problems"]]
    targets = list(dict.fromkeys(row["ic"] for row in own))
    for row in own:
        at, low = targets.index(row["ic"]) + (-0.2 if row["solver"] == _MILP else 0.2), 0.0
        for place, kind in enumerate(_KINDS.values()):
            share = row[kind] / row["problems"]
            label = kind if row is own[0] else None
            kinds.bar(at, share, 0.36, bottom=low, color=COLOURS[place], label=label)
            low += share
    kinds.set_xticks(range(len(targets)), targets)
    kinds.set_xlabel("target; left: optimiser, right: FT-Search")
    kinds.set_ylabel("share of the problems")
    kinds.legend(loc="lower left", frameon=True)
    for place, solver in enumerate((_MILP, _FT)):
        mine = [solved for solved in found if solved["solver"] == solver]
        ended = sorted(solved["seconds"] for solved in mine if solved["status"] in ("optimal", "infeasible"))
        times.step(ended, [(at + 1) / len(mine) for at in range(len(ended))], label=solver, color=COLOURS[place])
    times.set_xscale("log")
    times.set_xlabel("within seconds")
    times.set_ylabel("solved or refuted")
    times.set_ylim(0, 1.02)
    times.legend()
    readable(times.xaxis)
    [ft] = [row for row in rows if row["solver"] == _FT and row["ic"] == "all"]
    for place, (part, label) in enumerate((("pruned", "values pruned"), ("height", "mean height"))):
        heights = [ft.get(f"{part}_{name}") or 0.0 for name in _PRUNINGS]
        prunings.bar([at - 0.2 + 0.4 * place for at in range(4)], heights, 0.36, color=COLOURS[place], label=label)
    prunings.set_xticks(range(4), _PRUNINGS)
    prunings.set_title("FT-Search", fontsize=10)
    prunings.legend()
    firsts[2].set_axis_off()
    labels = "first cost / best cost", "first time / best time"
    for axes, name, label in zip(firsts, _FIRSTS, labels, strict=False):
        values = [solved[name] for solved in _first_and_best(found)]
        if values:
            axes.hist(values, bins=20, weights=[1 / len(values)] * len(values), color=COLOURS[1])
        axes.set_xlabel(f"FT-Search: {label}")
        axes.set_ylabel("share of the optima")


EXPERIMENT = Experiment(
    name="laar-search",
    title="What the optimiser and FT-Search find, and how soon",
    figure="LAAR, Figs. 4-6",
    needs="nothing",
    run=run,
)
