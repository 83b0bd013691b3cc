"""Checks of sinks that get whole epochs on the driver: before the commit, perhaps again, with a crash at any line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from holdfast.connect.base import DriverSink, Position
from holdfast.errors import HoldfastError
from holdfast.testkit.crash_points import dying
from holdfast.testkit.crash_runs import chosen
from holdfast.testkit.sink_places import SinkPlaces, code_of

__all__ = ["DriverSinkChecks"]


class DriverSinkChecks:
    """Of one sink; see `check_sink`."""

    def __init__(self, places: SinkPlaces) -> None:
        self._places = places
        self._promises = places.promises
        half = max(1, places.rows.height // 2)
        self._epochs = {1: places.rows[:half], 2: places.rows[half:]}

    def protocol(self) -> None:
        place = self._places.new()
        with self._promises.promise("every epoch that is delivered and committed is there"):
            sink = self._opened(place)
            for epoch in (1, 2):
                self._deliver(sink, epoch)
                sink.after_commit(epoch, self._epochs[epoch])
            self._places.all_of(place, self._places.rows, "after two epochs")
            last = sink.delivered()
            self._promises.check(last is None or last == 2, "delivered", f"it says {last} after epoch 2")
        with self._promises.promise("an epoch that comes again after a restart keeps the guarantee"):
            place = self._places.new()
            self._deliver(self._opened(place), 1)
            again = self._opened(place)
            for epoch in (1, 2):
                self._deliver(again, epoch)
                again.after_commit(epoch, self._epochs[epoch])
            self._places.compare(place, self._places.rows, "after epoch 1 has come twice")
            with suppress(HoldfastError):  # a zombie may be told that it is one
                self._deliver(sink, 1)
            self._places.compare(place, self._places.rows, "after a zombie has delivered epoch 1 once more")

    def deaths(self, crashes: int) -> None:
        with self._promises.promise("the guarantee is kept when deliver crashes at any line"):
            lines = self._story(None)
            for line in chosen(range(1, lines + 1), crashes, self._promises.random):
                self._story(line)

    def _story(self, line: int | None) -> int:
        """Two epochs, the first of which dies at a line and comes again. How many lines it has."""
        place, step = self._places.new(), "without a crash"
        sink = self._opened(place)
        with dying(code_of(sink), line) as lines:
            self._deliver(sink, 1)
        if lines.at:
            step = f"after a crash in deliver, before {lines.at}"
            del sink
            sink = self._opened(place)
            self._deliver(sink, 1)
        sink.after_commit(1, self._epochs[1])
        self._deliver(sink, 2)
        sink.after_commit(2, self._epochs[2])
        self._places.compare(place, self._places.rows, f"{step}, and two epochs")
        return lines.count

    def outage(self, hang: Callable[[], Any], seconds: float) -> None:
        with self._promises.promise("calls come back by a deadline when the server hangs"):
            place = self._places.new()
            sink = self._opened(place)
            deliver = lambda: self._deliver(sink, 1)  # noqa: E731
            self._promises.comes_back("deliver while the server hangs", seconds, hang, deliver, own_error=False)
            sink = self._opened(place)
            for epoch in (1, 2):
                self._deliver(sink, epoch)
                sink.after_commit(epoch, self._epochs[epoch])
            self._places.compare(place, self._places.rows, "delivered when the server answers again")

    def _deliver(self, sink: DriverSink, epoch: int) -> None:
        vector: Mapping[str, Position] = {"in": {"row": epoch}}
        sink.deliver(epoch, self._epochs[epoch], vector)

    def _opened(self, place: str) -> DriverSink:
        sink = self._places.opened(place)
        assert isinstance(sink, DriverSink)
        return sink
