"""The appender: what clients hand in is durable when they are told so, once, and in the order in which it came."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from harness import WHOLE, Cut, _Run, run
from holdfast.errors import BadRowError, HoldfastError, LeaseLostError, StreamFullError, WrongTypeError
from holdfast.graph.nodes import SourceNode
from holdfast.meta import MetaStore, StreamMeta
from holdfast.pstream import PStream, UnitWriter, new_entry
from holdfast.pstream import appender as module
from holdfast.pstream.appender import Ack, Appender, open_appender
from holdfast.pstream.link import StreamSource
from strategies import SECONDS, Given, examples, streams, window_shapes

SCHEMA = pl.Schema({"ts": pl.Int64(), "v": pl.Int64()})
STREAM = "p.in"
NUMBERS = itertools.count()


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[MetaStore]:
    store = MetaStore(tmp_path, sync=False)
    yield store
    store.close()


@pytest.fixture
def opened(meta: MetaStore, tmp_path: Path) -> Iterator[Callable[..., Appender]]:
    """Opens appenders of one stream, and closes the one before: a stream has one writer."""
    made: list[Appender] = []

    def opening(**options: Any) -> Appender:
        for each in made:
            each.close()
        settings = {"event_time": "ts", "lateness": 0, "budget": None, "sync": False, **options}
        made.append(open_appender(meta, tmp_path, STREAM, SCHEMA, **settings))
        return made[-1]

    yield opening
    for each in made:
        each.close()


def batch(*values: int, ts: int = 0) -> pl.DataFrame:
    return pl.DataFrame({"ts": [ts] * len(values), "v": values}, schema=SCHEMA)


def content(log: PStream) -> list[int]:
    frames = log.load(log.read(0, 1_000_000), ["v"])
    return [value for frame in frames for value in frame["v"].to_list()]


def delayed_writes(monkeypatch: pytest.MonkeyPatch, slow: Callable[[pl.DataFrame], float]) -> None:
    write = UnitWriter.write

    def late(own: UnitWriter, name: str, frame: pl.DataFrame) -> Any:
        time.sleep(slow(frame))
        return write(own, name, frame)

    monkeypatch.setattr(UnitWriter, "write", late)


def gated_commits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Commits wait for the event."""
    gate = threading.Event()
    commit = Appender._commit

    def waiting(own: Appender, tickets: list[Any]) -> Any:
        gate.wait(10)
        return commit(own, tickets)

    monkeypatch.setattr(Appender, "_commit", waiting)
    return gate


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
    clients, each = 8, 25
    acks: dict[int, list[Ack]] = {}

    def client(number: int) -> None:
        answers = [appender.submit(batch(number * 1_000 + i), f"{number}-{i}") for i in range(each)]
        acks[number] = [answer.result(30) for answer in answers]

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = content(appender.stream)
    assert len(seen) == len(set(seen)) == clients * each
    for number, own in acks.items():
        assert [value for value in seen if value // 1_000 == number] == [number * 1_000 + i for i in range(each)]
        assert [seen[ack.offset] for ack in own] == [number * 1_000 + i for i in range(each)]
    assert len(transactions) < clients * each


def test_what_is_acknowledged_is_there_for_a_process_that_comes_later(
    opened: Callable[..., Appender], tmp_path: Path
) -> None:
    appender = opened()
    appender.append(batch(1, 2), "a")
    other = MetaStore(tmp_path)
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
    assert len(list(appender.stream.store.names())) == 2, "nothing of a duplicate stays on disk"


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
    units = {unit.punit.name for entry in appender.stream.read(0, 100) for unit in entry.units}
    assert set(appender.stream.store.names()) == units


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
    appender.append(batch(1, 2), client=("sensor", 2))
    appender.append(batch(3), client=("sensor", 3))
    appender.append(batch(9), client=("other", 1))
    assert (opened().position("sensor"), opened().position("other")) == (3, 1)


# failures


def test_a_batch_that_fails_blocks_nobody(opened: Callable[..., Appender]) -> None:
    def prepare(frame: pl.DataFrame) -> pl.DataFrame:
        if 13 in frame["v"]:
            raise ZeroDivisionError("13")
        return frame

    appender = opened(prepare=prepare)
    timeless = batch(5).with_columns(ts=pl.lit(None, pl.Int64))
    answers = [appender.submit(each) for each in (batch(1), batch(13), batch(2), timeless, batch(3))]
    wait(answers, 10)
    assert isinstance(answers[1].exception(), ZeroDivisionError)
    assert isinstance(answers[3].exception(), BadRowError)
    assert [answers[i].result().offset for i in (0, 2, 4)] == [0, 1, 2]
    assert content(appender.stream) == [1, 2, 3]
    assert appender.pending_bytes() == 0
    assert not appender.append(batch(13 + 1), "id").duplicate


def test_a_failed_batch_can_be_sent_again_under_its_id(opened: Callable[..., Appender]) -> None:
    broken = [True]

    def prepare(frame: pl.DataFrame) -> pl.DataFrame:
        if broken[0]:
            raise OSError("no space")
        return frame

    appender = opened(prepare=prepare)
    with pytest.raises(OSError, match="no space"):
        appender.append(batch(1), "a")
    broken[0] = False
    assert appender.append(batch(1), "a") == Ack(1, 0, 1, written=1)


def test_a_transaction_that_fails_is_told_to_all_and_the_next_one_goes_on(
    opened: Callable[..., Appender], monkeypatch: pytest.MonkeyPatch
) -> None:
    appender = opened()
    appender.append(batch(1, ts=5))
    write = PStream.write
    fails = [True]

    def failing(own: PStream, connection: sa.Connection, entries: Any) -> Any:
        made = write(own, connection, entries)
        if fails[0]:
            raise sa.exc.OperationalError("insert", {}, Exception("disk I/O error"))
        return made

    monkeypatch.setattr(PStream, "write", failing)
    answers = [appender.submit(batch(2, ts=9), "a"), appender.submit(batch(3, ts=9), "b")]
    wait(answers, 10)
    assert all(isinstance(answer.exception(), sa.exc.OperationalError) for answer in answers)
    fails[0] = False
    assert appender.append(batch(4, ts=6), "a") == Ack(2, 1, 1, written=1)
    assert content(appender.stream) == [1, 4]
    assert [u.before for e in appender.stream.read(1, 100) for u in e.units] == [5], "event time did not go on either"
    assert appender.pending_bytes() == 0


def test_commits_go_on_when_the_housekeeping_fails(
    opened: Callable[..., Appender], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    appender = opened(clock=lambda: now[0])

    def locked(*_: object) -> None:
        raise sa.exc.OperationalError("delete", {}, Exception("database is locked"))

    monkeypatch.setattr(StreamMeta, "forget_batches", locked)
    for number in range(3):
        now[0] += 1_000.0
        assert appender.submit(batch(number)).result(10).number == number + 1


def test_a_client_that_gives_up_harms_nobody(opened: Callable[..., Appender], monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that was handed in is taken, whether its client waits for the answer or not."""
    gate = gated_commits(monkeypatch)
    appender = opened()
    answers = [appender.submit(batch(number), str(number)) for number in range(4)]
    answers[1].cancel()
    time.sleep(0.1)
    answers[2].cancel()
    gate.set()
    done: list[int] = []
    for answer in answers:
        try:
            done.append(answer.result(10).offset)
        except CancelledError:
            done.append(-1)
    assert done == [0, 1, 2, 3]
    assert content(appender.stream) == [0, 1, 2, 3]
    assert [appender.append(batch(n), str(n)).duplicate for n in range(4)] == [True] * 4


# budget


def test_a_full_stream_refuses_and_takes_again_after_its_reader_has_read(
    opened: Callable[..., Appender], meta: MetaStore
) -> None:
    appender = opened(budget=20_000)
    log = appender.stream
    log.subscribe("r")
    rows = pl.DataFrame({"ts": [0] * 200, "v": range(200)}, schema=SCHEMA)
    taken = itertools.count()

    def fill() -> None:
        while True:
            appender.append(rows)
            next(taken)

    with pytest.raises(StreamFullError, match=rf"'{STREAM}' holds .* budget is 20,000"):
        fill()
    number = next(taken)
    assert number > 2
    largest = max(entry.bytes for entry in log.read(0, 1_000_000))
    assert log.retained()[2] <= 20_000 + max(largest, rows.estimated_size())
    with pytest.raises(StreamFullError):
        appender.append(rows)
    last = log.read(0, 1_000_000)[-2]
    with meta.writing() as connection:
        log.checkpoint(connection, "r", last.number, last.offset + last.rows, 1)
    assert appender.append(rows).offset == 200 * number, "nothing that was refused has left a gap"
    assert log.retained()[0] == 2
    assert len(list(log.store.names())) == 2


def test_what_is_on_its_way_counts_too(opened: Callable[..., Appender], monkeypatch: pytest.MonkeyPatch) -> None:
    gate = gated_commits(monkeypatch)
    appender = opened(budget=5_000)
    rows = pl.DataFrame({"ts": [0] * 200, "v": range(200)}, schema=SCHEMA)  # 3,200 bytes
    answers = [appender.submit(rows), appender.submit(rows)]
    with pytest.raises(StreamFullError, match="6,400 are on their way"):
        appender.submit(rows)
    gate.set()
    wait(answers, 10)
    assert appender.pending_bytes() == 0
    assert appender.stream.state().offset == 400


def test_the_count_of_what_a_stream_holds_stays_right_while_it_is_looked_up(
    opened: Callable[..., Appender], meta: MetaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit in the middle of a look at the stream must not be forgotten: the budget would be overrun."""
    appender = opened(budget=100_000)
    rows = pl.DataFrame({"ts": [0] * 300, "v": range(300)}, schema=SCHEMA)  # 4,800 bytes
    appender.append(rows)
    before = appender.stream.retained()[2]
    retained = PStream.retained

    def overtaken(own: PStream) -> tuple[int, int, int]:
        found = retained(own)
        gate.set()
        deadline = time.monotonic() + 10
        while retained(own) == found and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        return found

    gate = gated_commits(monkeypatch)
    meanwhile = appender.submit(rows)
    time.sleep(0.1)  # it is on disk, and waits for its commit
    appender._budget = 1  # whatever the codecs have made of it, it is too much
    monkeypatch.setattr(PStream, "retained", overtaken)
    with pytest.raises(StreamFullError):
        appender.submit(rows)
    monkeypatch.setattr(PStream, "retained", retained)
    meanwhile.result(10)
    assert appender._held >= appender.stream.retained()[2] > before


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


@examples(25)
@given(
    stream=rows,
    shape=window_shapes,
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=12),
    clients=st.integers(1, 4),
    epoch_rows=st.sampled_from([1, 3, 1_000]),
)
def test_any_split_into_batches_by_any_clients_gives_the_same_late_rows_as_one_batch(
    meta: MetaStore,
    tmp_path: Path,
    stream: Given,
    shape: tuple[str, str],
    sizes: list[int],
    clients: int,
    epoch_rows: int,
) -> None:
    frame = stream.frame()

    def windows(source: hf.Source) -> hf.Pipeline:
        pipeline = hf.Pipeline("p")
        rows = pipeline.source("in", source, event_time="ts", time_unit="s", lateness=f"{stream.lateness}s")
        rows.key_by("k").window(hf.sliding(*shape)).agg(n=hf.count(), v=hf.sum("v")).sink("out", hf.collect())
        return pipeline

    expected = run(windows(hf.memory(frame)), WHOLE)
    name = f"p.in-{next(NUMBERS)}"
    StreamMeta(meta).declare(name, {"schema": {n: str(t) for n, t in frame.schema.items()}, "time": "ts"})
    appender = open_appender(
        meta, tmp_path, name, frame.schema, event_time="ts", lateness=stream.lateness, budget=None, sync=False
    )
    start = 0
    for number in range(len(frame) + 1):
        size = sizes[number % len(sizes)]
        piece = frame.slice(start, size)
        appender.submit(piece, client=(f"client {number % clients}", number))
        start += size
    appender.append(frame.slice(start))
    appender.close()
    with meta.writing() as connection:
        appender.stream.write(connection, [new_entry([], after=None, ended=True, lineage={})])
    pipeline = windows(hf.memory(frame))
    node = pipeline.nodes["in"]
    assert isinstance(node, SourceNode)
    pipeline.nodes["in"] = SourceNode(
        name="in", inputs=(), schema=node.schema, time=node.time, source=StreamSource(name, frame.schema, "ts")
    )
    seen = _Run(pipeline, Cut(epoch_rows, 2, 2), tmp_path / "runs" / name, meta, tmp_path).run(10_000)
    assert sorted(seen.rows(), key=repr) == sorted(expected.rows(), key=repr)
    assert sum(seen.late.values()) == sum(expected.late.values())


def test_small_batches_that_wait_share_a_p_unit(
    opened: Callable[..., Appender], monkeypatch: pytest.MonkeyPatch
) -> None:
    delayed_writes(monkeypatch, lambda frame: 0.05)
    appender = opened()
    answers = [appender.submit(batch(number), f"b{number % 15}") for number in range(20)]
    acks = [answer.result(10) for answer in answers]
    assert [ack.offset for ack in acks[:15]] == list(range(15))
    assert [ack.duplicate for ack in acks] == [False] * 15 + [True] * 5
    assert content(appender.stream) == list(range(15))
    assert len({ack.number for ack in acks}) < 6  # not an entry, and not a sync, for each


def test_who_lost_the_lease_cannot_commit(tmp_path: Path) -> None:
    meta = MetaStore(tmp_path)
    lease = meta.acquire("ingress:s", "first", 0.0, 1.0)
    appender = open_appender(
        meta, tmp_path, "s", SCHEMA, event_time=None, lateness=0, budget=None, lease=lease, sync=False
    )
    appender.append(batch(1))
    meta.acquire("ingress:s", "second", 10.0, 1.0)
    with pytest.raises(LeaseLostError):
        appender.append(batch(2))
    assert content(appender.stream) == [1]
    appender.close()
    meta.close()


# small batches together


def holding_writers(appender: Appender) -> threading.Event:
    """Keeps the writing threads busy until the event: what is handed in meanwhile is written together."""
    gate = threading.Event()
    for _ in range(module._WRITERS):
        appender._pool.submit(gate.wait, 10)
    return gate


def test_small_batches_that_wait_are_written_as_one_p_unit_and_answered_each(opened: Callable[..., Appender]) -> None:
    appender = opened(prepare=lambda frame: frame.filter(pl.col("v") >= 0))
    gate = holding_writers(appender)
    answers = [appender.submit(each, name) for each, name in ((batch(1, 2), "a"), (batch(-1), "b"), (batch(3), "c"))]
    gate.set()
    acks = [answer.result(10) for answer in answers]
    assert [(ack.offset, ack.rows, ack.written) for ack in acks] == [(0, 2, 2), (2, 1, 0), (2, 1, 1)]
    assert len(list(appender.stream.store.names())) == 1
    assert content(appender.stream) == [1, 2, 3]
    assert [opened().append(batch(9), name).duplicate for name in "abc"] == [True] * 3
    assert content(appender.stream) == [1, 2, 3]


def test_a_batch_of_other_columns_fails_alone(opened: Callable[..., Appender]) -> None:
    appender = opened()
    gate = holding_writers(appender)
    wrong = [batch(2).with_columns(pl.col("v").cast(pl.String)), batch(2).drop("v"), batch(2).with_columns(x=1)]
    answers = [appender.submit(each) for each in (batch(1), *wrong, batch(3))]
    gate.set()
    wait(answers, 10)
    assert [type(answer.exception()) for answer in answers] == [type(None), *[WrongTypeError] * 3, type(None)]
    assert content(appender.stream) == [1, 3]


def test_a_batch_that_was_taken_is_not_refused_because_the_appender_closes(
    opened: Callable[..., Appender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch of a slow client is written together with another one, and the appender is closed before the slow
    client has asked a thread to write it."""
    appender = opened()
    submit = appender._pool.submit
    slow = threading.Event()

    def delayed(*given: Any) -> Any:
        if threading.current_thread().name == "slow client":
            slow.set()
            time.sleep(0.2)
        return submit(*given)

    monkeypatch.setattr(appender._pool, "submit", delayed)
    answers: list[Future[Ack]] = []
    client = threading.Thread(target=lambda: answers.append(appender.submit(batch(1))), name="slow client")
    client.start()
    slow.wait(10)
    appender.submit(batch(2)).result(10)
    appender.close()
    client.join()
    assert [answer.result(10).offset for answer in answers] == [0]


def test_a_batch_that_was_taken_is_answered_though_the_stream_is_full(opened: Callable[..., Appender]) -> None:
    appender = opened(budget=1)
    appender._budget = None
    first = appender.append(batch(1), "a")
    appender._budget = 1
    again = appender.append(batch(1), "a")
    assert (again.number, again.offset, again.duplicate) == (first.number, first.offset, True)
    with pytest.raises(StreamFullError):
        appender.append(batch(2), "b")
