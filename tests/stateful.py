"""A pipeline of each kind of stateful operator, over the same rows: what is done to state is shown for all of them."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

import holdfast as hf

ROWS = 600
EVENTS = pl.DataFrame(
    {
        "ts": [i // 2 * 3 + (i % 5) for i in range(ROWS)],
        "k": [None if i % 41 == 0 else i * 7 % 23 for i in range(ROWS)],
        "v": [float(i % 13) for i in range(ROWS)],
        "s": [f"s{i % 4}" for i in range(ROWS)],
    }
)


def tick(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    """Count the rows of a key; a timer after the last one puts the count out and takes the state away."""
    fired = context.timers.join(state, on="k", how="inner", nulls_equal=True)
    if not rows.height:
        return hf.Step(output=fired.select("k", "n", "at"), deletes=fired.select("k"))
    fresh = rows.group_by("k").agg(n=pl.len().cast(pl.Int64), last=pl.col("ts").max())
    both = pl.concat([state, fresh.select("k", "n")]).group_by("k").agg(pl.col("n").sum())
    timers = fresh.select("k", at=pl.col("last") + 40)
    return hf.Step(upserts=both, timers=timers)


def _rows(pipeline: hf.Pipeline, frames: int = 6) -> hf.Stream:
    size = ROWS // frames
    source = hf.source.memory([EVENTS[at : at + size] for at in range(0, ROWS, size)], epochs=True)
    return pipeline.source("in", source, event_time="ts", time_unit="s", lateness="3s")


def timed_process() -> hf.Pipeline:
    pipeline = hf.Pipeline("kinds")
    out = {"k": pl.Int64, "n": pl.Int64, "at": pl.Int64}
    keyed = _rows(pipeline).key_by("k")
    keyed.process(tick, state={"n": pl.Int64}, output=out, ttl="30s", timers=True, name="op").sink(
        "out", hf.sink.collect()
    )
    return pipeline


def running_total(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    totals = pl.concat([state, rows.select("k", total="v")]).group_by("k").agg(pl.col("total").sum())
    return hf.Step(output=totals, upserts=totals)


def lasting_process() -> hf.Pipeline:
    pipeline = hf.Pipeline("kinds")
    process = _rows(pipeline).key_by("k").process(
        running_total, state={"total": pl.Float64}, output={"k": pl.Int64, "total": pl.Float64}, ttl="20s", name="op"
    )  # fmt: skip
    process.sink("out", hf.sink.collect())
    return pipeline


def _windows(window: hf.graph.windows.Window, *keys: str) -> Callable[[], hf.Pipeline]:
    def build() -> hf.Pipeline:
        pipeline = hf.Pipeline("kinds")
        rows = _rows(pipeline)
        windows = rows.key_by(*keys).window(window) if keys else rows.window(window)
        windows.agg(n=hf.count(), v=hf.sum("v"), top=hf.top_k("v", 2)).named("op").sink("out", hf.sink.collect())
        return pipeline

    return build


def joined() -> hf.Pipeline:
    pipeline = hf.Pipeline("kinds")
    rows = _rows(pipeline)
    right = rows.filter(pl.col("v") > 6).select("ts", "k", v=pl.col("s"))
    rows.join(right, on="k", window=hf.window.sliding("60s", "30s"), name="op").sink("out", hf.sink.collect())
    return pipeline


KINDS: dict[str, Callable[[], hf.Pipeline]] = {
    "process with timers": timed_process,
    "process": lasting_process,
    "sliding": _windows(hf.window.sliding("60s", "20s"), "k"),
    "tumbling of all": _windows(hf.window.tumbling("50s")),
    "sessions": _windows(hf.window.session("9s"), "k", "s"),
    "session of all": _windows(hf.window.session("2s")),
    "count": _windows(hf.window.count(7, 3), "k"),
    "count of all": _windows(hf.window.count(50)),
    "join": joined,
}
