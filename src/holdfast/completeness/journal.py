"""The journal of a fragment: what each of its epochs read, wrote and cost, kept for `holdfast laar measure`.

A file of JSON lines beside the fragment's state, `STORE/FRAGMENT/epochs.jsonl`: first what the fragment is connected
to, then an epoch per line. Hosts that share the work have a file each, `epochs.HOST.jsonl`, with the epochs that they
committed. It decides nothing, so it is not synced, and a line that was cut off by a crash is skipped. The newest epochs
are kept. Commits alone would not do: they are few, and say nothing of CPU time.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.epoch.report import EpochReport
    from holdfast.graph.pipeline import Pipeline
    from holdfast.plan.fragments import Fragment

__all__ = ["EpochWork", "FragmentWork", "host_journal", "journalled", "read_journals", "works_of"]

_FILE = "epochs.jsonl"
_FILES = "epochs*.jsonl"
_FORMAT = "holdfast-epochs-1"
_KEPT = 50_000
"""Epochs; the file is cut back to so many when it has twice as many."""


@dataclass(frozen=True, slots=True)
class EpochWork:
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


@dataclass(frozen=True, slots=True)
class FragmentWork:
    """A fragment: its own sources, the p-streams it reads and writes, and its epochs in their order."""

    fragment: str
    sources: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    epochs: tuple[EpochWork, ...]


def journalled(
    pipeline: Pipeline,
    store: Path,
    meta: str | None,
    tell: Callable[[EpochReport], None] | None = None,
    clock: Callable[[], float] = time.time,
) -> Callable[[EpochReport], None]:
    """What to give a run as `on_epoch`: keeps the journals of the pipeline's fragments, and tells `tell` as before."""
    journals: dict[str, _Journal] = {}
    began = clock()

    def on_epoch(report: EpochReport) -> None:
        if report.fragment not in journals:
            for fragment in _fragments(pipeline, store, meta):
                journals[fragment.name] = _Journal(store / fragment.name / _FILE, _header(pipeline.name, fragment))
        with contextlib.suppress(OSError):  # a full disk is told by what matters more
            journals[report.fragment].add(_work(report, began))
        if tell is not None:
            tell(report)

    return on_epoch


def host_journal(
    pipeline: str, fragment: Fragment, store: Path, host: str, began: float
) -> Callable[[EpochReport], None]:
    """What a host does with each epoch of a fragment that it has committed. Since `began` somebody has been there."""
    path = store / fragment.name / f"epochs.{host}.jsonl"
    journal = _Journal(path, _header(pipeline, fragment))

    def on_epoch(report: EpochReport) -> None:
        with contextlib.suppress(OSError):
            journal.add(_work(report, began))

    return on_epoch


def works_of(pipeline: str, fragments: Iterable[Fragment]) -> list[FragmentWork]:
    """What fragments are connected to; nothing of what they did."""
    return [_read(_header(pipeline, each), ()) for each in fragments]


def read_journals(store: Path, pipeline: str, fragments: Collection[str] | None = None) -> list[FragmentWork]:
    """The journals of a pipeline's fragments; none if it has not run. `fragments` are those it has now: a p-stream that
    was renamed has left journals that are of none of them. Where they are not given, the newest run tells."""
    heads: dict[str, dict[str, Any]] = {}
    epochs: dict[str, dict[int, EpochWork]] = {}
    for path in sorted(store.glob(f"*/{_FILES}"), key=lambda each: each.stat().st_mtime):
        lines = _lines(path)
        if lines and lines[0].get("format") == _FORMAT and lines[0]["pipeline"] == pipeline:
            head, name = lines[0], lines[0]["fragment"]
            if heads.get(name, head) != head:  # it was connected to other things then
                epochs[name] = {}
            heads[name] = head
            epochs.setdefault(name, {}).update({line["epoch"]: EpochWork(**line) for line in lines[1:]})
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


def _read(head: Mapping[str, Any], epochs: Sequence[EpochWork]) -> FragmentWork:
    return FragmentWork(
        head["fragment"], tuple(head["sources"]), tuple(head["reads"]), tuple(head["writes"]), tuple(epochs)
    )


class _Journal:
    """Appends to one file, from one process: the one that holds the fragment's lease."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self._path, self._header = path, json.dumps(header)
        path.parent.mkdir(parents=True, exist_ok=True)
        known = path.read_bytes() if path.exists() else b""
        self._count = known.count(b"\n")
        # What was there before goes on, unless the fragment is connected to other things now.
        if known.partition(b"\n")[0] != self._header.encode():
            self._write([])
        elif not known.endswith(b"\n"):
            self._write(known.decode("utf-8", "replace").splitlines()[1:-1])

    def add(self, work: EpochWork) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(work)) + "\n")
        self._count += 1
        if self._count > 2 * _KEPT:
            self._write(self._path.read_text(encoding="utf-8").splitlines()[-_KEPT:])

    def _write(self, epochs: list[str]) -> None:
        aside = self._path.with_suffix(".new")
        aside.write_text("".join(f"{line}\n" for line in (self._header, *epochs)), encoding="utf-8")
        aside.replace(self._path)
        self._count = len(epochs)


def _lines(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _fragments(pipeline: Pipeline, store: Path, meta: str | None) -> tuple[Fragment, ...]:
    """The pipeline as it was cut when the run began."""
    from holdfast.epoch.fragments import kept_placements
    from holdfast.meta import MetaStore
    from holdfast.plan.fragments import cut_pipeline

    known = MetaStore(meta or store)
    try:
        return cut_pipeline(pipeline, kept_placements(pipeline, known)).fragments
    finally:
        known.close()


def _header(pipeline: str, fragment: Fragment) -> dict[str, Any]:
    from holdfast.graph.nodes import SourceNode
    from holdfast.pstream.link import StreamSource

    sources = [
        node.name
        for node in fragment.pipeline.nodes.values()
        if isinstance(node, SourceNode) and not isinstance(node.source, StreamSource)
    ]
    return {
        "format": _FORMAT,
        "pipeline": pipeline,
        "fragment": fragment.name,
        "sources": sources,
        "reads": list(fragment.reads),
        "writes": list(fragment.writes),
    }


def _work(report: EpochReport, run: float) -> EpochWork:
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
    )
