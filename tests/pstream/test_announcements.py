"""Announcements: who waits for a p-stream in the same process is woken by what becomes durable there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
from appending import SCHEMA, STREAM, batch

import holdfast as hf
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.fragment_runs import open_cuts
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions
from holdfast.meta import MetaStore
from holdfast.pstream import Announcements
from holdfast.pstream.appender import open_appender

FOREVER = 60.0


def woken(listener_wait: Callable[[float], None], act: Callable[[], object]) -> bool:
    """Whether who waits comes back because of what is done, long before the time is over."""
    back = threading.Event()

    def wait() -> None:
        listener_wait(FOREVER)
        back.set()

    threading.Thread(target=wait, daemon=True).start()
    act()
    return back.wait(FOREVER / 2)


def test_an_announcement_wakes_those_who_wait_for_that_stream_and_no_others() -> None:
    news = Announcements()
    mine, other = news.listener(["a", "b"]), news.listener(["c"])
    assert woken(mine.wait, lambda: news.appended("b"))
    began = time.monotonic()
    other.wait(0.05)
    assert time.monotonic() - began >= 0.05
    news.appended("nobody's")


def test_what_is_announced_before_one_waits_is_not_missed_and_is_heard_once() -> None:
    news = Announcements()
    listener = news.listener(["a"])
    news.appended("a")
    news.appended("a")
    assert woken(listener.wait, lambda: None)
    began = time.monotonic()
    listener.wait(0.05)
    assert time.monotonic() - began >= 0.05


def test_who_has_gone_is_not_called_and_takes_no_memory() -> None:
    news = Announcements()
    mine = news.listener(["a"])
    for _ in range(100):
        news.listener(["a"])
    news.appended("a")
    assert woken(mine.wait, lambda: None)
    assert len(news._listeners["a"]) <= 2


def test_rows_of_clients_are_announced_once_they_are_durable(meta: MetaStore, tmp_path: Path) -> None:
    news = Announcements()
    listener = news.listener([STREAM])
    appender = open_appender(
        meta, tmp_path, STREAM, SCHEMA, event_time=None, lateness=0, budget=None, announcements=news
    )
    try:
        assert woken(listener.wait, lambda: appender.append(batch(1, 2)))
    finally:
        appender.close()


def test_a_fragment_that_waits_is_woken_by_the_commit_of_the_one_before_it(tmp_path: Path) -> None:
    """With looks an hour apart, its epochs follow those of the writer only because it is told of them."""
    pipeline = hf.Pipeline("told")
    frames = [pl.DataFrame({"a": [number]}) for number in range(3)]
    rows = pipeline.source("rows", hf.source.memory(frames, epochs=True)).persist("kept", push_up=False)
    sink = hf.sink.collect()
    rows.sink("out", sink)
    options = RunOptions(store=tmp_path, durable=False, poll="1 hour")
    meta = MetaStore(tmp_path, sync=False)
    cuts = open_cuts(pipeline, meta)
    meta.close()
    news = Announcements()
    runs = [FragmentRun(made.pipeline, InProcessPlatform(), options, announcements=news) for made in cuts.fragments]
    writer, reader = sorted(runs, key=lambda run: bool(run.loop.planner._run.streams.read))
    reading = threading.Thread(target=reader.run, daemon=True)
    reading.start()
    time.sleep(0.3)  # it has looked, and found nothing
    writer.run()
    reading.join(FOREVER)
    assert not reading.is_alive()
    assert sorted(sink.frame()["a"].to_list()) == [0, 1, 2]
