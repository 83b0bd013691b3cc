"""The driver checks, before it commits an epoch, that the files which the tasks report are really there.

A task writes to a path on its own host. If that is not the directory which the driver sees under the same path, the
output of the epoch would be lost with the commit: no later start could find it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.connect.base import Sink, TaskSink
from holdfast.epoch.messages import Message, commits_of
from holdfast.epoch.task_commit import TaskCommit
from holdfast.errors import UnseenFileError
from holdfast.graph.nodes import SinkNode
from holdfast.plan.program import Program
from holdfast.pstream.link import StreamSink
from holdfast.pstream.punit import PUnit
from holdfast.pstream.stream_entry import stream_store
from holdfast.store import DirectoryStore, segment_of, start_in, sync_names_above
from holdfast.threads import SYSTEM, Clock

__all__ = ["check_written", "sync_places"]

_PATIENCE_SECONDS = 5.0
"""A shared file system may need a moment until what one host has written is seen by the others."""
_LOOK_SECONDS = 0.05


def check_written(
    program: Program,
    epoch: int,
    messages: Collection[Message],
    state: DirectoryStore,
    known: Collection[str],
    clock: Clock = SYSTEM,
) -> None:
    """Raise if a file that a task names is not there, or not as large. `state` has the p-units of state, `known` are
    the names of those that earlier epochs have written."""
    for commit in commits_of(messages):
        for operator, places in _written(program, commit, state, known):
            deadline = clock.monotonic() + _PATIENCE_SECONDS
            while not any(place.is_there() for place in places):
                if clock.monotonic() > deadline:
                    raise _unseen(places[0].path, operator, epoch, commit.host)
                clock.sleep(_LOOK_SECONDS)


def sync_places(
    program: Program,
    messages: Collection[Message],
    state: DirectoryStore,
    known: Collection[str],
    lasting: set[Path],
) -> None:
    """Make the directories durable that hold what was written, each once: `lasting` are those that are. Who has made
    them, another host or a process that was killed, may not have come to sync their names."""
    tops: set[Path] = set()
    for commit in commits_of(messages):
        for _, (written, *_) in _written(program, commit, state, known):
            if written.path.parent in lasting:
                continue
            tops = tops or _tops(program, state)
            top = next((place for place in written.path.parents if place in tops), None)
            if top is not None and written.path.exists():  # what is in memory is not durable anyway
                sync_names_above(written.path, top, lasting)


def _tops(program: Program, state: DirectoryStore) -> set[Path]:
    """Directories that are not created for a run. As a rule all below them are durable, and none is checked."""
    sinks = (node.sink for node in program.sinks)
    return {place.parent for sink in sinks if isinstance(sink, TaskSink) for place in sink.writes()} | {
        state.root.parents[2]
    }


@dataclass(frozen=True, slots=True)
class _WrittenFile:
    """A file that a task has written, or a segment that it has made as large as that."""

    path: Path
    size: int
    grows: bool = False

    def is_there(self) -> bool:
        size = _size(self.path)
        return size is not None and (size >= self.size if self.grows else size == self.size)


def _of_unit(place: Path, unit: PUnit) -> _WrittenFile:
    segment, start = segment_of(unit.name), start_in(place, unit.name)
    if segment is None or start is None:
        return _WrittenFile(place / unit.name, unit.bytes)
    return _WrittenFile(place / segment, start + unit.bytes, grows=True)


def _written(
    program: Program, commit: TaskCommit, state: DirectoryStore, known: Collection[str]
) -> Iterator[tuple[str, list[_WrittenFile]]]:
    """Of all that a task has written: for which operator, and where it may be."""
    for name, receipts in commit.receipts.items():
        sink = _sink(program, name)
        assert isinstance(sink, TaskSink)
        for receipt in receipts:
            for path, size in sink.files(receipt).items():
                yield name, [_WrittenFile(path, size)]
    for name, streamed in commit.streamed.items():
        sink = _sink(program, name)
        assert isinstance(sink, StreamSink)
        assert sink.root is not None
        place = stream_store(sink.root, sink.stream, False)
        for written in streamed:
            yield name, [_of_unit(place.root, written.unit)]
    for name, left in commit.footprints.items():
        if left.unit is not None:
            yield name, [_of_unit(Path(left.place), left.unit)]
    for name, manifest in commit.state.items():
        for piece in manifest.pieces:
            if piece.punit.name not in known:
                yield name, [_of_unit(place, piece.punit) for place in state.places]


def _sink(program: Program, name: str) -> Sink:
    node = program.nodes[name]
    assert isinstance(node, SinkNode)
    return node.sink


def _size(path: Path) -> int | None:
    """As a reader finds it: where hosts share files, what one of them knows of an open file may be old."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.fstat(file).st_size
    finally:
        os.close(file)


def _unseen(path: Path, operator: str, epoch: int, host: str) -> UnseenFileError:
    found = _size(path)
    seen = "is not there" if found is None else f"has {found:,} bytes there"
    return UnseenFileError(
        f"{host} wrote {path}, which {seen} for the driver on {socket.gethostname()}",
        cure="give a path that is the same directory on every host, e.g. a shared mount, and start again: the epoch"
        " was not committed",
        operator=operator,
        epoch=epoch,
    )
