"""Input whose pace and end are decided from outside while it runs, through a small file.

The rows and the size of epochs do not depend on it: only when they come, and after how many whole epochs they end.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.connect.base import Chunk, Position, Slice, Source, Take

__all__ = ["Gate", "GatedSource"]


@dataclass(frozen=True, slots=True)
class Gate:
    """Epochs are at least `pause` seconds apart, and end after `end` rows; None: not yet."""

    pause: float
    end: int | None = None

    def write(self, path: Path) -> None:
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(path)

    @staticmethod
    def read(path: Path) -> Gate:
        return Gate(**json.loads(path.read_text()))


class GatedSource(Source):
    """Takes of exactly `epoch_rows` rows of a source that has no end, as its gate allows."""

    bounded = True

    def __init__(self, inner: Source, gate: Path, epoch_rows: int) -> None:
        self.inner = inner
        self.gate = gate
        self.epoch_rows = epoch_rows
        self.schema = inner.schema
        self.keeps = inner.keeps
        self._last = -math.inf

    def start(self) -> Position:
        return self.inner.start()

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        gate, now = Gate.read(self.gate), time.monotonic()
        if gate.end is not None and int(position["offset"]) >= gate.end:
            return Take((), position, done=True)
        if now < self._last + gate.pause:
            return Take((), position)
        self._last = now
        return self.inner.take(position, self.epoch_rows, pieces)

    def read(self, piece: Slice) -> Iterator[Chunk]:
        return self.inner.read(piece)
