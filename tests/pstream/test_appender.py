"""The appender: what clients hand in is durable when they are told so, once, and in the order in which it came."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from appending import NUMBERS, STREAM, batch, content, delayed_writes, gated_commits
from hypothesis import example, given
from hypothesis import strategies as st

import holdfast as hf
from harness import WHOLE, Cut, run, run_in
from holdfast.errors import HoldfastError
from holdfast.graph.nodes import SourceNode
from holdfast.meta import Count, MetaStore, StreamMeta
from holdfast.pstream import Lineage, StreamDescription, UnitWriter
from holdfast.pstream import appender as module
from holdfast.pstream.appender import Ack, Appender, open_appender
from holdfast.pstream.link import StreamSource
from holdfast.pstream.pstream import PStream, new_entry
from holdfast.store import durable, segment_of
from strategies import SECONDS, Given, examples, streams, window_shapes


@pytest.mark.parametrize("rows", [2, 40_000])
def test_the_names_above_what_is_acknowledged_are_durable_whoever_has_made_them(
    opened: Callable[..., Appender], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Few rows go to a segment, many are a file of their own."""
    (tmp_path / "streams" / STREAM / "segments").mkdir(parents=True)  # by a process that was killed then
    synced: list[Path] = []
    monkeypatch.setattr(durable, "sync_directory", synced.append)
    appender = opened(sync=True, compress=False)
    appender.append(pl.DataFrame({"ts": range(rows), "v": range(rows)}))
    [entry] = appender.stream.read(0, rows)
    assert (segment_of(entry.units[0].name) is None) == (rows > 2)
    assert {tmp_path.parent, tmp_path, tmp_path / "streams"} <= set(synced)


# order and group commit


def test_the_order_of_submits_is_the_order_of_offsets(
    opened: Callable[..., Appender], monkeypatch: pytest.MonkeyPatch
) -> None:
    delayed_writes(monkeypatch, lambda frame: 0.05 if frame["v"][0] % 3 == 0 else 0.0)  # the first are done last
    appender = opened()
    acks = [answer.result(10) for answer in [appender.submit(batch(i, i)) for i in range(12)]]
    assert [(ack.offset, ack.rows) for ack in acks] == [(2 * i, 2) for i in range(12)]
    assert content(appender.stream) == [i for i in range(12) for _ in range(2)]


def test_many_clients_share_transactions_and_each_keeps_its_order(
    opened: Callable[..., Appender], meta: MetaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender = opened()
    transactions = []
    writing = meta.writing

    def counted(epoch: int | None = None) -> Any:
        transactions.append(threading.current_thread().name)
        return writing(epoch)

    monkeypatch.setattr(meta, "writing", counted)
    clients, batches = 8, 25
    acks: dict[int, list[Ack]] = {}

    def client(number: int) -> None:
        answers = [appender.submit(batch(number * 1_000 + i), f"{number}-{i}") for i in range(batches)]
        acks[number] = [answer.result(30) for answer in answers]

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = content(appender.stream)
    assert len(seen) == len(set(seen)) == clients * batches
    for number, own in acks.items():
        assert [value for value in seen if value // 1_000 == number] == [number * 1_000 + i for i in range(batches)]
        assert [seen[ack.offset] for ack in own] == [number * 1_000 + i for i in range(batches)]
    assert len(transactions) < clients * batches


def test_what_is_acknowledged_is_there_for_a_process_that_comes_later(
    opened: Callable[..., Appender], where: Path | str, tmp_path: Path
) -> None:
    appender = opened()
    appender.append(batch(1, 2), "a")
    other = MetaStore(where)
    assert content(PStream(other, tmp_path, STREAM)) == [1, 2]
    other.close()


# duplicates


def test_a_batch_that_was_taken_before_is_answered_as_the_first_time(opened: Callable[..., Appender]) -> None:
    appender = opened()
    first = appender.append(batch(1, 2), "a")
    appender.append(batch(3), "b")
    again = appender.append(batch(1, 2), "a")
    assert again == Ack(first.number, first.offset, first.rows, duplicate=True)
    appender = opened()
    assert appender.append(batch(1, 2), "a") == again, "also after a restart"
    assert content(appender.stream) == [1, 2, 3]
    assert appender.stream.retained()[0] == 2, "nothing of a duplicate is kept"


def test_of_a_batch_sent_twice_at_once_one_is_taken(
    opened: Callable[..., Appender], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = gated_commits(monkeypatch)
    appender = opened()
    answers = [appender.submit(batch(0))] + [appender.submit(batch(7), "same") for _ in range(6)]
    time.sleep(0.1)
    gate.set()  # all six in one transaction
    acks = [answer.result(10) for answer in answers[1:]]
    assert [ack.duplicate for ack in acks] == [False] + [True] * 5
    assert len({(ack.number, ack.offset) for ack in acks}) == 1
    assert content(appender.stream) == [0, 7]
    units = {unit.name for entry in appender.stream.read(0, 100) for unit in entry.units}
    assert set(appender.stream.store.names()) == {segment_of(name) for name in units}


def test_a_batch_id_is_forgotten_after_a_day_and_not_before(opened: Callable[..., Appender], meta: MetaStore) -> None:
    now = [1_000.0]
    appender = opened(clock=lambda: now[0])
    appender.append(batch(1), "a")
    now[0] += module._REMEMBERED_SECONDS - 1
    appender.append(batch(0), "tidy")
    assert appender.append(batch(1), "a").duplicate
    now[0] += module._HOUSEKEEPING_SECONDS + 1
    appender.append(batch(0), "tidy again")
    appender.append(batch(0))  # the commit after the housekeeping: by then it is done
    assert not appender.append(batch(1), "a").duplicate


def test_a_client_that_counts_is_told_how_far_it_has_come(opened: Callable[..., Appender]) -> None:
    appender = opened()
    assert appender.position("sensor") == 0
    appender.append(batch(1, 2), count=Count("sensor", 0, 2))
    appender.append(batch(3), count=Count("sensor", 2, 3))
    appender.append(batch(9), count=Count("other", 0, 1))
    assert (opened().position("sensor"), opened().position("other")) == (3, 1)


def test_the_count_of_a_client_that_is_silent_for_a_year_is_forgotten_and_no_sooner(
    opened: Callable[..., Appender],
) -> None:
    now = [0.0]
    appender = opened(clock=lambda: now[0])

    def tidy(day: int) -> None:
        now[0] = day * 86_400.0
        appender.append(batch(0))
        appender.append(batch(0))  # the commit after the housekeeping: by then it is done

    appender.append(batch(1), count=Count("silent", 0, 5))
    tidy(200)
    appender.append(batch(1), count=Count("busy", 0, 7))
    tidy(364)
    assert (appender.position("silent"), appender.position("busy")) == (5, 7)
    tidy(366)
    assert (appender.position("silent"), appender.position("busy")) == (0, 7)


# event time


def test_each_entry_keeps_the_watermark_it_found_and_the_one_it_left(opened: Callable[..., Appender]) -> None:
    appender = opened(lateness=10, prepare=lambda frame: frame.filter(pl.col("v") >= 0))
    for values, ts in (((1,), 100), ((2,), 50), ((-1,), 200), ((3,), 199)):
        appender.append(batch(*values, ts=ts))
    entries = appender.stream.read(0, 100)
    assert [entry.after for entry in entries] == [90, 90, 190, 190]
    assert [[unit.before for unit in entry.units] for entry in entries] == [[None], [90], [], [190]]
    assert opened(lateness=10).append(batch(4, ts=0)).number == 5
    assert appender.stream.read(4, 1)[0].units[0].before == 190, "a restart goes on with the watermark"


rows = streams("k", "v", clocks=(SECONDS,), most=40)


ONE_BATCH = Given(
    [{"ts": ts, "k": k, "v": 1} for ts, k in ((0, 0), (5, 1), (10, 0))],
    {"ts": pl.Int64(), "k": pl.Int64(), "v": pl.Int64()},
)


def once_quiet(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    """Says of each key when nothing came for three seconds."""
    last = rows.group_by("k").agg(n=pl.len().cast(pl.Int64), at=pl.col("ts").last() + 3)
    return hf.Step(output=context.timers, upserts=last.select("k", "n"), timers=last.select("k", "at"))


@examples(25)
@given(
    stream=rows,
    shape=window_shapes,
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=12),
    clients=st.integers(1, 4),
    epoch_rows=st.sampled_from([1, 3, 1_000]),
)
@example(stream=ONE_BATCH, shape=(10, 5), sizes=[7], clients=1, epoch_rows=1_000)
def test_any_split_into_batches_by_any_clients_gives_the_same_late_rows_and_timers_as_one_batch(
    meta: MetaStore,
    tmp_path: Path,
    stream: Given,
    shape: tuple[str, str],
    sizes: list[int],
    clients: int,
    epoch_rows: int,
) -> None:
    frame, example = stream.frame(), next(NUMBERS)

    def windows(source: hf.source.Source) -> hf.Pipeline:
        pipeline = hf.Pipeline(f"p{example}")
        rows = pipeline.source("in", source, event_time="ts", time_unit="s", lateness=f"{stream.lateness}s")
        rows.key_by("k").window(hf.window.sliding(*shape)).agg(n=hf.count(), v=hf.sum("v")).sink(
            "out", hf.sink.collect()
        )
        columns = {"k": pl.Int64, "at": pl.Int64}
        quiet = rows.key_by("k").process(once_quiet, state={"n": pl.Int64}, output=columns, ttl="1h", timers=True)
        quiet.sink("quiet", hf.sink.collect())
        return pipeline

    expected = run(windows(hf.source.memory(frame)), WHOLE)
    name = f"p.in-{example}"
    description = StreamDescription({n: str(t) for n, t in frame.schema.items()}, "ts")
    StreamMeta(meta).declare(name, description.encode())
    appender = open_appender(
        meta, tmp_path, name, frame.schema, event_time="ts", lateness=stream.lateness, budget=None, sync=False,
        marked=True,
    )  # fmt: skip
    start = 0
    for number in range(len(frame) + 1):
        size = sizes[number % len(sizes)]
        piece = frame.slice(start, size)
        who, turn = number % clients, number // clients
        appender.submit(piece, count=Count(f"client {who}", turn, turn + 1))
        start += size
    appender.append(frame.slice(start))
    appender.close()
    with meta.writing() as connection:
        appender.stream.write(connection, [new_entry([], after=None, ended=True, lineage=Lineage())])
    pipeline = windows(hf.source.memory(frame))
    node = pipeline.nodes["in"]
    assert isinstance(node, SourceNode)
    pipeline.nodes["in"] = SourceNode(
        name="in", inputs=(), schema=node.schema, time=node.time, source=StreamSource(name, frame.schema, "ts")
    )
    seen = run_in(tmp_path, pipeline, Cut(epoch_rows, 2, 2), meta=meta)
    for sink in ("out", "quiet"):
        assert sorted(seen.rows(sink), key=repr) == sorted(expected.rows(sink), key=repr)
    assert sum(seen.late.values()) == sum(expected.late.values())


# the end


def test_closing_finishes_what_was_handed_in(opened: Callable[..., Appender], monkeypatch: pytest.MonkeyPatch) -> None:
    delayed_writes(monkeypatch, lambda frame: 0.02)
    appender = opened()
    answers: list[Future[Ack]] = [appender.submit(batch(number)) for number in range(10)]
    before = threading.active_count()
    appender.close()
    assert [answer.result(0).offset for answer in answers] == list(range(10))
    with pytest.raises(HoldfastError, match="being closed"):
        appender.submit(batch(1))
    assert threading.active_count() < before
    appender.close()


def test_the_writer_s_start_sweeps_what_was_not_committed(opened: Callable[..., Appender]) -> None:
    appender = opened()
    appender.append(batch(1))
    UnitWriter(appender.stream.store).write("lost.arrow", batch(2))
    appender = opened()
    assert len(list(appender.stream.store.names())) == 1
    assert content(appender.stream) == [1]


@pytest.mark.parametrize("compress", [True, False])
def test_rows_are_encoded_unless_they_are_to_stay_plain(tmp_path: Path, compress: bool) -> None:
    meta = MetaStore(tmp_path)
    schema = pl.Schema({"v": pl.Int64()})
    appender = open_appender(
        meta, tmp_path, "plain", schema, event_time=None, lateness=0, budget=None, compress=compress
    )
    rows = pl.DataFrame({"v": [7] * 50_000}, schema=schema)
    appender.append(rows)
    [entry] = appender.stream.read(0, 1)
    appender.close()
    size = appender.stream.retained()[2]
    assert (size < rows.estimated_size() / 10) == compress
    assert entry.rows == rows.height
    meta.close()
