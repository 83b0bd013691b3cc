"""The journal of a fragment: what each of its epochs read, wrote and cost, kept for `holdfast laar measure`.

A file of JSON lines beside the fragment's state, `STORE/FRAGMENT/epochs.jsonl`: first what the fragment is connected
to, then an epoch per line. Hosts that share the work have a file each, `epochs.HOST.jsonl`, with the epochs that they
committed. It decides nothing, so it is not synced, and a line that was cut off by a crash is skipped. The newest epochs
are kept. Commits alone would not do: they are few, and say nothing of CPU time. How many rows of each p-stream were
read is in the plan of an epoch, and is looked up where a fragment has several inputs.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from holdfast.engine.observer import Observer
from holdfast.epoch.plan import EpochPlan
from holdfast.errors import HoldfastError
from holdfast.graph.nodes import SourceNode
from holdfast.meta import MetaStore
from holdfast.plan.cuts import Fragment, cut_pipeline
from holdfast.pstream.link import StreamSource
from holdfast.stored_json import encode_json

if TYPE_CHECKING:
    from holdfast.epoch.report import EpochReport
    from holdfast.graph.pipeline import Pipeline

__all__ = ["EpochWork", "FragmentWork", "PipelineJournal", "host_journal", "read_journals", "works_of"]

_FILE = "epochs.jsonl"
_FILES = "epochs*.jsonl"
_FORMAT = "holdfast-epochs-2"
_FORMATS = ("holdfast-epochs-1", _FORMAT)
"""The first did not tell the p-streams apart."""
_KEPT = 50_000
"""Epochs; the file is cut back to so many when it has twice as many."""


class EpochWork(msgspec.Struct, frozen=True, rename={"other_cpu": "beside"}):
    """Rows and CPU seconds of an epoch, and when it was. `run` tells runs apart: between two of them nothing was read
    because nobody was there to read."""

    run: float
    epoch: int
    started: float
    committed: float
    read: int
    entered: int
    streamed: int
    output: int
    cpu: float
    streams: Mapping[str, int] | None = None
    """Rows by the p-stream they are of; None where that is not known."""
    other_cpu: float | None = None
    """CPU seconds per second that the host uses for all but the tasks of epochs; None where that is not known. Its
    name in the file is `beside`."""


@dataclass(frozen=True, slots=True)
class FragmentWork:
    """A fragment: its own sources, the p-streams it reads and writes, and its epochs in their order."""

    fragment: str
    sources: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    epochs: tuple[EpochWork, ...]


class PipelineJournal(Observer):
    """Keeps the journals of all fragments of a pipeline that one process runs, each in a thread of its own."""

    def __init__(
        self, pipeline: Pipeline, store: Path, meta: str | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._pipeline = pipeline
        self._store = store
        self._place = meta or store
        self._began = clock()
        self._meta: MetaStore | None = None
        self._journals: dict[str, Callable[[EpochReport], None]] = {}
        self._lock = threading.Lock()

    def epoch_committed(self, report: EpochReport) -> None:
        with self._lock:
            if report.fragment not in self._journals:
                self._open()
            self._journals[report.fragment](report)

    def _open(self) -> None:
        # Spark is slow to import, and who reads journals does not need it.
        from holdfast.engine.fragment_runs import kept_placements  # noqa: PLC0415 - see above

        self.close()
        meta = MetaStore(self._place, reads_only=True)
        cuts = cut_pipeline(self._pipeline, kept_placements(self._pipeline, meta))
        for fragment in cuts.fragments:
            path = self._store / fragment.name / _FILE
            self._journals[fragment.name] = _noting(path, self._pipeline.name, fragment, meta, self._began)
        if any(len(fragment.reads) > 1 for fragment in cuts.fragments):
            self._meta = meta  # the rows of each p-stream are looked up in it
        else:
            meta.close()

    def close(self) -> None:
        if self._meta is not None:
            self._meta.close()
            self._meta = None


def host_journal(
    pipeline: str,
    fragment: Fragment,
    store: Path,
    meta: MetaStore,
    host: str,
    began: float,
    other_cpu: Callable[[], float | None],
) -> Callable[[EpochReport], None]:
    """What a host does with each epoch of a fragment that it has committed. Since `began` somebody has been there;
    `other_cpu` is what the host uses for all but the tasks of epochs."""
    return _noting(store / fragment.name / f"epochs.{host}.jsonl", pipeline, fragment, meta, began, other_cpu)


def _noting(
    path: Path,
    pipeline: str,
    fragment: Fragment,
    meta: MetaStore,
    began: float,
    other_cpu: Callable[[], float | None] = lambda: None,
) -> Callable[[EpochReport], None]:
    journal, streams = _Journal(path, _header(pipeline, fragment)), _streams(fragment)
    several = len(fragment.reads) > 1

    def note(report: EpochReport) -> None:
        read: dict[str, int] | None = dict.fromkeys(fragment.reads, report.rows - report.entered)
        if several:
            read = _read_of(meta, report, streams)
        with contextlib.suppress(OSError):  # a full disk is told by what matters more
            journal.add(_work(report, began, read, other_cpu()))

    return note


def _read_of(meta: MetaStore, report: EpochReport, streams: Mapping[str, str]) -> dict[str, int] | None:
    """Rows by p-stream, as the epoch was planned."""
    try:
        found = meta.look_up(report.fragment, report.epoch)
    except (SQLAlchemyError, HoldfastError):  # what decides nothing is no reason to fail
        return None
    if found is None:
        return None
    rows, plan = dict.fromkeys(streams.values(), 0), EpochPlan.decode(found.plan)
    for node, stream in streams.items():
        rows[stream] += plan.rows_of(node)
    return rows


def works_of(pipeline: str, fragments: Iterable[Fragment]) -> list[FragmentWork]:
    """What fragments are connected to; nothing of what they did."""
    return [_read(_header(pipeline, fragment), ()) for fragment in fragments]


def read_journals(store: Path, pipeline: str, fragments: Collection[str] | None = None) -> list[FragmentWork]:
    """The journals of a pipeline's fragments; none if it has not run. `fragments` are those it has now: a p-stream that
    was renamed has left journals that are of none of them. Where they are not given, the newest run tells."""
    heads: dict[str, _Head] = {}
    epochs: dict[str, dict[int, EpochWork]] = {}
    for path in sorted(store.glob(f"*/{_FILES}"), key=lambda file: file.stat().st_mtime):
        found, lines = _lines(path)
        if found is not None and found.format in _FORMATS and found.pipeline == pipeline:
            head, name = replace(found, format=_FORMAT), found.fragment
            if heads.get(name, head) != head:  # it was connected to other things then
                epochs[name] = {}
            heads[name] = head
            epochs.setdefault(name, {}).update({line.epoch: line for line in lines})
    works = [_read(heads[name], [own[at] for at in sorted(own)]) for name, own in sorted(epochs.items())]
    kept = _of_newest_run(works) if fragments is None else fragments
    return [work for work in works if work.fragment in kept]


def _of_newest_run(works: Sequence[FragmentWork]) -> set[str]:
    """Fragments that have run since the newest run began, and those that wrote what they read: they may have ended."""
    ran = [work for work in works if work.epochs]
    newest = max((epoch.run for work in ran for epoch in work.epochs), default=0.0)
    began = min((epoch.started for work in ran for epoch in work.epochs if epoch.run == newest), default=0.0)
    kept = {work.fragment for work in ran if work.epochs[-1].committed >= began}
    while True:
        read = {stream for work in works if work.fragment in kept for stream in work.reads}
        more = {work.fragment for work in works if read & set(work.writes)} - kept
        if not more:
            return kept
        kept |= more


@dataclass(frozen=True, slots=True)
class _Head:
    """The first line of a journal: whose it is, and what the fragment is connected to."""

    format: str
    pipeline: str
    fragment: str
    sources: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


_HEADS = msgspec.json.Decoder(_Head)
_EPOCHS = msgspec.json.Decoder(EpochWork)


def _read(head: _Head, epochs: Sequence[EpochWork]) -> FragmentWork:
    return FragmentWork(head.fragment, head.sources, head.reads, head.writes, tuple(epochs))


class _Journal:
    """Appends to one file, from one process: the one that holds the fragment's lease."""

    def __init__(self, path: Path, header: _Head) -> None:
        self._path, self._header = path, json.dumps(asdict(header))  # a header is known by its text
        path.parent.mkdir(parents=True, exist_ok=True)
        known = path.read_bytes() if path.exists() else b""
        self._count = known.count(b"\n")
        # What was there before goes on, unless the fragment is connected to other things now.
        head = known.partition(b"\n")[0]
        if head != self._header.encode():
            same = head.replace(_FORMATS[0].encode(), _FORMAT.encode()) == self._header.encode()
            self._write(known.decode("utf-8", "replace").splitlines()[1:] if same else [])
        elif not known.endswith(b"\n"):
            self._write(known.decode("utf-8", "replace").splitlines()[1:-1])

    def add(self, work: EpochWork) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(encode_json(work) + "\n")
        self._count += 1
        if self._count > 2 * _KEPT:
            self._write(self._path.read_text(encoding="utf-8").splitlines()[-_KEPT:])

    def _write(self, epochs: list[str]) -> None:
        aside = self._path.with_suffix(".new")
        aside.write_text("".join(f"{line}\n" for line in (self._header, *epochs)), encoding="utf-8")
        aside.replace(self._path)
        self._count = len(epochs)


def _lines(path: Path) -> tuple[_Head | None, list[EpochWork]]:
    """The header of a journal, and its epochs but for lines that were cut off."""
    first, *rest = path.read_text(encoding="utf-8").splitlines() or [""]
    try:
        head = _HEADS.decode(first)
    except ValueError:
        return None, []
    found = []
    for line in rest:
        with contextlib.suppress(ValueError):
            found.append(_EPOCHS.decode(line))
    return head, found


def _streams(fragment: Fragment) -> dict[str, str]:
    """The p-streams that a fragment reads, by the sources that read them."""
    nodes = [node for node in fragment.pipeline.nodes.values() if isinstance(node, SourceNode)]
    return {node.name: node.source.stream for node in nodes if isinstance(node.source, StreamSource)}


def _header(pipeline: str, fragment: Fragment) -> _Head:
    sources = [
        node.name
        for node in fragment.pipeline.nodes.values()
        if isinstance(node, SourceNode) and not isinstance(node.source, StreamSource)
    ]
    return _Head(_FORMAT, pipeline, fragment.name, tuple(sources), fragment.reads, fragment.writes)


def _work(report: EpochReport, run: float, streams: Mapping[str, int] | None, other_cpu: float | None) -> EpochWork:
    return EpochWork(
        run=run,
        epoch=report.epoch,
        started=report.started,
        committed=report.committed,
        read=report.rows,
        entered=report.entered,
        streamed=report.streamed_rows,
        output=report.output_rows,
        cpu=sum(report.cpu.values()),
        streams=streams,
        other_cpu=other_cpu,
    )
