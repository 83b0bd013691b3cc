"""What the experiment `controller` is put together from: a part measures its rows, judges and draws them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast_lab.experiment.definition import Bar, Figure, Result, Row

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure
else:
    SubFigure = Any

__all__ = ["KEYS", "ControllerPart", "SubFigure", "combined"]

KEYS = ("part", "load", "guarantee")


@dataclass(frozen=True, slots=True)
class ControllerPart:
    """`rows` have the columns of `KEYS`, of which `part` is the name; `draw` gets a part of the figure; `also` goes to
    the JSON under the name."""

    name: str
    rows: Sequence[Row]
    bars: Sequence[Bar]
    notes: Sequence[str]
    draw: Callable[[SubFigure], None]
    also: Mapping[str, Any] = field(default_factory=dict)


def combined(parts: Sequence[ControllerPart], paper: Sequence[Row], shown: Sequence[str]) -> Result:
    """One result of all parts, drawn side by side."""

    def plot(figure: Figure) -> None:
        for place, part in zip(figure.subfigures(1, len(parts), squeeze=False)[0], parts, strict=True):
            part.draw(place)

    return Result(
        keys=KEYS,
        rows=[{"part": part.name, **row} for part in parts for row in part.rows],
        paper=paper,
        bars=[bar for part in parts for bar in part.bars],
        notes=[note for part in parts for note in part.notes],
        plot=plot,
        shown=shown,
        also={part.name: dict(part.also) for part in parts},
    )
