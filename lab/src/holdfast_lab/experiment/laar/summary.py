"""Experiment `laar-summary`, Fig. 12 of LAAR: dropped tuples, completeness and cost of the variants beside SR's."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from holdfast_lab.experiment.definition import Experiment, Figure, Result, Settings, at_least, at_most
from holdfast_lab.experiment.laar.applications import LAAR, VARIANTS, ran, setup_note
from holdfast_lab.experiment.plots import grouped_bars

__all__ = ["EXPERIMENT"]

_SOURCE = "LAAR, §5.3, Fig. 12: in the plot alone"


def run(settings: Settings) -> Result:

    count = settings.pick(quick=8, full=100)
    found: list[dict[str, Any]] = []
    for application in ran(settings, count, worst=True):
        whole, static = application.best["NR"].processed, application.best["SR"]
        own = {
            name: {
                "dropped_share": application.best[name].dropped
                / (application.best[name].processed + application.best[name].dropped),
                "ic": application.worst[name].processed / whole,
                "cost_vs_sr": application.best[name].cycles / static.cycles,
            }
            for name in VARIANTS
        }
        found.append({"seed": application.seed, "variants": own})
        settings.say(f"{application}: {len(found)} of {count}")
    means = {
        name: {column: fmean(application["variants"][name][column] for application in found)
               for column in ("dropped_share", "ic", "cost_vs_sr")}
        for name in VARIANTS
    }  # fmt: skip
    most = means["SR"]["dropped_share"]
    rows: list[dict[str, Any]] = [
        {"variant": name, "dropped_vs_sr": own["dropped_share"] / most if most else None, **own}
        for name, own in means.items()
    ]
    by = {row["variant"]: row for row in rows}
    return Result(
        keys=("variant",),
        rows=rows,
        paper=[{"variant": name, "ic": None, "source": _SOURCE} for name in VARIANTS],
        bars=[
            *(at_least(f"mean IC of {name} in the worst case", by[name]["ic"], target)
              for name, target in LAAR.items()),
            *(at_most(f"cost of {less} / {more}", by[less]["cost_vs_sr"] / by[more]["cost_vs_sr"], 1.0)
              for less, more in (("L.5", "L.6"), ("L.6", "L.7"), ("L.7", "SR"))),
            at_most("tuples dropped by L.7 / by SR", by["L.7"]["dropped_vs_sr"], 0.1),
        ],
        notes=[
            setup_note(count, settings),
            "Means over the applications: the share of tuples dropped without a failure, and how much that is of SR's;"
            " CPU time without a failure, relative to SR's of the same application; IC in the worst case.",
        ],
        plot=lambda figure: _plot(figure, rows),
        also={"applications": found, "seed": settings.seed},
    )  # fmt: skip


def _plot(figure: Figure, rows: list[dict[str, Any]]) -> None:

    names = {"dropped_vs_sr": "dropped / SR's", "ic": "IC in the worst case", "cost_vs_sr": "cost / SR's"}
    bars = [{"variant": row["variant"], "what": said, "value": row[column]}
            for row in rows for column, said in names.items()]  # fmt: skip
    grouped_bars(figure.subplots(), bars, group="variant", value="value", series="what", ylabel="mean")


EXPERIMENT = Experiment(
    name="laar-summary",
    title="Dropped tuples, completeness and cost of the variants beside static replication",
    figure="LAAR, Fig. 12",
    needs="nothing",
    run=run,
)
