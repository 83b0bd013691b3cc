"""Experiment `laar-failures`, Fig. 11 of LAAR: completeness in the worst case, as fast as the paper's controller and as
fast as that of hosts, and when a host crashes."""

from __future__ import annotations

from typing import Any

from holdfast.laar.reaction import HOSTS
from holdfast_lab.experiment.definition import Experiment, Figure, Result, Row, Settings, at_least, at_most
from holdfast_lab.experiment.laar.applications import (
    LAAR,
    VARIANTS,
    SimulatedApplication,
    boxes,
    named,
    ran,
    setup_note,
    spread,
)
from holdfast_lab.experiment.plots import COLOURS

__all__ = ["EXPERIMENT"]

_SOURCE = "LAAR, §5.3, Fig. 11"
_WORST, _CRASH, _PACE = "worst case", "host crash", "worst case, reaction of hosts"
_PAPER: tuple[Row, ...] = (
    {"failure": _WORST, "variant": "NR", "ic_most": 0.0, "source": f"{_SOURCE}: NR puts out nothing"},
    {"failure": _WORST, "variant": "GRD", "ic_least": 0.35, "ic_most": 0.95,
     "source": f"{_SOURCE}: as big as 0.95, as low as 0.35"},
    *({"failure": _WORST, "variant": name, "below_by": 0.047,
       "source": f"{_SOURCE}: violated in a very limited number of cases, never by more than 4.7 %"}
      for name in ("L.5", "L.6", "L.7")),
)  # fmt: skip


def run(settings: Settings) -> Result:

    count, crashes, paced = settings.pick(quick=(8, 4, 4), full=(100, 40, 40))
    found: list[dict[str, Any]] = []
    for application in ran(settings, count, worst=True, crashes=crashes):
        whole = application.best["NR"].processed
        figures: dict[str, Any] = {
            _WORST: {name: application.worst[name].processed / whole for name in VARIANTS},
            _CRASH: {name: own.processed / whole for name, own in application.crashed.items()},
        }
        crash = None if application.crash is None else {"host": application.crash.host, "at_s": application.crash.at}
        found.append({"seed": application.seed, "guaranteed": _guaranteed(application), "crash": crash, **figures})
        settings.say(f"{application}: {len(found)} of {count}")
    later: list[dict[str, Any]] = []
    for application in ran(settings, paced, worst=True, reaction=HOSTS):
        kept = {name: application.worst[name].processed / application.best["NR"].processed for name in VARIANTS}
        later.append({"seed": application.seed, "guaranteed": _guaranteed(application), _PACE: kept})
        settings.say(f"{application}, with the reaction of hosts: {len(later)} of {paced}")
    rows = [_row(own, failure, name, LAAR.get(name))
            for failure, own in ((_WORST, found), (_CRASH, found), (_PACE, later)) for name in VARIANTS]  # fmt: skip
    laar = [row for row in rows if row["variant"] in LAAR]
    return Result(
        keys=("failure", "variant"),
        rows=rows,
        paper=_PAPER,
        bars=[
            at_most("worst-case runs below the IC that LAAR was asked for",
                    sum(row["violations"] for row in laar if row["failure"] == _WORST), 0),
            at_most("runs with a crash below the IC that LAAR was asked for",
                    sum(row["violations"] for row in laar if row["failure"] == _CRASH), 0),
            at_most("worst-case runs with the reaction of hosts below the IC that LAAR was asked for",
                    sum(row["violations"] for row in laar if row["failure"] == _PACE), 0),
            at_least("least IC of LAAR in the worst case above its target",
                     min(row["ic_least"] - LAAR[row["variant"]] for row in laar if row["failure"] == _WORST), 0.0),
        ],
        notes=[
            setup_note(count, settings),
            "IC is what PEs processed, relative to NR without a failure, as in the paper. In the worst case one replica"
            " of each PE is dead all the time, and the one that is left is idle wherever the strategy lets one idle. A"
            f" crash is of one host for 16 s while the input is High, in {crashes} of the applications.",
            f"`{_PACE}`: {paced} applications whose controller sees higher rates {HOSTS.up:g} s late at most and lower"
            f" ones {HOSTS.down:g} s, as on hosts, instead of a second; there LAAR's targets are raised by what comes"
            " until then, and applications are those in which that much is possible.",
            "`violations` are runs below the target of the variant; `below by` is the worst of them, `guaranteed` the"
            " mean IC that the model promises.",
        ],
        plot=lambda figure: _plot(figure, rows),
        shown=("ic", "ic_least", "ic_median", "ic_most", "guaranteed", "runs", "violations", "below_by"),
        also={"applications": found, "with_the_reaction_of_hosts": later, "seed": settings.seed},
    )  # fmt: skip


def _guaranteed(application: SimulatedApplication) -> dict[str, float]:
    return {name: float(application.model.guaranteed(strategy)) for name, strategy in application.strategies.items()}


def _row(found: list[dict[str, Any]], failure: str, name: str, target: float | None) -> dict[str, Any]:

    measured = [
        (application[failure][name], application["guaranteed"][name])
        for application in found
        if name in application[failure]
    ]
    below = [0.0 if target is None else max(0.0, target - ic) for ic, _ in measured]
    return {
        "failure": failure,
        "variant": name,
        **spread("ic", [ic for ic, _ in measured]),
        "target": target,
        "guaranteed": sum(promised for _, promised in measured) / len(measured),
        "runs": len(measured),
        "violations": sum(short > 0 for short in below) if target is not None else None,
        "below_by": max(below) if target is not None else None,
    }


def _plot(figure: Figure, rows: list[dict[str, Any]]) -> None:

    for axes, failure in zip(figure.subplots(3, 1, sharex=True), (_WORST, _CRASH, _PACE), strict=True):
        own = [row for row in rows if row["failure"] == failure]
        boxes(axes, own, "ic", f"IC, {failure}", [row for row in _PAPER if row["failure"] == failure])
        for at, row in enumerate(own, start=1):
            if row["target"] is not None:
                axes.plot([at - 0.45, at + 0.45], [row["target"]] * 2, color=COLOURS[3], linewidth=2, linestyle="--",
                          label="target")  # fmt: skip
        named(axes)
        axes.set_ylim(bottom=0.0)


EXPERIMENT = Experiment(
    name="laar-failures",
    title="Completeness in the worst case and when a host crashes, against what is guaranteed",
    figure="LAAR, Fig. 11",
    needs="nothing",
    run=run,
)
