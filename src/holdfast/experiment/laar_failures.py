"""Experiment `laar-failures`, Fig. 11 of LAAR: completeness in the worst case and when a host crashes."""

from __future__ import annotations

from typing import Any

from holdfast.experiment.frame import Experiment, Figure, Result, Row, Settings, at_least, at_most

__all__ = ["EXPERIMENT"]

_SOURCE = "LAAR, §5.3, Fig. 11"
_WORST, _CRASH = "worst case", "host crash"
_PAPER: tuple[Row, ...] = (
    {"failure": _WORST, "variant": "NR", "ic_most": 0.0, "source": f"{_SOURCE}: NR puts out nothing"},
    {"failure": _WORST, "variant": "GRD", "ic_least": 0.35, "ic_most": 0.95,
     "source": f"{_SOURCE}: as big as 0.95, as low as 0.35"},
    *({"failure": _WORST, "variant": name, "below_by": 0.047,
       "source": f"{_SOURCE}: violated in a very limited number of cases, never by more than 4.7 %"}
      for name in ("L.5", "L.6", "L.7")),
)  # fmt: skip


def run(settings: Settings) -> Result:
    from holdfast.experiment.laar import LAAR, VARIANTS, ran, setup_note

    count, crashes = settings.pick(quick=(8, 4), full=(100, 40))
    found: list[dict[str, Any]] = []
    for each in ran(settings, count, worst=True, crashes=crashes):
        whole = each.best["NR"].processed
        figures: dict[str, Any] = {
            _WORST: {name: each.worst[name].processed / whole for name in VARIANTS},
            _CRASH: {name: own.processed / whole for name, own in each.crashed.items()},
        }
        guaranteed = {name: float(each.model.guaranteed(strategy)) for name, strategy in each.strategies.items()}
        crash = None if each.crash is None else {"host": each.crash.host, "at_s": each.crash.at}
        found.append({"seed": each.seed, "guaranteed": guaranteed, "crash": crash, **figures})
        settings.say(f"{each}: {len(found)} of {count}")
    rows = [_row(found, failure, name, LAAR.get(name)) for failure in (_WORST, _CRASH) for name in VARIANTS]
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
            at_least("least IC of LAAR in the worst case above its target",
                     min(row["ic_least"] - LAAR[row["variant"]] for row in laar if row["failure"] == _WORST), 0.0),
        ],
        notes=[
            setup_note(count, settings),
            "IC is what PEs processed, relative to NR without a failure, as in the paper. In the worst case one replica"
            " of each PE is dead all the time, and the one that is left is idle wherever the strategy lets one idle. A"
            f" crash is of one host for 16 s while the input is High, in {crashes} of the applications.",
            "`violations` are runs below the target of the variant; `below by` is the worst of them, `guaranteed` the"
            " mean IC that the model promises.",
        ],
        plot=lambda figure: _plot(figure, rows),
        shown=("ic", "ic_least", "ic_median", "ic_most", "guaranteed", "runs", "violations", "below_by"),
        also={"applications": found, "seed": settings.seed},
    )  # fmt: skip


def _row(found: list[dict[str, Any]], failure: str, name: str, target: float | None) -> dict[str, Any]:
    from holdfast.experiment.laar import spread

    measured = [(each[failure][name], each["guaranteed"][name]) for each in found if name in each[failure]]
    below = [0.0 if target is None else max(0.0, target - ic) for ic, _ in measured]
    return {
        "failure": failure,
        "variant": name,
        **spread("ic", [ic for ic, _ in measured]),
        "target": target,
        "guaranteed": sum(promised for _, promised in measured) / len(measured),
        "runs": len(measured),
        "violations": sum(each > 0 for each in below) if target is not None else None,
        "below_by": max(below) if target is not None else None,
    }


def _plot(figure: Figure, rows: list[dict[str, Any]]) -> None:
    from holdfast.experiment.laar import boxes, named
    from holdfast.experiment.plots import COLOURS

    for axes, failure in zip(figure.subplots(2, 1, sharex=True), (_WORST, _CRASH), strict=True):
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
