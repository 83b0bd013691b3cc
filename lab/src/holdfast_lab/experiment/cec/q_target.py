"""Experiment `cec-q`, Fig. 6 of CEC: what the target for records to read back (Q) does to a recovery."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.checkpoint import eventual
from holdfast_lab.bench.query_runs import session
from holdfast_lab.experiment.cec.eventual_runs import EventualQuery
from holdfast_lab.experiment.cec.target_runs import (
    IDS,
    LOADS,
    SHOWN,
    SPENDS,
    load_bars,
    loads,
    plot,
    sized,
    stall_bar,
    wrong_bar,
)
from holdfast_lab.experiment.definition import Experiment, Result, Settings
from holdfast_lab.experiment.time_limit import TimeLimit

__all__ = ["EXPERIMENT"]

_OPEN = 0.9
"""The share of the ids that have an open window, in the paper and here."""
_IDS_TO_LOAD = 125_000
"""With 100,000 ids and epochs of as many rows a log ends at less than 500,000 records: its oldest windows close."""
_QUICK_SECONDS = 85.0
_SOURCE = "CEC, §IV.B, Fig. 6"
_PAPER = (
    {"q_over_open": 1, "extent": 120_000, "extent_over_open": 1.33, "ec_load_s": 3.5, "replay_per_id": 2.5,
     "source": f"{_SOURCE}: 120,000 tuples in 3.5 s, 25 MB of tuples of 100 bytes"},
    {"q_over_open": 2, "extent": 180_000, "extent_over_open": 2.0, "ec_load_s": 5.0, "replay_per_id": 5.0,
     "source": f"{_SOURCE}: 180,000 tuples in 5 s, 50 MB of tuples of 100 bytes"},
    {"q_over_open": 4, "ec_load_s": 14.0, "source": f"{_SOURCE}: 'between 14 and 27 seconds'"},
    {"q_over_open": 8, "extent": 500_000, "extent_over_open": 5.56, "ec_load_s": 27.0, "replay_per_id": 20.0,
     "source": f"{_SOURCE}: 500,000 tuples, 27 s, more than 200 MB of tuples of 100 bytes"},
)  # fmt: skip


def run(settings: Settings) -> Result:

    ids = settings.pick(quick=IDS[0], full=IDS[1])
    spend, period = settings.pick(quick=SPENDS[0], full=SPENDS[1])
    query = EventualQuery("windows of 10", ids, size=10, epoch_rows=ids, seed=settings.seed)
    larger = replace(query, ids=_IDS_TO_LOAD, epoch_rows=_IDS_TO_LOAD)
    crash, epochs = settings.pick(quick=(32, 36), full=(48, 56))
    times = settings.pick(quick=3, full=9)
    asked = {
        many: eventual(Q=round(many * _OPEN * ids), CI=f"{spend}ms", CP=f"{period}ms")
        for many in settings.pick(quick=(2, 8, 1, 4), full=(1, 2, 4, 8))
    }
    loaded: list[dict[str, Any]] = []
    with session("holdfast") as spark:
        limit = TimeLimit(settings.pick(quick=_QUICK_SECONDS, full=3_600.0))
        if limit.allows("loads", needed=True):
            loaded = loads(spark, larger, settings.work / "loads", tuple(LOADS), times)
            for load in loaded:
                settings.say(f"{load['extent']:,} records are loaded in {load['ec_load_s']:.3f} s")
        rows = sized(settings, spark, query, asked, "q_over_open", crash, epochs, limit)
    return Result(
        keys=("q_over_open",),
        rows=rows,
        paper=_PAPER,
        bars=[*load_bars(loaded), stall_bar(rows, spend), wrong_bar(rows)],
        notes=[
            f"{ids:,} ids (the paper: 100,000), windows of 10 purchases, epochs of {ids:,} rows; Q is so many times the"
            f" open windows, {_OPEN:.0%} of the ids as in the paper. The volatile tier is lost after epoch {crash}, and"
            " outputs are compared with a run without a loss.",
            f"The paper gives CI = 5 ms out of every CP = 100 ms. Here windows are seen to once per epoch at most, so"
            f" the same twentieth is CI = {spend} ms out of CP = {period} ms.",
            "`ec load` is the phase of recovery that reads the log, finds the last footprints, and makes state of them;"
            " the extent is what had to be read of the log. A log keeps the counts of ids without an open window, too,"
            " so that no extent has fewer records than there are ids.",
            f"The bars on loading are of the log of {_IDS_TO_LOAD:,} ids with open and close records alone, when it has"
            f" grown to 180,000 and to 500,000 records, loaded {times} times by the code of recovery, without a"
            " replay: the median.",
            "Rows are replayed from the source, which makes them again; the paper's filter reads them from a log. A row"
            " has 24 bytes here and 100 there, so rows are compared, per id.",
            *limit.notes(),
        ],
        plot=lambda figure: plot(figure, rows, "q_over_open", "Q / open windows", _PAPER),
        shown=SHOWN,
        also={"loads": loaded},
    )


EXPERIMENT = Experiment(
    name="cec-q",
    title="Recovery by the target for records to read back (Q)",
    figure="CEC, Fig. 6",
    needs="Java 17; a disk that syncs; memory to write to (tmpfs)",
    run=run,
)
