"""Appenders when things go wrong: failing batches and transactions, full streams, lost leases, batches that wait."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import sqlalchemy as sa
from appending import SCHEMA, STREAM, batch, content, gated_commits

from holdfast.errors import (
    BadRowError,
    LeaseLostError,
    StoreUnreachableError,
    StreamFullError,
    TakenBeforeError,
    WrongTypeError,
)
from holdfast.meta import Arrivals, Count, MetaStore
from holdfast.pstream import appender as module
from holdfast.pstream.appender import Ack, Appender, open_appender
from holdfast.pstream.pstream import PStream

# failures


def test_a_batch_that_fails_blocks_nobody(opened: Callable[..., Appender]) -> None:
    def prepare(frame: pl.DataFrame) -> pl.DataFrame:
        if 13 in frame["v"]:
            raise ZeroDivisionError("13")
        return frame

    appender = opened(prepare=prepare)
    timeless = batch(5).with_columns(ts=pl.lit(None, pl.Int64))
    answers = [appender.submit(rows) for rows in (batch(1), batch(13), batch(2), timeless, batch(3))]
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

    def locked(*_: object, **__: object) -> None:
        raise sa.exc.OperationalError("delete", {}, Exception("database is locked"))

    monkeypatch.setattr(Arrivals, "forget", locked)
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
    with pytest.raises(StreamFullError, match="6,400 more are on their way"):
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
    appender._fill.budget = 1  # whatever the codecs have made of it, it is too much
    monkeypatch.setattr(PStream, "retained", overtaken)
    with pytest.raises(StreamFullError):
        appender.submit(rows)
    monkeypatch.setattr(PStream, "retained", retained)
    meanwhile.result(10)
    assert appender._fill.held >= appender.stream.retained()[2] > before


def test_a_batch_that_was_taken_is_answered_though_the_stream_is_full(opened: Callable[..., Appender]) -> None:
    appender = opened(budget=1)
    appender._fill.budget = None
    first = appender.append(batch(1), "a")
    appender._fill.budget = 1
    again = appender.append(batch(1), "a")
    assert (again.number, again.offset, again.duplicate) == (first.number, first.offset, True)
    with pytest.raises(StreamFullError):
        appender.append(batch(2), "b")


# the right to write


def test_who_lost_the_lease_cannot_commit(meta: MetaStore, tmp_path: Path) -> None:
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


# small batches together


def hold_up(appender: Appender, gate: threading.Event) -> None:
    """Have the commit of a batch wait for a gate: what is handed in meanwhile is written together."""
    appender.submit(batch(0))
    while appender._fill.waiting:  # until it is being written
        time.sleep(0.001)
    assert not gate.is_set()


def test_small_batches_that_wait_are_written_as_one_p_unit_and_answered_each(
    opened: Callable[..., Appender], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = gated_commits(monkeypatch)
    appender = opened(prepare=lambda frame: frame.filter(pl.col("v") >= 0))
    hold_up(appender, gate)
    answers = [appender.submit(rows, name) for rows, name in ((batch(1, 2), "a"), (batch(-1), "b"), (batch(3), "c"))]
    gate.set()
    acks = [answer.result(10) for answer in answers]
    assert [(ack.offset, ack.rows, ack.written) for ack in acks] == [(1, 2, 2), (3, 1, 0), (3, 1, 1)]
    assert [len(entry.units) for entry in appender.stream.read(0, 100)] == [1, 1]
    assert content(appender.stream) == [0, 1, 2, 3]
    assert [opened().append(batch(9), name).duplicate for name in "abc"] == [True] * 3
    assert content(appender.stream) == [0, 1, 2, 3]


def test_where_much_waits_other_threads_write_too_and_the_order_stays(
    opened: Callable[..., Appender], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SMALL", 100)
    gate = gated_commits(monkeypatch)
    names: list[str] = []

    def prepare(frame: pl.DataFrame) -> pl.DataFrame:
        names.append(threading.current_thread().name)
        return frame

    appender = opened(prepare=prepare)
    hold_up(appender, gate)
    answers = [appender.submit(batch(*range(5 * number, 5 * number + 5))) for number in range(12)]  # 80 bytes each
    while appender._fill.waiting:
        time.sleep(0.001)
    gate.set()
    assert [answer.result(10).offset for answer in answers] == [5 * number + 1 for number in range(12)]
    assert content(appender.stream) == [0, *range(60)]
    assert any(name.startswith("append-") for name in names)


def test_a_batch_of_other_columns_fails_alone(opened: Callable[..., Appender], monkeypatch: pytest.MonkeyPatch) -> None:
    gate = gated_commits(monkeypatch)
    appender = opened()
    hold_up(appender, gate)
    wrong = [batch(2).with_columns(pl.col("v").cast(pl.String)), batch(2).drop("v"), batch(2).with_columns(x=1)]
    answers = [appender.submit(rows) for rows in (batch(1), *wrong, batch(3))]
    gate.set()
    wait(answers, 10)
    assert [type(answer.exception()) for answer in answers] == [type(None), *[WrongTypeError] * 3, type(None)]
    assert content(appender.stream) == [0, 1, 3]


def test_a_batch_that_was_taken_is_not_refused_because_the_appender_closes(
    opened: Callable[..., Appender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch of a slow client is written together with another one, and the appender is closed before the slow
    client has asked a thread to write it."""
    monkeypatch.setattr(module, "_SMALL", 1)
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


# the database


@contextmanager
def unanswered(meta: MetaStore) -> Iterator[None]:
    """What is committed meanwhile counts, and nobody is told."""
    writing = meta.writing

    @contextmanager
    def silent(*arguments: Any) -> Iterator[sa.Connection]:
        with writing(*arguments) as connection:
            yield connection
        raise StoreUnreachableError("no answer", cure="send it again")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meta, "writing", silent)
        yield


@contextmanager
def too_early(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever looks up what was taken looks before a late commit is seen."""
    with monkeypatch.context() as patch:
        patch.setattr(Arrivals, "taken", lambda *_: {})
        yield


def test_a_count_that_begins_elsewhere_than_its_client_stands_is_refused(opened: Callable[..., Appender]) -> None:
    appender = opened()
    appender.append(batch(1, 2), count=Count("c", 0, 2))
    for stale in (Count("c", 0, 2), Count("c", 1, 3), Count("c", 5, 6), Count("new", 1, 2)):
        with pytest.raises(TakenBeforeError, match=f"behind {stale.before} of client '{stale.client}'"):
            appender.append(batch(9), count=stale)
    appender.append(batch(3), count=Count("c", 2, 3))
    assert content(appender.stream) == [1, 2, 3]
    assert appender.position("c") == 3
    assert appender.pending_bytes() == 0


def test_lines_whose_commit_was_not_answered_are_taken_once(opened: Callable[..., Appender], meta: MetaStore) -> None:
    appender = opened()
    with unanswered(meta), pytest.raises(StoreUnreachableError):
        appender.append(batch(1, 2), count=Count("c", 0, 2))
    with pytest.raises(TakenBeforeError):
        appender.append(batch(1, 2), count=Count("c", 0, 2))
    assert content(appender.stream) == [1, 2]


def test_of_the_same_lines_handed_in_twice_at_once_the_first_are_taken(
    opened: Callable[..., Appender], monkeypatch: pytest.MonkeyPatch
) -> None:
    appender = opened()
    gate = gated_commits(monkeypatch)
    appender.submit(batch(1))
    sent = [appender.submit(batch(2, 3), count=Count("c", 0, 2)) for _ in range(2)]
    gate.set()
    wait(sent, 10)
    assert sent[0].result().offset == 1
    assert isinstance(sent[1].exception(), TakenBeforeError)
    assert content(appender.stream) == [1, 2, 3]
    assert appender.position("c") == 2


def test_what_was_taken_before_keeps_nothing_else_of_its_group_back(
    opened: Callable[..., Appender], meta: MetaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender = opened()
    with unanswered(meta):
        for late in (appender.submit(batch(1), "a"), appender.submit(batch(2, 3), count=Count("c", 0, 2))):
            assert isinstance(late.exception(10), StoreUnreachableError)
    gate = gated_commits(monkeypatch)
    with too_early(monkeypatch):
        first = appender.submit(batch(4))
        sent = [
            appender.submit(batch(5, ts=7)),
            appender.submit(batch(1), "a"),
            appender.submit(batch(6), "b"),
            appender.submit(batch(2, 3), count=Count("c", 0, 2)),
            appender.submit(batch(7), count=Count("d", 0, 1)),
        ]
        gate.set()
        wait([first, *sent], 10)
    assert sent[1].result() == Ack(1, 0, 1, duplicate=True)
    assert isinstance(sent[3].exception(), TakenBeforeError)
    assert content(appender.stream) == [1, 2, 3, 4, 5, 6, 7]
    assert [sent[number].result().offset for number in (0, 2, 4)] == [4, 5, 6]
    assert (appender.position("c"), appender.position("d"), appender.pending_bytes()) == (2, 1, 0)
    assert [unit.before for entry in appender.stream.read(0, 100)[-1:] for unit in entry.units] in ([0], [7])


def test_a_batch_whose_commit_was_not_answered_is_taken_once_and_time_does_not_go_back(
    opened: Callable[..., Appender], meta: MetaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender = opened()
    with unanswered(meta), pytest.raises(StoreUnreachableError):
        appender.append(batch(1, ts=100), "a")
    appender.append(batch(2, ts=50), "b")
    assert appender.append(batch(1, ts=100), "a").duplicate
    assert content(appender.stream) == [1, 2]
    found = appender.stream.read(0, 100)
    assert [entry.after for entry in found] == [100, 100]
    assert found[1].units[0].before == 100, "the second batch found the watermark of the first"
