"""What the executors of a session can reach: whether they see the directories that all parts of a run must share.

A worker that does not see the store or the directory of a sink would fail in the middle of an epoch, or leave rows
where nobody looks. So before the first epoch, a task on each executor reads a token that the driver has written to each
of these directories, answers with a file next to it, and looks for a sample of the input files. If tasks run inside the
driver's Java process, there is nothing to check. Executors that join later are not checked.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from holdfast.connect.base import Source, TaskSink
from holdfast.errors import ClusterError
from holdfast.plan.program import Program
from holdfast.spark.executor_watch import ExecutorWatch, meet_executors, runs_in_driver
from holdfast.spark.session import slots
from holdfast.store import Tiers, make_directories

__all__ = ["SharedPlace", "check_reach", "shared_places"]

_log = logging.getLogger(__name__)

_SETTLED_SECONDS, _LONGEST_SETTLING = 1.0, 5.0
_LOOK_EVERY = 0.1
_ROUNDS = 4
_HOLD_SECONDS = 0.1
_SEEN = {"host": pa.string(), "java": pa.int64(), "path": pa.string(), "problem": pa.string()}


@dataclass(frozen=True, slots=True)
class SharedPlace:
    """A directory that executors write to, or, with a `size`, a file of that size that they read. `what` it is for."""

    path: Path
    what: str
    operator: str | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class _Look:
    """The task: look at each place, and say what is wrong with it."""

    token: str
    places: tuple[SharedPlace, ...]
    hold: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        host, java = socket.gethostname(), psutil.Process(os.getppid()).ppid()
        problems = [self._problem(place, f"{host}-{java}") for place in self.places]
        time.sleep(self.hold)  # in its slot, so that the next task goes elsewhere
        count = len(self.places)
        columns = [[host] * count, [java] * count, [str(place.path) for place in self.places], problems]
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, kind) for column, kind in zip(columns, _SEEN.values(), strict=True)], [*_SEEN]
        )

    def _problem(self, place: SharedPlace, me: str) -> str | None:
        try:
            if place.size is not None:
                found = place.path.stat().st_size
                return None if found >= place.size else f"it has {found} bytes there, and {place.size} here"
            if _token_file(place, self.token).read_text() != self.token:
                return "it is another directory there"
            _answer_file(place, self.token, me).write_text(me)
        except OSError as error:
            return f"{type(error).__name__}: {error.strerror}"
        return None


def shared_places(program: Program, root: Path, tiers: Tiers, volatile: Path | None) -> list[SharedPlace]:
    """What all tasks of a program must have under the same path; the `volatile` tier only if the user has named it."""
    places = [SharedPlace(root, "the store"), *(SharedPlace(place, "a backup") for place in tiers.backups)]
    if volatile is not None:
        places.append(SharedPlace(tiers.volatile, "the volatile tier"))
    for source in program.sources:
        if isinstance(source.source, Source):
            seen = (path for path in source.source.reads() if path.exists())
            sizes = ((path, path.stat().st_size if path.is_file() else 0) for path in seen)
            places += [SharedPlace(path, "input", source.name, size) for path, size in sizes]
    for sink in program.sinks:
        if isinstance(sink.sink, TaskSink):
            places += [SharedPlace(path, "output that is being prepared", sink.name) for path in sink.sink.writes()]
    return places


def check_reach(spark: SparkSession, places: Sequence[SharedPlace], optional: Path) -> bool:
    """Raise a `ClusterError` if an executor does not see one of the places. Whether all see the `optional` one."""
    watch = ExecutorWatch(spark)
    must = {place.path for place in places}
    if not watch.is_needed:  # of Spark Connect nothing is known but the user's word
        return runs_in_driver(watch.master) or optional in must
    meet_executors(spark)
    _settle(watch)
    token = uuid.uuid4().hex
    asked = (*places, SharedPlace(optional, "the volatile tier"))
    try:
        _write_tokens(asked, token)
        missed, all_asked = _missed(spark, watch, asked, token)
    finally:
        for place in asked:
            if place.size is None:
                for file in place.path.glob(f"{_name(token)}*"):
                    with contextlib.suppress(OSError):
                        file.unlink()
    for place, host, problem in missed:
        if place.path in must:
            raise ClusterError(
                f"the executor on host '{host}' does not share {place.path} ({place.what}) with the driver: {problem}",
                cure="make it available on every machine under the same path, e.g. mounted from a file server,"
                " readable and writable for the user that the executors run as",
                operator=place.operator,
            )
    if not all_asked:
        _log.warning("not all executors had a free slot, so some were not checked for shared directories")
    return (all_asked or optional in must) and all(place.path != optional for place, _, _ in missed)


def _settle(watch: ExecutorWatch) -> None:
    """Executors come one after the other: wait until no more do."""
    until = time.monotonic() + _LONGEST_SETTLING
    known, since = watch.count(), time.monotonic()
    while time.monotonic() < min(until, since + _SETTLED_SECONDS):
        time.sleep(_LOOK_EVERY)
        if (now := watch.count()) != known:
            known, since = now, time.monotonic()


def _missed(
    spark: SparkSession, watch: ExecutorWatch, places: tuple[SharedPlace, ...], token: str
) -> tuple[list[tuple[SharedPlace, str, str]], bool]:
    """What was not seen or not answered, and where; and whether all executors were asked. Tasks cannot be sent to an
    executor: they are started in all slots, and again as long as one of the executors had none."""
    by_path = {str(place.path): place for place in places}
    problems: dict[tuple[str, int, str], str | None] = {}
    for number in range(1, _ROUNDS + 1):
        tasks = max(1, slots(spark))
        look = _Look(token, places, _HOLD_SECONDS * number)
        for row in (
            spark.range(0, tasks, 1, tasks)
            .mapInArrow(look, "host string, java long, path string, problem string")
            .collect()
        ):
            problems[row.host, row.java, row.path] = row.problem
        if len({(host, java) for host, java, _ in problems}) >= watch.count():
            break
    missed, asked = [], len({(host, java) for host, java, _ in problems})
    for (host, java, path), problem in problems.items():
        place = by_path[path]
        if problem is None and place.size is None and not _answer_file(place, token, f"{host}-{java}").exists():
            problem = "a file that it writes there does not appear here"
        if problem is not None:
            missed.append((place, host, problem))
    return missed, asked >= watch.count()


def _write_tokens(places: Iterable[SharedPlace], token: str) -> None:
    for place in places:
        if place.size is None:
            try:
                make_directories(place.path)
                _token_file(place, token).write_text(token)
            except OSError as error:
                raise ClusterError(
                    f"{place.path} ({place.what}) cannot be written to: {error.strerror}",
                    cure="give the driver the right to write there, or name another directory",
                    operator=place.operator,
                ) from error


def _name(token: str) -> str:
    return f".probe-{token}"


def _token_file(place: SharedPlace, token: str) -> Path:
    return place.path / _name(token)


def _answer_file(place: SharedPlace, token: str, me: str) -> Path:
    return place.path / f"{_name(token)}-{me}"
