"""Turns of those who write one database: in the order in which they came, and never lost."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from holdfast.meta import MetaStore
from holdfast.meta.turns import Turns, turns_at


def test_those_who_wait_are_called_in_the_order_in_which_they_came() -> None:
    turns, called = Turns(), list[int]()
    assert turns.take(0.0)

    def work(number: int) -> None:
        assert turns.take(60.0)
        called.append(number)
        turns.end()

    threads = []
    for number in range(8):
        threads.append(threading.Thread(target=work, args=(number,)))
        threads[-1].start()
        while len(turns._waiting) <= number:
            time.sleep(0.001)
    turns.end()
    for thread in threads:
        thread.join()
    assert called == list(range(8))
    assert turns.take(0.0)


def test_who_does_not_wait_any_longer_has_no_turn_and_takes_nobody_elses() -> None:
    turns = Turns()
    assert turns.take(0.0)
    assert not turns.take(0.01)
    assert not turns.take(-1.0)
    turns.end()
    assert turns.take(0.0)


def test_who_is_interrupted_while_waiting_leaves_no_turn_behind() -> None:
    turns = Turns()
    assert turns.take(0.0)
    here = threading.get_ident()

    def interrupt() -> None:
        while not turns._waiting:
            time.sleep(0.001)
        signal.pthread_kill(here, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        turns.take(60.0)
    turns.end()
    assert turns.take(0.0)


def test_stores_that_are_opened_twice_have_the_same_turns(tmp_path: Path) -> None:
    assert turns_at(tmp_path / "meta.db") is not turns_at(tmp_path / "other.db")
    first = turns_at(tmp_path / "meta.db")
    assert turns_at(tmp_path / "." / "meta.db") is first


def test_a_writer_is_not_held_up_by_another_that_writes_all_the_time(tmp_path: Path) -> None:
    """SQLite alone would have it sleep up to a tenth of a second at a time, and find the file locked again."""
    busy, mine = MetaStore(tmp_path, sync=False), MetaStore(tmp_path, sync=False)
    stop, began = threading.Event(), threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            with busy.writing():
                began.set()
                time.sleep(0.01)
                written += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        began.wait()
        asked = written
        for _ in range(20):
            with mine.writing():
                pass
        assert written - asked <= 40, "each had to wait for one transaction, or two"
    finally:
        stop.set()
        thread.join()
        busy.close()
        mine.close()
