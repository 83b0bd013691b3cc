"""What the dashboard reads before its first screen is there, where a store has the events of a day."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import IO, Any

import pytest

import holdfast.dashboard
from holdfast.dashboard.series_view import series_of
from holdfast.dashboard.store_watch import StoreWatch
from holdfast.watch.event_kinds import EpochsDone, NoticeGiven
from holdfast.watch.event_log import EventLog, event_files
from holdfast.watch.event_reader import event_pieces, read_events

STATIC = Path(holdfast.dashboard.__file__).parent / "static"
NOW = 1_790_000_000.0
HOURS = 24


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """With a file for each hour of a day, and an event for each of its minutes."""
    clock = [NOW]
    for hour in range(HOURS):
        clock[0] = NOW - 3_600 * (HOURS - hour)
        with EventLog(tmp_path, "day", clock=lambda: clock[0]) as log:
            for minute in range(60):
                at = clock[0] + 60 * minute
                log.put(EpochsDone(at=at, since=at - 1, pipeline="shop", fragment="shop", epoch=minute, first=minute,
                                   count=1, rows=10, entered=10))  # fmt: skip
        path = event_files(tmp_path)[-1]
        os.utime(path, (clock[0] + 3_540, clock[0] + 3_540))
    assert len(event_files(tmp_path)) == HOURS
    return tmp_path


def test_the_first_screen_reads_the_last_hour_and_waits_for_nothing_older(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, turn, opened = list[Path](), threading.Event(), Path.open

    def counted(path: Path, mode: str = "r") -> IO[Any]:
        if threading.current_thread().name == "older events":
            assert turn.wait(60)
        read.append(path)
        return opened(path, mode)

    monkeypatch.setattr(Path, "open", counted)
    watch = StoreWatch(store, clock=lambda: NOW)
    first = watch.look()
    events = [path for path in read if path.parent.name == "_events"]
    assert events == event_files(store)[-1:]
    assert sum(rate is not None for rate in series_of(first, "shop", 3_600).rows) == 60
    assert len(first.events) == 60
    turn.set()
    watch.settle()
    day = watch.look().events
    assert [event.at for event in day] == [NOW - 3_600 * HOURS + 60 * minute for minute in range(60 * HOURS)]


def test_the_page_names_all_its_modules_so_that_none_is_found_by_reading_another() -> None:
    begun, found = ["/static/app.js"], set[str]()
    while begun:
        name = begun.pop()
        if name not in found:
            found.add(name)
            begun += re.findall(r'from "(/static/[^"]+)"', (STATIC / name.removeprefix("/static/")).read_text())
    page = (STATIC / "index.html").read_text()
    assert len(found) == 8
    named = re.findall(r'(?:type="module" src|rel="modulepreload" href)="([^"]+)"', page)
    assert sorted(named) == sorted(found)


def test_events_come_in_pieces_and_a_broken_line_costs_only_itself(store: Path) -> None:
    with event_files(store)[3].open("ab") as file:
        file.write(b'{"kind":"epochs","at":\n{"kind":"of a newer version","at":1.0}\n' * 2)
    with EventLog(store, "more", clock=lambda: NOW) as log:
        for number in range(2_000):
            log.put(NoticeGiven(at=NOW + number / 1_000, message="x" * 100))
    pieces = list(event_pieces(store, since=NOW - 86_400, until=NOW + 1))
    assert max(map(len, pieces)) < 1_000
    found = sorted((event for piece in pieces for event in piece), key=lambda event: event.at)
    assert found == [event for event in read_events(store) if event.at < NOW + 1]
    assert len(found) == 60 * HOURS + 1_000
