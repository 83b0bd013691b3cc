"""Writes a small store with the formats of today: `python tests/formats/make.py tests/formats/store-2`.

Run it once when a format gets a new version, and keep the stores of the versions before.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import tempfile
from pathlib import Path

import polars as pl

import holdfast as hf
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.epoch.report import EpochReport
from holdfast.formats import EXPORT_VERSION
from holdfast.meta import MetaStore
from holdfast.replica.fragment_notes import Decision, StoredNotes
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.seat_store import Agreement
from holdfast.replica.seats import Beat, Enlist, Seize

EVENTS = pl.DataFrame(
    {
        "ts": range(0, 20_000, 50),
        "who": [f"user-{i % 7}" if i % 11 else None for i in range(400)],
        "v": [float(i % 13) for i in range(400)],
    }
)


def totals(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    added = rows.select("who", total="v")
    return hf.Step(upserts=pl.concat([state, added]).group_by("who").agg(pl.col("total").sum()))


def pipeline() -> hf.Pipeline:
    result = hf.Pipeline("kept")
    source = hf.source.memory([EVENTS[:200], EVENTS[200:]], epochs=True)
    keyed = result.source("events", source, event_time="ts", time_unit="ms").key_by("who")
    windows = keyed.window(hf.window.sliding("30s", "10s"))
    windows.agg(n=hf.count(), best=hf.top_k("v", 2)).named("windows").sink("w", hf.sink.collect())
    output, state = {"who": pl.String}, {"total": pl.Float64}
    keyed.process(totals, state=state, output=output, keep_forever=True, name="totals").sink("t", hf.sink.collect())
    return result


def cut_pipeline() -> hf.Pipeline:
    """The same events through a p-stream, four epochs of them."""
    result = hf.Pipeline("cut")
    source = hf.source.memory([EVENTS[start : start + 100] for start in range(0, 400, 100)], epochs=True)
    rows = result.source("events", source, event_time="ts", time_unit="ms").persist("stream", push_up=False)
    windows = rows.key_by("who").window(hf.window.tumbling("5s"))
    windows.agg(n=hf.count(), v=hf.sum("v")).named("windows").sink("out", hf.sink.collect())
    return result


def traced_pipeline() -> hf.Pipeline:
    """Count windows that leave footprints, four epochs of them."""
    result = hf.Pipeline("traced")
    source = hf.source.memory([EVENTS[start : start + 100] for start in range(0, 400, 100)], epochs=True)
    windows = (
        result.source("events", source, event_time="ts", time_unit="ms")
        .key_by("who")
        .window(hf.window.count(40), name="sums", checkpoint=hf.checkpoint.eventual(Q=1_000))
    )
    windows.agg(v=hf.sum("v")).sink("out", hf.sink.collect())
    return result


def short_epochs(store: Path) -> None:
    """Epochs so short that the records of most of them are written as changes: running totals after each."""
    result = hf.Pipeline("short")
    source = hf.source.memory([EVENTS[start : start + 20] for start in range(0, 400, 20)], epochs=True)
    keyed = result.source("events", source, event_time="ts", time_unit="ms").key_by("who")
    output, state = {"who": pl.String}, {"total": pl.Float64}
    keyed.process(totals, state=state, output=output, keep_forever=True, name="totals").sink("t", hf.sink.collect())
    options = hf.RunOptions(store=store, checkpoint=hf.checkpoint.delta(), max_epochs=12, retain=4)
    FragmentRun(result, InProcessPlatform(), options).run()


class _KilledError(Exception):
    pass


class _Killing(hf.Observer):
    def epoch_committed(self, report: EpochReport) -> None:
        if report.epoch == 3:
            raise _KilledError


def seat_hosts(store: Path) -> None:
    """Two hosts that keep the pipeline under active standby."""
    meta = MetaStore(store)
    agreement = Agreement(meta, "host:1:0.00", lambda: 1_000.0)
    agreement.open("kept", ACTIVE_STANDBY, StoredNotes(decisions=(Decision(1.0, None, "why"),)))
    agreement.ask({"kept": [Beat("a", 1, 0, None), Beat("b", 1, 0, ACTIVE_STANDBY), Seize("a", 1, None, None)]})
    agreement.ask({"kept": [Enlist("b", 1, None, None)]})
    meta.close()


if __name__ == "__main__":
    store = Path(sys.argv[1])
    # State that only the footprints have.
    with tempfile.TemporaryDirectory() as volatile, contextlib.suppress(_KilledError):
        hf.run(traced_pipeline(), store=store, volatile=Path(volatile), observer=_Killing())
    hf.run(pipeline(), store=store, max_epochs=1)
    hf.export_state(store, "kept", "totals", store.with_name(f"state-{EXPORT_VERSION}.parquet"))
    # The writer is two entries ahead of the reader.
    hf.run(cut_pipeline(), store=store, fragments=["stream"], max_epochs=3)
    hf.run(cut_pipeline(), store=store, fragments=["out"], max_epochs=1, least_rows=100, most_rows=100)
    short_epochs(store)
    seat_hosts(store)
    with sqlite3.connect(store / "meta.db") as database:
        database.execute("update leases set owner = 'host:1:0.00'")
    with database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    for leftover in ("meta.db-wal", "meta.db-shm"):
        (store / leftover).unlink(missing_ok=True)
