"""Input that a standby has received and not processed: the chunks of planned slices, in files of its own host.

A task that replays an epoch reads them from here instead of from the source.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.connect.base import Chunk, Slice, Source
from holdfast.plan.program import Program
from holdfast.store import Private, remove_tree

__all__ = ["Inbox"]

_RECEIVED = Private("received by this host for itself")


@dataclass(frozen=True, slots=True)
class Inbox:
    """Files by epoch, source, task and number of the slice, under a directory that goes with the host."""

    root: Path

    def fill(self, program: Program, epoch: int, plan: Mapping[str, Any]) -> int:
        """Read the slices of an epoch that are not here yet; how many bytes that came to."""
        taken = 0
        for node in program.sources:
            assert isinstance(node.source, Source)
            for task, pieces in enumerate(plan["slices"].get(node.name, ())):
                for number, piece in enumerate(pieces):
                    path = self._path(epoch, node.name, task, number)
                    if not path.exists():
                        where = Slice(piece["base"], piece["rows"], piece["where"])
                        taken += _write(path, list(node.source.read(where)))
        return taken

    def chunks(self, epoch: int, source: str, task: int, number: int) -> Iterator[Chunk] | None:
        """What was received of a slice; None if it was not."""
        try:
            data = self._path(epoch, source, task, number).read_bytes()
        except FileNotFoundError:
            return None
        chunks: list[Chunk] = pickle.loads(data)
        return iter(chunks)

    def forget(self, before: int | None = None) -> None:
        """Remove epochs before this one, or all."""
        if before is None:
            remove_tree(self.root, _RECEIVED)
            return
        for place in self.root.iterdir() if self.root.exists() else ():
            if place.name.isdecimal() and int(place.name) < before:
                remove_tree(place, _RECEIVED)

    def _path(self, epoch: int, source: str, task: int, number: int) -> Path:
        return self.root / str(epoch) / f"{source}-{task}-{number}"


def _write(path: Path, chunks: list[Chunk]) -> int:
    data = pickle.dumps(chunks, protocol=pickle.HIGHEST_PROTOCOL)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(data)
    draft.replace(path)
    return len(data)
