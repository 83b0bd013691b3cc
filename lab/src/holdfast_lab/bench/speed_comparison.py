"""The speed of two checkouts of this repository, measured in turns within one run.

Each measurement is a command of either checkout in a process of its own, with that checkout's sources: the same
command, so that what is compared is what both have. The machine drifts, so the two take turns, the other one first in
every second round, and what counts is the median of the ratios within the rounds: two measurements of a round are
minutes apart, those of different rounds may be a quarter of an hour.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from holdfast.errors import DeclarationError, HoldfastError
from holdfast_lab.experiment.definition import Bar, at_least

__all__ = ["MEASUREMENTS", "Checkout", "Effort", "SpeedMeasurement", "SpeedRatio", "compare_speed"]

BAR = 0.97
"""The new one's speed over the old one's, at least."""
_TIMEOUT_SECONDS = 1_800.0
_LOG_LINES = 20


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a measurement takes: seconds of a benchmark after its warm-up, keys of keyed state, and how often the
    primary is killed."""

    seconds: float = 8.0
    keys: int = 1_000_000
    faults: int = 5


@dataclass(frozen=True, slots=True)
class SpeedMeasurement:
    """A command of `holdfast` whose last line is JSON, and where in it the figure is."""

    arguments: Callable[[Effort], Sequence[str]]
    figure: tuple[str, ...]
    more_is_better: bool

    def ratio(self, old: float, new: float) -> float:
        """How many times as fast the new one is."""
        return new / old if self.more_is_better else old / new


def _query(name: str) -> SpeedMeasurement:
    return SpeedMeasurement(
        lambda effort: ["bench", name, "--seconds", f"{effort.seconds:g}", "--json"], ("tuples_per_s",), True
    )


def _keyed(effort: Effort) -> Sequence[str]:
    return ["bench", "keyed", "--keys", str(effort.keys), "--seconds", f"{effort.seconds:g}", "--json"]


def _idle(effort: Effort) -> Sequence[str]:
    return ["bench", "idle", "--seconds", f"{effort.seconds:g}", "--json"]


def _takeover(effort: Effort) -> Sequence[str]:
    """kill -9 of the primary of two hosts, and the time to the next commit."""
    hosts = ["--hosts", "2", "--scheme", "active-standby", "--kinds", "primary", "--detection", "0.5"]
    return ["chaos", "ysb", *hosts, "--faults", str(effort.faults), "--seed", "1", "--json"]


MEASUREMENTS: Mapping[str, SpeedMeasurement] = {
    "YSB": _query("ysb"),
    "CM1": _query("cm1"),
    "LRB1": _query("lrb1"),
    "keyed": SpeedMeasurement(_keyed, ("tuples_per_s",), True),
    "idle epoch": SpeedMeasurement(_idle, ("epoch_ms", "p50"), False),
    "replica takeover": SpeedMeasurement(_takeover, ("recovery_ms", "p50"), False),
}


@dataclass(frozen=True, slots=True)
class Checkout:
    """A working tree of this repository. Until 0.1 the lab was a part of the product."""

    path: Path

    def environment(self) -> dict[str, str]:
        """Of a process that runs this checkout's sources, whatever is installed."""
        sources = [self.path / "src", self.path / "lab" / "src"]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(str(place) for place in sources if place.is_dir())}

    def check(self) -> None:
        """Whether it is one, and its sources are those that a process gets."""
        code = "import holdfast; print(holdfast.__file__)"
        said = subprocess.run(
            [sys.executable, "-c", code],
            env=self.environment(), cwd=self.path, stdout=subprocess.PIPE, text=True, check=False,
        ).stdout.strip()  # fmt: skip
        expected = self.path / "src" / "holdfast" / "__init__.py"
        if not said or not expected.is_file() or not Path(said).samefile(expected):
            raise DeclarationError(
                f"{self.path} is no checkout of Holdfast: src/holdfast is not what Python imports there",
                cure="give the root of a working tree; `git worktree add DIR COMMIT` makes one of an older commit",
            )

    def run(self, arguments: Sequence[str]) -> dict[str, Any]:
        """The JSON of a command's last line."""
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *arguments],
            env=self.environment(), capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS,
        )  # fmt: skip
        lines = done.stdout.splitlines()
        if done.returncode or not lines:
            said = "\n".join(f"  {line}" for line in (*lines, *done.stderr.splitlines())[-_LOG_LINES:])
            raise HoldfastError(
                f"`holdfast {' '.join(arguments)}` of {self.path} ended with code {done.returncode}:\n{said}",
                cure="run it by itself in that checkout",
            )
        found: dict[str, Any] = json.loads(lines[-1])
        return found


@dataclass(frozen=True, slots=True)
class SpeedRatio:
    """The figures of all rounds, in the measurement's own unit, and how many times as fast the new checkout is."""

    name: str
    old: tuple[float, ...]
    new: tuple[float, ...]
    ratio: float

    def bar(self) -> Bar:
        return at_least(self.name, round(self.ratio, 3), BAR)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare_speed(
    runs: Mapping[str, Callable[[Sequence[str]], Mapping[str, Any]]],
    names: Sequence[str],
    rounds: int,
    effort: Effort,
    say: Callable[[str], None],
) -> list[SpeedRatio]:
    """Measure `old` and `new` of `runs` in turns; a run gives the JSON of a command. All measurements come once before
    any of them comes again, so that a busy minute does not fall on one of them alone."""
    found: dict[str, dict[str, list[float]]] = {name: {"old": [], "new": []} for name in names}
    for number in range(rounds):
        for name in names:
            measurement = MEASUREMENTS[name]
            for side in ("old", "new") if number % 2 == 0 else ("new", "old"):
                figure: Any = runs[side](measurement.arguments(effort))
                for key in measurement.figure:
                    figure = figure[key]
                found[name][side].append(float(figure))
                say(f"{number + 1}/{rounds} {name}, {side}: {'.'.join(measurement.figure)} {float(figure):,.1f}")
    return [
        SpeedRatio(
            name,
            tuple(figures["old"]),
            tuple(figures["new"]),
            median(map(MEASUREMENTS[name].ratio, figures["old"], figures["new"])),
        )
        for name, figures in found.items()
    ]
