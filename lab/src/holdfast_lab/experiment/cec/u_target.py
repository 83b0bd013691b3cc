"""Experiment `cec-u`, Fig. 7 of CEC: what the target for rows to replay (U) does to a recovery."""

from __future__ import annotations

from holdfast.checkpoint import eventual
from holdfast_lab.bench.query_runs import session
from holdfast_lab.experiment.cec.eventual_runs import EventualQuery
from holdfast_lab.experiment.cec.target_runs import IDS, SHOWN, SPENDS, plot, sized, stall_bar, wrong_bar
from holdfast_lab.experiment.definition import Experiment, Result, Settings
from holdfast_lab.experiment.time_limit import TimeLimit

__all__ = ["EXPERIMENT"]

_PER_EPOCH = 0.625
"""Rows per id in an epoch: the smallest target is two epochs."""
_QUICK_SECONDS = 85.0
_SOURCE = "CEC, §IV.B, Fig. 7"
_PAPER = (
    {"u_per_id": 1.25, "extent": 120_000, "extent_over_open": 1.33, "ec_load_s": 2.5, "replay_per_id": 2.0,
     "source": f"{_SOURCE}: 120,000 tuples in 2.5 s, 20 MB (200,000 tuples)"},
    {"u_per_id": 10.0, "extent": 230_000, "extent_over_open": 2.56, "ec_load_s": 6.7, "replay_per_id": 9.0,
     "source": f"{_SOURCE}: 230,000 tuples in 6.7 s, 90 MB (900,000 tuples)"},
)  # fmt: skip


def run(settings: Settings) -> Result:

    ids = settings.pick(quick=IDS[0], full=IDS[1])
    spend, period = settings.pick(quick=SPENDS[0], full=SPENDS[1])
    query = EventualQuery("windows of 10", ids, size=10, epoch_rows=round(_PER_EPOCH * ids), seed=settings.seed)
    crash, epochs = settings.pick(quick=(36, 40), full=(64, 72))
    targets = settings.pick(quick=(1.25, 10.0, 5.0, 2.5), full=(1.25, 2.5, 3.75, 5.0, 6.25, 7.5, 8.75, 10.0))
    asked = {many: eventual(U=round(many * ids), CI=f"{spend}ms", CP=f"{period}ms") for many in targets}
    with session("holdfast") as spark:
        limit = TimeLimit(settings.pick(quick=_QUICK_SECONDS, full=3_600.0))
        rows = sized(settings, spark, query, asked, "u_per_id", crash, epochs, limit)
    return Result(
        keys=("u_per_id",),
        rows=rows,
        paper=_PAPER,
        bars=[stall_bar(rows, spend), wrong_bar(rows)],
        notes=[
            f"{ids:,} ids, windows of 10 purchases, epochs of {query.epoch_rows:,} rows, of which the smallest target"
            " is two. U is so many times the ids; the paper has 125,000 to 1,000,000 for 100,000 ids. The volatile tier"
            f" is lost after epoch {crash}, and outputs are compared with a run without a loss.",
            f"CI = {spend} ms out of every CP = {period} ms, a twentieth as in the paper (5 ms out of 100 ms): here"
            " windows are seen to once per epoch at most.",
            "What is replayed is whole epochs.",
            "`ec load` and rows are as in cec-q.",
            *limit.notes(),
        ],
        plot=lambda figure: plot(figure, rows, "u_per_id", "U / ids", _PAPER),
        shown=SHOWN,
    )


EXPERIMENT = Experiment(
    name="cec-u",
    title="Recovery by the target for rows to replay (U)",
    figure="CEC, Fig. 7",
    needs="Java 17; a disk that syncs; memory to write to (tmpfs)",
    run=run,
)
