"""What an observer is told, and what happens when it raises."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from typing import Any

import pytest

import holdfast as hf
from holdfast.engine.observer import Observer
from observers import watching

EVENTS = [name for name in vars(Observer) if not name.startswith("_")]


def arguments(event: str) -> list[Any]:
    return [object() for _ in list(inspect.signature(getattr(Observer, event)).parameters)[1:]]


def recording(into: list[tuple[Any, ...]], name: str) -> Observer:
    def record(event: str) -> Any:
        return lambda *given: into.append((name, event, *given))

    return watching(**{event: record(event) for event in EVENTS})


@pytest.mark.parametrize("event", EVENTS)
def test_several_observers_hear_every_event_in_their_order(event: str) -> None:
    told: list[tuple[Any, ...]] = []
    given = arguments(event)
    both = hf.Observers(recording(told, "first"), hf.Observers(recording(told, "second")))
    getattr(both, event)(*given)
    assert told == [("first", event, *given), ("second", event, *given)]


@pytest.mark.parametrize("event", EVENTS)
def test_what_is_not_overridden_does_nothing(event: str) -> None:
    assert getattr(hf.Observers(hf.Observer()), event)(*arguments(event)) is None


def test_what_an_observer_raises_is_raised_and_those_after_it_do_not_hear() -> None:
    def fail(report: object) -> None:
        raise ValueError("of the observer")

    told: list[tuple[Any, ...]] = []
    both = hf.Observers(recording(told, "first"), watching(epoch_committed=fail), recording(told, "last"))
    with pytest.raises(ValueError, match="of the observer"):
        both.epoch_committed("report")  # type: ignore[arg-type]
    assert [name for name, *_ in told] == ["first"]


def test_a_notice_that_nobody_takes_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[Any, ...]] = []
    with caplog.at_level(logging.WARNING):
        hf.Observers(hf.Observer(), recording(told, "one")).notice("p", "seen")
        assert (caplog.messages, told) == ([], [("one", "notice", "p", "seen")])
        hf.Observers(hf.Observer(), hf.Observers(hf.Observer())).notice("p", "the directory is missing")
    assert caplog.messages == ["the directory is missing"]


def test_events_of_several_threads_come_one_at_a_time() -> None:
    inside, most = [0], [0]

    def slow(report: object) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.01)
        inside[0] -= 1

    observer = hf.Observers(watching(epoch_committed=slow))
    threads = [threading.Thread(target=observer.epoch_committed, args=(None,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
