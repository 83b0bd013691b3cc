"""Experiment `cec-u`, Fig. 7 of CEC: what the target for rows to replay (U) does to a recovery."""

from __future__ import annotations

from holdfast.experiment.frame import Experiment, Result, Settings

__all__ = ["EXPERIMENT"]

_CI_MS, _CP_MS = 20, 400
_EPOCH_ROWS = 62_500
_QUICK_SECONDS = 95.0
_SOURCE = "CEC, §IV.B, Fig. 7"
_PAPER = (
    {"u": 125_000, "extent": 120_000, "ec_load_s": 2.5, "replay_rows": 200_000,
     "source": f"{_SOURCE}: 120,000 tuples in 2.5 s, 20 MB (200,000 tuples)"},
    {"u": 1_000_000, "extent": 230_000, "ec_load_s": 6.7, "replay_rows": 900_000,
     "source": f"{_SOURCE}: 230,000 tuples in 6.7 s, 90 MB (900,000 tuples)"},
)  # fmt: skip


def run(settings: Settings) -> Result:
    from holdfast.bench.queries import session
    from holdfast.experiment.cec import Query
    from holdfast.experiment.cec_sizes import SHOWN, plot, sized, stall_bar, wrong_bar
    from holdfast.experiment.lost_hosts import Limit
    from holdfast.graph.policies import eventual

    query = Query("windows of 10", 100_000, size=10, epoch_rows=_EPOCH_ROWS, seed=settings.seed)
    crash, epochs = settings.pick(quick=(36, 40), full=(64, 72))
    limit = Limit(settings.pick(quick=_QUICK_SECONDS, full=3_600.0))
    targets = settings.pick(
        quick=(125_000, 1_000_000, 500_000), full=(125_000, 250_000, 375_000, 500_000, 625_000, 750_000, 875_000,
                                                   1_000_000),
    )  # fmt: skip
    asked = {rows: eventual(U=rows, CI=f"{_CI_MS}ms", CP=f"{_CP_MS}ms") for rows in targets}
    with session("holdfast") as spark:
        rows = sized(settings, spark, query, asked, "u", crash, epochs, limit)
    return Result(
        keys=("u",),
        rows=rows,
        paper=_PAPER,
        bars=[stall_bar(rows, _CI_MS), wrong_bar(rows)],
        notes=[
            f"100,000 ids, windows of 10 purchases, epochs of {_EPOCH_ROWS:,} rows, of which the smallest target is"
            f" two. The volatile tier is lost after epoch {crash}, and outputs are compared with a run without a loss.",
            f"CI = {_CI_MS} ms out of every CP = {_CP_MS} ms, a twentieth as in the paper (5 ms out of 100 ms): here"
            " windows are seen to once per epoch at most.",
            "What is replayed is whole epochs; among them may be one that was planned and not committed when the state"
            " was lost, which is beyond the target.",
            "`ec load` and rows are as in cec-q.",
            *limit.notes(),
        ],
        plot=lambda figure: plot(figure, rows, "u", "U, rows", _PAPER),
        shown=SHOWN,
    )


EXPERIMENT = Experiment(
    name="cec-u",
    title="Recovery by the target for rows to replay (U)",
    figure="CEC, Fig. 7",
    needs="Java 17; a disk that syncs; memory to write to (tmpfs)",
    run=run,
)
