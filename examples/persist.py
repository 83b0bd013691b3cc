"""A pipeline in two fragments: one keeps what it reads, the other counts, and each can be killed on its own.

holdfast explain examples/persist.py                     # where the p-stream cuts, and why there
holdfast run examples/persist.py                         # both fragments in one process
holdfast run examples/persist.py --fragment kept         # or each in a terminal of its own,
holdfast run examples/persist.py --fragment totals       # on the same store
holdfast streams                                         # what the p-stream holds, and for whom
"""

from __future__ import annotations

import polars as pl

import holdfast as hf

SALES = pl.DataFrame(
    {
        "at": range(0, 60_000, 10),
        "shop": [f"shop-{i % 7}" for i in range(6_000)],
        "amount": [float(i % 50) - 5.0 for i in range(6_000)],
        "note": ["nobody reads this column"] * 6_000,
    }
)


def build() -> hf.Pipeline:
    """Totals of sales per shop and ten seconds, behind a p-stream."""
    pipeline = hf.Pipeline("sales")
    (
        pipeline.source("events", hf.source.memory(SALES), event_time="at", time_unit="ms")
        .persist("kept")
        .filter(pl.col("amount") > 0)
        .key_by("shop")
        .window(hf.window.tumbling("10s"))
        .agg(total=hf.sum("amount"), sales=hf.count())
        .sink("totals", hf.sink.database("sqlite:///sales.db", "totals"))
    )
    return pipeline


if __name__ == "__main__":
    hf.run(build())
