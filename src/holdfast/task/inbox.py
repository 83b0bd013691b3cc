"""Input that a standby has received and not processed: the chunks of planned slices, in files of its own host.

A task that replays an epoch reads them from here instead of from the source.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from polars.exceptions import PanicException, PolarsError

from holdfast.connect.base import Chunk, Marks, Sifted, Source
from holdfast.epoch.messages import decode_frame, encode_frame
from holdfast.epoch.plan import EpochPlan
from holdfast.errors import CorruptFileError, CorruptRecordError
from holdfast.plan.program import Program
from holdfast.store import Private, remove_tree
from holdfast.stored_json import JsonForm, Natural

__all__ = ["Inbox", "decode_chunks", "encode_chunks"]

_RECEIVED = Private("received by this host for itself")


@dataclass(frozen=True, slots=True)
class Inbox:
    """Files by epoch and generation of its plan, source, task and number of the slice, under a directory that goes with
    the host."""

    root: Path

    def fill(self, program: Program, epoch: int, plan: EpochPlan) -> int:
        """Read the slices of an epoch that are not here yet; how many bytes that came to."""
        taken = 0
        for node in program.sources:
            assert isinstance(node.source, Source)
            for task, pieces in enumerate(plan.slices.get(node.name, ())):
                for number, piece in enumerate(pieces):
                    path = self._path(epoch, plan.generation, node.name, task, number)
                    if not path.exists():
                        taken += _write(path, list(node.source.read(piece)))
        return taken

    def chunks(self, epoch: int, source: str, task: int, number: int, *, generation: int = 0) -> Iterator[Chunk] | None:
        """What was received of a slice; None if it was not."""
        try:
            data = self._path(epoch, generation, source, task, number).read_bytes()
        except FileNotFoundError:
            return None
        return iter(decode_chunks(data))

    def forget(self, before: int | None = None) -> None:
        """Remove epochs before this one, or all."""
        if before is None:
            remove_tree(self.root, _RECEIVED)
            return
        for place in self.root.iterdir() if self.root.exists() else ():
            number = place.name.partition(".")[0]
            if number.isdecimal() and int(number) < before:
                remove_tree(place, _RECEIVED)

    def _path(self, epoch: int, generation: int, source: str, task: int, number: int) -> Path:
        return self.root / f"{epoch}.{generation}" / f"{source}-{task}-{number}"


@dataclass(frozen=True, slots=True)
class _ChunkHead:
    """What is known of a chunk apart from its rows. `bytes` are the lengths of its Arrow streams."""

    bytes: tuple[Natural, ...]
    shift: int
    ordered: bool
    marks: tuple[int | None, int | None] | None
    place: str
    sifted: tuple[Natural, int | None, int | None] | None = None


_HEADS = JsonForm(list[_ChunkHead], "input that a standby had received")


def encode_chunks(chunks: Sequence[Chunk]) -> bytes:
    """Chunks as bytes that hold data and no code: a line of JSON, with the lengths of the Arrow streams behind it."""
    heads, blobs = list[_ChunkHead](), list[bytes]()
    for chunk in chunks:
        frames = [encode_frame(frame) for frame in (chunk.frame, chunk.bad) if frame is not None]
        blobs += frames
        marks = None if chunk.marks is None else (chunk.marks.before, chunk.marks.after)
        sifted = None if chunk.sifted is None else (chunk.sifted.rows, chunk.sifted.least, chunk.sifted.greatest)
        sizes = tuple(len(frame) for frame in frames)
        heads.append(_ChunkHead(sizes, chunk.shift, chunk.ordered, marks, chunk.place, sifted))
    return b"".join([_HEADS.encode(heads).encode(), b"\n", *blobs])


def decode_chunks(data: bytes) -> list[Chunk]:
    head, _, rest = data.partition(b"\n")
    chunks, at = [], 0
    try:
        for found in _HEADS.decode(head):
            frames = []
            for size in found.bytes:
                frames.append(decode_frame(rest[at : at + size]))
                at += size
            marks = None if found.marks is None else Marks(*found.marks)
            bad = frames[1] if len(frames) > 1 else None
            sifted = None if found.sifted is None else Sifted(*found.sifted)
            chunks.append(Chunk(frames[0], found.shift, found.ordered, bad, marks, found.place, sifted))
    except (CorruptRecordError, ValueError, IndexError, OSError, PolarsError, PanicException) as error:
        raise CorruptFileError(
            f"input that a standby had received cannot be read: {error!r:.200}",
            cure="the epoch is read from its source again at the next start; remove the volatile tier if it persists",
        ) from error
    return chunks


def _write(path: Path, chunks: list[Chunk]) -> int:
    data = encode_chunks(chunks)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(data)
    draft.replace(path)
    return len(data)
