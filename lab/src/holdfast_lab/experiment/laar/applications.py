"""What the experiments on LAAR share: generated problems, applications in all six variants, simulated, and box plots.

Everything is drawn from the seed of the experiment. Each application is named by the seed that `holdfast laar generate`
makes it again with, and the JSON has its figures.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from holdfast.laar.application_generator import Sizes, generate
from holdfast.laar.descriptor import Descriptor
from holdfast.laar.model import Model
from holdfast.laar.reaction import AT_ONCE, RateTrace, Reaction, reaction_share
from holdfast.laar.strategy import Strategy
from holdfast_lab.experiment.definition import Row, Settings
from holdfast_lab.experiment.laar.simulated_deployment import (
    DeploymentFigures,
    HostCrash,
    SimulatedDeployment,
    WorstCase,
    paper_trace,
    simulate,
)
from holdfast_lab.experiment.laar.variants import variants
from holdfast_lab.experiment.plots import COLOURS

__all__ = ["LAAR", "PROBLEMS", "SIZES", "TRACE_SECONDS", "VARIANTS", "SimulatedApplication", "boxes", "hungry_at",
           "named", "problem", "ran", "setup_note", "spread"]  # fmt: skip

PROBLEMS = 600
"""1 to 12 hosts with 2 to 12 PEs each, targets from 0.5 to 0.9."""
SIZES = Sizes(hosts=4, pes_per_host=6)
"""Of the applications that run: 24 PEs, as the paper's."""
VARIANTS = ("NR", "SR", "GRD", "L.5", "L.6", "L.7")
LAAR = {"L.5": 0.5, "L.6": 0.6, "L.7": 0.7}
TRACE_SECONDS = 300.0
_SOLVE_SECONDS = 10.0
_CRASH_SECONDS = 16.0
_SEEDS_PER_RUN = 100_000


def problem(number: int, seed: int) -> Descriptor:
    """One of the problems of the search, by its number."""
    sizes = Sizes(hosts=1 + number % 12, pes_per_host=2 + number // 12 % 11)
    return generate(seed * _SEEDS_PER_RUN + number, sizes, Fraction(5 + number % 5, 10))


@dataclass(frozen=True, slots=True)
class SimulatedApplication:
    """An application, and what its variants did: without a failure, in the worst case, and when a host crashed."""

    seed: int
    model: Model
    strategies: Mapping[str, Strategy]
    best: Mapping[str, DeploymentFigures]
    worst: Mapping[str, DeploymentFigures]
    crashed: Mapping[str, DeploymentFigures]
    crash: HostCrash | None

    def __str__(self) -> str:
        return f"application {self.seed}" + (f", crash of host {self.crash.host}" if self.crash else "")


def ran(
    settings: Settings, count: int, *, worst: bool = False, crashes: int = 0, reaction: Reaction = AT_ONCE
) -> Iterator[SimulatedApplication]:
    """So many applications for which LAAR has a strategy for each of its targets, with room for the controller's
    reaction, simulated. The first `crashes` of them also lose a host while the input is high."""
    seed, made = settings.seed * _SEEDS_PER_RUN, 0
    while made < count:
        said = generate(seed, SIZES, Fraction(7, 10))
        model = Model(said)
        trace = paper_trace(model, TRACE_SECONDS)
        strategies = variants(said, _SOLVE_SECONDS, reaction_share(model, trace, reaction))
        if strategies is not None:
            made += 1
            crash = _crash(seed, model, trace) if made <= crashes else None
            yield _simulated(seed, model, strategies, trace, worst, crash, reaction)
        seed += 1


def _simulated(
    seed: int,
    model: Model,
    strategies: Mapping[str, Strategy],
    trace: RateTrace,
    worst: bool,
    crash: HostCrash | None,
    reaction: Reaction,
) -> SimulatedApplication:
    failures = [None, *([WorstCase()] if worst else []), *([crash] if crash else [])]
    deployments = [SimulatedDeployment(strategies[name], failure) for failure in failures for name in VARIANTS]
    measured = simulate(model, deployments, trace, reaction=reaction)
    parts = [dict(zip(VARIANTS, measured[at : at + len(VARIANTS)], strict=True))
             for at in range(0, len(measured), len(VARIANTS))]  # fmt: skip
    best, rest = parts[0], parts[1:]
    return SimulatedApplication(
        seed, model, strategies, best, rest.pop(0) if worst else {}, rest.pop(0) if crash else {}, crash
    )


def hungry_at(trace: RateTrace, model: Model) -> list[tuple[float, float]]:
    """When the input is in its most demanding configuration: from, to."""
    hungry, at, found = max(range(model.n_configs), key=lambda c: sum(model.work[c])), 0.0, []
    for config, seconds in trace.parts:
        if config == hungry:
            found.append((at, at + seconds))
        at += seconds
    return found


def _crash(seed: int, model: Model, trace: RateTrace) -> HostCrash:
    """A host drawn at random, while the input is high: there LAAR promises least."""
    rng = random.Random(f"crash {seed}")
    begin, end = rng.choice(hungry_at(trace, model))
    host = rng.randrange(model.descriptor.hosts)
    return HostCrash(host, rng.uniform(begin, end - _CRASH_SECONDS), _CRASH_SECONDS)


def spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """A distribution in five numbers and the mean, as columns."""
    if not values:
        return dict.fromkeys((name, *(f"{name}_{part}" for part in ("least", "q25", "median", "q75", "most"))))
    least, q25, middle, q75, most = (float(value) for value in np.quantile(values, (0.0, 0.25, 0.5, 0.75, 1.0)))
    return {
        name: float(np.mean(values)),
        f"{name}_least": least,
        f"{name}_q25": q25,
        f"{name}_median": middle,
        f"{name}_q75": q75,
        f"{name}_most": most,
    }


def boxes(axes: Axes, rows: Sequence[Row], column: str, ylabel: str, paper: Sequence[Row] = ()) -> None:
    """A box per variant from the least value to the greatest, its mean as a number; the paper's range as a line."""
    own = [row for row in rows if row.get(column) is not None]
    stats: list[dict[str, Any]] = [
        {"label": row["variant"], "med": row[f"{column}_median"], "q1": row[f"{column}_q25"],
         "q3": row[f"{column}_q75"], "whislo": row[f"{column}_least"], "whishi": row[f"{column}_most"],
         "mean": row[column], "fliers": []}
        for row in own
    ]  # fmt: skip
    axes.bxp(
        stats, showmeans=True, patch_artist=True, widths=0.5,
        boxprops={"facecolor": COLOURS[5], "edgecolor": "black"}, medianprops={"color": "black"},
        meanprops={"marker": "D", "markerfacecolor": COLOURS[3], "markeredgecolor": COLOURS[3], "markersize": 5},
    )  # fmt: skip
    for at, row in enumerate(own, start=1):
        axes.annotate(f"{row[column]:.3g}", (at + 0.3, row[column]), fontsize=8, va="center")
    known = {row["variant"]: at for at, row in enumerate(own, start=1)}
    told = [row for row in paper if row.get("variant") in known]
    for row in told:
        at, ends = known[row["variant"]], (row.get(f"{column}_least"), row.get(f"{column}_most"))
        if row.get(column) is not None:
            axes.scatter(at - 0.35, row[column], marker="_", s=160, linewidths=2.5, color="black", zorder=3)
        if ends[0] is not None and ends[1] is not None:
            axes.plot([at - 0.35] * 2, [ends[0], ends[1]], color="black", linewidth=1.5, label="the paper's range")
    axes.set_ylabel(ylabel)
    axes.grid(visible=False, axis="x")
    named(axes)


def named(axes: Axes) -> None:
    """A legend with each label once, if there are any."""
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if handles:
        axes.legend(handles.values(), handles.keys(), loc="best")


def setup_note(count: int, settings: Settings) -> str:
    return (
        f"{count} generated applications of {SIZES.hosts * SIZES.pes_per_host} PEs on {SIZES.hosts} hosts (the paper:"
        f" 100 of 24 PEs on a cluster of 60 cores), those from seed {settings.seed * _SEEDS_PER_RUN} on for which L.7"
        f" is possible; a simulated trace of {TRACE_SECONDS:g} s, High for a third of it. LAAR's targets are raised by"
        " the part of all tuples that comes before the controller has seen a change of rates, a second at most."
        f" `holdfast laar generate --seed S --hosts {SIZES.hosts} --pes-per-host {SIZES.pes_per_host} --ic 0.7` makes"
        " an application again; the JSON has the figures of each."
    )
