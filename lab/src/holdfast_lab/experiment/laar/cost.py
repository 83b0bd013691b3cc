"""Experiment `laar-cost`, Fig. 9 of LAAR: CPU time and dropped tuples of the six variants when nothing fails."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from holdfast_lab.experiment.definition import Experiment, Figure, Result, Row, Settings, at_most
from holdfast_lab.experiment.laar.applications import VARIANTS, SimulatedApplication, boxes, ran, setup_note, spread

__all__ = ["EXPERIMENT"]

_SOURCE = "LAAR, §5.3, Fig. 9"
_PAPER: tuple[Row, ...] = (
    {"variant": "SR", "cpu_vs_nr_least": 1.61, "cpu_vs_nr_most": 1.90,
     "source": f"{_SOURCE}: static replication takes 61 % to 90 % more than NR"},
    *({"variant": name, "cpu_vs_nr": None, "source": f"{_SOURCE}: in the plot alone"}
      for name in ("GRD", "L.5", "L.6", "L.7")),
)  # fmt: skip


def run(settings: Settings) -> Result:

    count = settings.pick(quick=8, full=100)
    found: list[dict[str, Any]] = []
    for application in ran(settings, count):
        found.append({"seed": application.seed, "variants": {name: _figures(application, name) for name in VARIANTS}})
        settings.say(f"{application}: {len(found)} of {count}")
    columns = ("cpu_vs_nr", "cpu_vs_sr", "cost_vs_sr", "dropped_share")
    rows = [
        {"variant": name, **_merged(spread(column, [application["variants"][name][column] for application in found])
                                    for column in columns)}
        for name in VARIANTS
    ]  # fmt: skip
    by = {row["variant"]: row for row in rows}
    drops = by["SR"]["dropped_share"] or 1.0
    order = ("NR", "L.5", "L.6", "L.7", "GRD", "SR")
    return Result(
        keys=("variant",),
        rows=rows,
        paper=_PAPER,
        bars=[
            *(
                at_most(f"mean CPU time of {less} / {more}", by[less]["cpu_vs_nr"] / by[more]["cpu_vs_nr"], 1.0)
                for less, more in pairwise(order)
            ),
            at_most("tuples dropped by L.7 / by SR", by["L.7"]["dropped_share"] / drops, 0.1),
        ],
        notes=[
            setup_note(count, settings),
            "`cpu vs nr` and `cpu vs sr` are CPU cycles of a simulated run relative to NR's and SR's of the same"
            " application; `cost vs sr` is what the model says of the same. SR's CPU time is less than twice NR's"
            " because its hosts are full at High: what it cannot do it drops.",
            "The paper relates dropped tuples to those of NR, which drops none here; here they are a share of all"
            " tuples that arrive at PEs' queues. Its plots have no figures beyond those shown.",
        ],
        plot=lambda figure: _plot(figure, rows),
        shown=("cpu_vs_nr", "cpu_vs_nr_least", "cpu_vs_nr_most", "cpu_vs_sr", "cost_vs_sr", "dropped_share",
               "dropped_share_most"),
        also={"applications": found, "seed": settings.seed},
    )  # fmt: skip


def _merged(parts: Any) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


def _figures(application: SimulatedApplication, name: str) -> dict[str, float]:
    own, cost = application.best[name], application.model.cost(application.strategies[name])
    return {
        "cpu_vs_nr": own.cycles / application.best["NR"].cycles,
        "cpu_vs_sr": own.cycles / application.best["SR"].cycles,
        "cost_vs_sr": float(cost / application.model.cost(application.strategies["SR"])),
        "dropped_share": own.dropped / (own.processed + own.dropped),
    }


def _plot(figure: Figure, rows: list[dict[str, Any]]) -> None:

    top, bottom = figure.subplots(2, 1, sharex=True)
    boxes(top, rows, "cpu_vs_nr", "CPU time / NR's", _PAPER)
    boxes(bottom, rows, "dropped_share", "tuples dropped / arrived")


EXPERIMENT = Experiment(
    name="laar-cost",
    title="CPU time and dropped tuples of the variants when nothing fails",
    figure="LAAR, Fig. 9",
    needs="nothing",
    run=run,
)
