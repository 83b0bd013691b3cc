"""Experiment `laar-peak`, Fig. 10 of LAAR: what applications put out while the input peaks."""

from __future__ import annotations

from typing import Any

from holdfast_lab.experiment.definition import Experiment, Figure, Result, Row, Settings, at_least
from holdfast_lab.experiment.laar.applications import LAAR, VARIANTS, boxes, ran, setup_note, spread

__all__ = ["EXPERIMENT"]

_SOURCE = "LAAR, §5.3, Fig. 10"
_PAPER: tuple[Row, ...] = (
    {"variant": "SR", "peak_vs_nr": 0.67, "peak_vs_nr_least": 0.37,
     "source": f"{_SOURCE}: on average 33 % slower than NR, up to 63 %"},
    {"variant": "GRD", "peak_vs_nr_least": 0.62, "peak_vs_nr_most": 0.98,
     "source": f"{_SOURCE}: from 2 % to 38 % slower than NR"},
    *({"variant": name, "peak_vs_nr_least": 0.91, "source": f"{_SOURCE}: with LAAR at most 9 % slower"}
      for name in ("L.5", "L.6", "L.7")),
)  # fmt: skip


def run(settings: Settings) -> Result:

    count = settings.pick(quick=8, full=100)
    found: list[dict[str, Any]] = []
    for application in ran(settings, count):
        peaks = {name: application.best[name].peak / application.best["NR"].peak for name in VARIANTS}
        found.append({"seed": application.seed, "peak_vs_nr": peaks})
        settings.say(f"{application}: {len(found)} of {count}")
    rows: list[dict[str, Any]] = [
        {"variant": name, **spread("peak_vs_nr", [application["peak_vs_nr"][name] for application in found])}
        for name in VARIANTS
    ]
    by = {row["variant"]: row for row in rows}
    return Result(
        keys=("variant",),
        rows=rows,
        paper=_PAPER,
        bars=[
            *(at_least(f"least output of {name} at the peak / NR's", by[name]["peak_vs_nr_least"], 0.91)
              for name in LAAR),
            at_least("output of L.7 at the peak / SR's, on average", by["L.7"]["peak_vs_nr"] / by["SR"]["peak_vs_nr"],
                     1.0),
        ],
        notes=[
            setup_note(count, settings),
            "Tuples that PEs without successors put out while the input is High, relative to NR, which has room for all"
            " of them. The bars are what the paper has measured.",
            "GRD leaves no host overloaded here, so it loses little: in the simulator load is exactly what the"
            " descriptor says.",
        ],
        plot=lambda figure: _plot(figure, rows),
        shown=("peak_vs_nr", "peak_vs_nr_least", "peak_vs_nr_median", "peak_vs_nr_most"),
        also={"applications": found, "seed": settings.seed},
    )  # fmt: skip


def _plot(figure: Figure, rows: list[dict[str, Any]]) -> None:

    axes = figure.subplots()
    boxes(axes, rows, "peak_vs_nr", "output at the peak / NR's", _PAPER)
    axes.set_ylim(bottom=0.0)


EXPERIMENT = Experiment(
    name="laar-peak",
    title="What the variants put out while the input peaks",
    figure="LAAR, Fig. 10",
    needs="nothing",
    run=run,
)
