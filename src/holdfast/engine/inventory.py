"""What the tasks of an epoch say they have written, looked for by the driver before it commits the epoch.

A task writes where its host lets it. Where that is not the directory that the driver sees under the same path, what the
epoch has made would be lost with the commit: no start could find it again.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator
from pathlib import Path

from holdfast.connect.base import Sink, TaskSink
from holdfast.epoch.messages import Message, commits_of
from holdfast.epoch.task_commit import TaskCommit
from holdfast.errors import UnseenFileError
from holdfast.graph.nodes import SinkNode
from holdfast.plan.program import Program
from holdfast.pstream.link import StreamSink
from holdfast.pstream.stream import stream_store
from holdfast.store import DirectoryStore, sync_names_above
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
        for operator, size, places in _written(program, commit, state, known):
            deadline = clock.monotonic() + _PATIENCE_SECONDS
            while not any(_size(place) == size for place in places):
                if clock.monotonic() > deadline:
                    raise _unseen(places[0], operator, epoch, commit.host)
                clock.sleep(_LOOK_SECONDS)


def sync_places(
    program: Program,
    messages: Collection[Message],
    state: DirectoryStore,
    known: Collection[str],
    lasting: set[Path],
) -> None:
    """Make the directories durable that hold what was written, each once: `lasting` are those that are. Another host
    may have made them a moment ago, and not have synced their names."""
    sinks = (node.sink for node in program.sinks)
    tops = {place.parent for sink in sinks if isinstance(sink, TaskSink) for place in sink.writes()}
    tops.add(state.root.parents[2])
    for commit in commits_of(messages):
        for _, _, (path, *_) in _written(program, commit, state, known):
            top = next((place for place in path.parents if place in tops), None)
            if top is not None and path.exists():  # what lies in memory is not durable anyway
                sync_names_above(path, top, lasting)


def _written(
    program: Program, commit: TaskCommit, state: DirectoryStore, known: Collection[str]
) -> Iterator[tuple[str, int, list[Path]]]:
    """Operator, size, and where it may be, of each file that a task has written."""
    for name, receipts in commit.receipts.items():
        sink = _sink(program, name)
        assert isinstance(sink, TaskSink)
        for receipt in receipts:
            for path, size in sink.files(receipt).items():
                yield name, size, [path]
    for name, streamed in commit.streamed.items():
        sink = _sink(program, name)
        assert isinstance(sink, StreamSink)
        assert sink.root is not None
        place = stream_store(sink.root, sink.stream, False)
        for written in streamed:
            yield name, written.unit.bytes, [place.path(written.unit.name)]
    for name, left in commit.footprints.items():
        if left.unit is not None:
            yield name, left.bytes, [Path(left.path)]
    for name, manifest in commit.state.items():
        for piece in manifest.pieces:
            if piece.punit.name not in known:
                yield name, piece.punit.bytes, [place / piece.punit.name for place in state.places]


def _sink(program: Program, name: str) -> Sink:
    node = program.nodes[name]
    assert isinstance(node, SinkNode)
    return node.sink


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _unseen(path: Path, operator: str, epoch: int, host: str) -> UnseenFileError:
    found = _size(path)
    seen = "is not there" if found is None else f"has {found:,} bytes there"
    return UnseenFileError(
        f"{host} has written {path}, which {seen} for the driver on {socket.gethostname()}",
        cure="give a path that is the same directory on every host, e.g. a shared mount, and start again: the epoch"
        " was not committed",
        operator=operator,
        epoch=epoch,
    )
