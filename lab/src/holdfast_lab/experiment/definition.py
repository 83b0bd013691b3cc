"""What an experiment is: a figure or table of a paper, measured here, beside what the paper says.

How to write one. Make a module in the package of its paper, add a line to `registry.py`, and let it have

    def run(settings: Settings) -> Result: ...

    EXPERIMENT = Experiment(
        name="my-figure",
        title="What is compared with what",
        figure="Scabbard, Fig. 8",
        needs="a disk; Java and a Maven repository for the broker",
        run=run,
    )

`run` measures and gives back a `Result`. The command prints it, and writes `results/NAME.json`, `.png` and `.svg`.

- *rows*: what was measured, a dict per row, with values JSON knows. Names carry the unit (`tuples_per_s`,
  `latency_p50_ms`, `state_mb`). The columns of `keys` say what a row is of; together they are unique.
- *paper*: what the paper says of the same things: a dict with the key columns, the columns it has figures for, named
  as in `rows`, and `source`, the place in the paper's text. Where a figure can only be read off a plot it is None: a
  number that is not in the text is not known. A row of the paper may leave out key columns, and then goes with all
  rows that have the others.
- *bars*: what must be reached, by `at_least` or `at_most`. A bar that is missed is a result, not an error.
- *notes*: sentences on what differs from the paper and how it was measured. The command adds the machine.
- *plot*: a function that draws on a matplotlib figure; `plots.py` has the common kinds. It should use nothing but the
  rows.

What an experiment must keep to: with `settings.quick` it ends within two minutes on two cores. It measures for real and
hard-codes no result. Its random numbers come from `settings.seed`. Its files go below `settings.work`, which is on the
disk of the results and is removed afterwards, and it leaves no process behind, whatever happens. Its module is imported
only when the experiment runs, so it imports what it needs at its top; a list reads the texts of its `EXPERIMENT` from
the code. A program that it starts as a process of its own does without `plots.py`.
It raises a `HoldfastError`, with a cure, when it cannot run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any

__all__ = ["Bar", "Experiment", "Figure", "Result", "Row", "Settings", "at_least", "at_most", "matching"]

Row = Mapping[str, Any]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is given. `work` is an empty directory of its own; `say` tells the person waiting what goes on."""

    quick: bool
    seed: int
    work: Path
    say: Callable[[str], None]
    days: float = 1.0
    """Of load, where load is simulated."""
    recovery: float = 3.0
    """Within how many seconds real hosts are to recover, where that is asked of them."""
    runs: int = 1
    """How often the whole is done, where what counts is that it comes out so every time."""
    kill: bool = False
    """Whether a part of what runs is lost in the middle, where that can be asked for."""
    expressways: int | None = None
    """Of Linear Road; by default what two cores carry."""

    def pick(self, *, quick: _T, full: _T) -> _T:
        """A size or a duration, by how long the run may take."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Bar:
    """What a measurement must reach. `value` is None when it could not be measured, and then `ok` is false."""

    name: str
    value: float | None
    bar: float
    ok: bool


def at_least(name: str, value: float | None, bar: float) -> Bar:
    return Bar(name, value, bar, value is not None and value >= bar)


def at_most(name: str, value: float | None, bar: float) -> Bar:
    return Bar(name, value, bar, value is not None and value <= bar)


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured, beside what the paper says.

    `shown` names the columns of the printed table, beside the keys; without it all are shown. The JSON has all.
    """

    keys: Sequence[str]
    rows: Sequence[Row]
    paper: Sequence[Row] = ()
    bars: Sequence[Bar] = ()
    notes: Sequence[str] = ()
    plot: Callable[[Figure], None] | None = None
    shown: Sequence[str] = ()
    also: Row = field(default_factory=dict)
    """More for the JSON, by name: settings, series over time and the like."""

    def __post_init__(self) -> None:
        known = [tuple(row.get(key) for key in self.keys) for row in self.rows]
        if len(set(known)) != len(known):
            raise ValueError(f"two rows have the same {', '.join(self.keys)}")
        for row in self.paper:
            if not row.get("source"):
                raise ValueError(f"a figure of the paper needs its source: {dict(row)}")

    def to_json(self) -> dict[str, Any]:
        return {
            "keys": list(self.keys),
            "rows": [dict(row) for row in self.rows],
            "paper": [dict(row) for row in self.paper],
            "bars": [asdict(bar) for bar in self.bars],
            "notes": list(self.notes),
            **self.also,
        }


@dataclass(frozen=True, slots=True)
class Experiment:
    """An entry of the list. `needs` says what must be there beside two cores; `figure` names paper and figure."""

    name: str
    title: str
    figure: str
    needs: str
    run: Callable[[Settings], Result]
    takes: Sequence[str] = ()
    """The options of the command that only some experiments have."""


def matching(result: Result, row: Row) -> dict[str, Any]:
    """The paper's figures for a row, by column: of all rows of the paper whose key columns agree with it."""
    found: dict[str, Any] = {}
    for said in result.paper:
        if all(said[key] == row.get(key) for key in result.keys if key in said):
            found |= {name: value for name, value in said.items() if name not in result.keys and value is not None}
    return found
