"""What the driver and the tasks tell each other about footprints: which to leave, and which were left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.pstream import PUnit
from holdfast.state.extent import WindowMove
from holdfast.stored_json import Natural

__all__ = ["FIRST_PIECE", "FootprintOrder", "FootprintsLeft", "OlderBatch"]

FIRST_PIECE = 4_096
"""How many windows are handled at a time while the cost is unknown."""


@dataclass(frozen=True, slots=True)
class OlderBatch:
    """A batch of the log that may hold last footprints which are too old, and how many of its records each task has
    seen to."""

    epoch: int
    unit: PUnit
    skip: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class FootprintOrder:
    """What the windows of an operator are to leave in an epoch, and where; a `FootprintTrace` carries it out. It begins
    with a `piece` of so many of them."""

    root: str
    stream: str
    sync: bool
    replaying: bool = False
    opening: bool = False
    before: int = 0
    spare: int | None = None
    older: tuple[OlderBatch, ...] = ()
    seconds: float = 0.0
    piece: int = FIRST_PIECE


@dataclass(frozen=True, slots=True)
class FootprintsLeft:
    """What the windows of one partition have left: the batch, if there is one, with the directory it is in, and the
    account of it.

    `opened` are the windows that left their first footprint, by class; `moved` those that had one. `checked` windows
    got a new one because theirs was too old, which took `seconds`, and `busy` seconds of CPU time; `seen_to` says how
    much of which old batch. A `piece` is what can be done at a time.
    """

    unit: PUnit | None
    place: str
    opened: Mapping[int, int] = field(default_factory=dict)
    moved: tuple[WindowMove, ...] = ()
    closed: int | None = None
    checked: Natural = 0
    seconds: float = 0.0
    busy: float = 0.0
    piece: Natural = FIRST_PIECE
    seen_to: Mapping[str, int] = field(default_factory=dict)
    damaged: bool = False

    @property
    def records(self) -> int:
        return 0 if self.unit is None else self.unit.rows

    @property
    def bytes(self) -> int:
        return 0 if self.unit is None else self.unit.bytes
