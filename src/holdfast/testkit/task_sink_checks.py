"""Checks of sinks that tasks write to: prepare, publish, forget and sweep, with attempts that lose, calls that come
again, and a crash at any line of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl
from pyspark import cloudpickle

from holdfast.connect.base import Receipt, TaskSink
from holdfast.store import Private
from holdfast.testkit.crash_points import dying
from holdfast.testkit.crash_runs import chosen
from holdfast.testkit.sink_places import SinkPlaces, code_of

__all__ = ["TaskSinkChecks"]

_OWN = Private("the suite made it, and nobody else uses its names")
_METHODS = ("publish", "prepare", "forget", "sweep")


class LineCrash:
    """A death before a line of a method, the first time that the method is called."""

    def __init__(self, method: str, line: int | None, roots: tuple[str, ...]) -> None:
        self.lines, self.step = 0, "without a crash"
        self._method, self._line, self._roots = method, line, roots

    def strikes(self, method: str, function: Callable[..., object], *given: Any) -> bool:
        """Call a method; whether it has died."""
        if method != self._method or self.lines:
            function(*given)
            return False
        with dying(self._roots, self._line) as lines:
            function(*given)
        self.lines = lines.count
        if lines.at:
            self.step = f"after a crash in {method}, before {lines.at}"
        return bool(lines.at)


class TaskSinkChecks:
    """Of one sink; see `check_sink`."""

    def __init__(self, places: SinkPlaces) -> None:
        self._places = places
        self._promises = places.promises
        third = max(1, places.rows.height // 3)
        rows = places.rows
        self._epochs = {1: rows[:third], 2: rows[third : 2 * third], 3: rows[2 * third :]}

    def protocol(self) -> None:
        place = self._places.new()
        both = pl.concat([self._epochs[1], self._epochs[2]])
        with self._promises.promise("what is prepared is seen when it is published, and then all of it, once"):
            sink = self._opened(place)
            receipts = {epoch: self._prepared(sink, epoch) for epoch in (1, 2)}
            self._check_files(sink, receipts)
            self._places.nothing(place, "after prepare, before publish")
            self._publish(sink, 2, receipts)
            self._places.all_of(place, both, "after publish of epochs 1 and 2 together")
        with self._promises.promise("a publication that comes again has no effect"):
            self._publish(sink, 2, receipts)
            self._places.all_of(place, both, "after the same publish by the same process")
            self._publish(self._opened(place, 2, receipts), 2, receipts)
            self._places.all_of(place, both, "after the same publish by the next process")
        with self._promises.promise("attempts that lose are never seen, and are swept away; what is published stays"):
            lost = self._attempt(sink, self._epochs[1], 1, "0-0")
            self._places.all_of(place, both, "after a zombie has prepared epoch 1 once more")
            third = {3: self._prepared(sink, 3)}
            self._publish(sink, 3, third)
            self._publish(self._opened(place, 3, {**receipts, **third}), 2, receipts)
            self._places.all_of(place, self._places.rows, "after a zombie has published epoch 2 once more")
            sink.forget(2, _flat(receipts), _OWN)
            sink.forget(3, _flat(third), _OWN)
            sink.sweep(4, _OWN)
            self._places.all_of(place, self._places.rows, "after sweep")
            left = [str(path) for path in sink.files(lost) if path.exists()]
            self._promises.check(not left, "after sweep", f"what a lost attempt has prepared is still there: {left}")

    def deaths(self, crashes: int) -> None:
        """A crash at lines of the sink's own code, in each of its methods."""
        for method in _METHODS:
            with self._promises.promise(f"no row is lost or comes twice when {method} crashes at any line"):
                lines = self._story(method, None)
                share = crashes if method == "publish" else max(1, crashes // 4)
                for line in chosen(range(1, lines + 1), share, self._promises.random):
                    self._story(method, line)

    def _story(self, crashing: str, line: int | None) -> int:
        """Three epochs, and a crash at a line of a method the first time that it is called. How many lines it has."""
        place = self._places.new()
        sink = self._opened(place)
        crash = LineCrash(crashing, line, code_of(sink))
        receipts = {epoch: self._parts(sink, epoch, crash) for epoch in (1, 2)}
        both = pl.concat([self._epochs[1], self._epochs[2]])
        self._places.nothing(place, f"{crash.step}, before publish")
        if crash.strikes("publish", sink.publish, 2, _flat(receipts)):
            if self._places.guarantee == "exactly-once":
                found = self._places.seen(place).height
                whole = found in (0, both.height)
                self._promises.check(whole, crash.step, f"a reader sees {found} of {both.height} rows")
            sink = self._opened(place, 2, receipts)
            self._publish(sink, 2, receipts)
        self._places.compare(place, both, f"{crash.step}, and publish again")
        if crash.strikes("forget", sink.forget, 2, _flat(receipts), _OWN):
            sink = self._opened(place, 2, receipts)
        if crash.strikes("sweep", sink.sweep, 3, _OWN):
            sink = self._opened(place, 2, receipts)
        self._places.compare(place, both, f"{crash.step}, and a new start")
        third = {3: self._prepared(sink, 3)}
        self._publish(sink, 3, third)
        sink.forget(3, _flat(third), _OWN)
        sink.sweep(4, _OWN)
        self._places.compare(place, self._places.rows, f"{crash.step}, and one more epoch")
        return crash.lines

    def _parts(self, sink: TaskSink, epoch: int, crash: LineCrash) -> list[Receipt]:
        """Two parts of an epoch. The first attempt of the first one may die; then another one takes its place."""
        task, rows = self._copy(sink), self._epochs[epoch]
        crash.strikes("prepare", self._attempt, task, rows[:1], epoch, "0-0")
        return [self._attempt(task, rows[:1], epoch, "0-0"), self._attempt(task, rows[1:], epoch, "0-1")]

    def outage(self, hang: Callable[[], Any], seconds: float) -> None:
        with self._promises.promise("calls come back by a deadline when the server hangs"):
            place = self._places.new()
            sink = self._opened(place)
            receipts = {1: self._prepared(sink, 1)}
            publish = lambda: sink.publish(1, _flat(receipts))  # noqa: E731
            self._promises.comes_back("publish while the server hangs", seconds, hang, publish, own_error=False)
            self._publish(self._opened(place, 1, receipts), 1, receipts)
            self._places.compare(place, self._epochs[1], "published when the server answers again")

    def _opened(
        self, place: str, committed: int = 0, retained: Mapping[int, Sequence[Receipt]] | None = None
    ) -> TaskSink:
        sink = self._places.opened(place, committed, retained)
        assert isinstance(sink, TaskSink)
        return sink

    def _prepared(self, sink: TaskSink, epoch: int) -> list[Receipt]:
        """Two parts of an epoch, of which one has lost an attempt before and after the one that wins."""
        task, rows = self._copy(sink), self._epochs[epoch]
        self._attempt(task, rows[:1], epoch, "0-0")
        won = [self._attempt(task, rows[:1], epoch, "0-0"), self._attempt(task, rows[1:], epoch, "0-1")]
        self._attempt(task, rows[:1], epoch, "0-0")
        return won

    def _attempt(self, sink: TaskSink, rows: pl.DataFrame, epoch: int, part: str) -> Receipt:
        return _json(sink.prepare(rows, epoch=epoch, part=part, attempt=self._name()))

    def _name(self) -> str:
        return f"{self._promises.random.getrandbits(128):032x}"

    def _copy(self, sink: TaskSink) -> TaskSink:
        """The sink as a task has it."""
        copy: TaskSink = cloudpickle.loads(cloudpickle.dumps(sink))  # type: ignore[no-untyped-call]
        return copy

    def _publish(self, sink: TaskSink, epoch: int, receipts: Mapping[int, Sequence[Receipt]]) -> None:
        sink.publish(epoch, _flat(receipts))

    def _check_files(self, sink: TaskSink, receipts: Mapping[int, Sequence[Receipt]]) -> None:
        for receipt in _flat(receipts):
            for path, size in sink.files(receipt).items():
                there = path.is_file() and path.stat().st_size == size
                self._promises.check(there, "after prepare", f"{path} has not the {size} bytes that the receipt says")


def _flat(receipts: Mapping[int, Sequence[Receipt]]) -> list[Receipt]:
    return list(_all(receipts))


def _all(receipts: Mapping[int, Sequence[Receipt]]) -> Iterator[Receipt]:
    for _, of_epoch in sorted(receipts.items()):
        yield from of_epoch


def _json(receipt: Receipt) -> Receipt:
    stored: Receipt = json.loads(json.dumps(dict(receipt)))
    return stored
