"""Experiment `adaptive-compression`, Fig. 12 of Scabbard: the stream changes while it runs.

The stream of the SM query is encoded and written to disk, each batch synced, under the adaptive scheme and under each
fixed one. After half of the time the values of the integer columns change. Every scheme runs for the same time on a
clock of its own; they take turns in short slices, so that whatever else the machine does slows all of them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import polars as pl

from holdfast.pstream.codecs.encoding import Encoding
from holdfast.pstream.codecs.frame import Encoded
from holdfast.pstream.punit import write_table
from holdfast.store import DirectoryStore, Private
from holdfast_lab.codecs.codec_measurements import FIXED, StreamReplay
from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_least
from holdfast_lab.experiment.plots import grouped_bars, lines
from holdfast_lab.experiment.scabbard.disk_bandwidth import write_bandwidth
from holdfast_lab.experiment.scabbard.endless_streams import Replayed, replayed
from holdfast_lab.workloads.datasets import dataset

__all__ = ["EXPERIMENT", "measured"]

_POOL = 8
_SLICE = 0.25
_BINS = 40
_WITHIN = 0.95
_MEASURES = {
    "tuples_per_s": "wall time with syncs",
    "cpu_and_bandwidth_tuples_per_s": "CPU time and bytes at the disk's bandwidth",
}
"""Two measures of the same run: on a busy machine the first has the noise of other processes, the second has not."""

_PAPER = (
    ("adaptive", "before", "5-10 % over the default after the first switch"),
    ("adaptive", "after", "falls back to generic compression, then 2 x after switching at 12 s"),
)
_SOURCE = "Scabbard, §6.6 and Fig. 12"


class _UnitDisk:
    """Writes batches as p-units and syncs them. `tidy` removes them, so that the disk does not fill."""

    def __init__(self, directory: Path) -> None:

        self._store = DirectoryStore(directory)
        self._names: list[str] = []

    def write(self, encoded: Encoded) -> None:

        self._names.append(f"{uuid4().hex}.arrow")
        write_table(self._store, self._names[-1], encoded.table, encoded.rows)

    def tidy(self) -> None:

        self._store.remove(self._names, Private("written for a measurement"))
        self._names.clear()


@dataclass(slots=True)
class _CompressionRun:
    """A scheme on its own clock, with what it did when."""

    replay: StreamReplay
    disk: _UnitDisk
    clock: float = 0.0
    batches: int = 0
    done: list[tuple[float, int]] = field(default_factory=list)

    def slice(self, part: str, stream: Replayed, until: float) -> None:
        """Work for a slice, or until the clock shows `until`."""
        end = min(until, self.clock + _SLICE)
        while self.clock < end:
            frame = stream.batch(self.batches)  # making it is not the scheme's work
            self.clock += self.replay.step(part, frame)
            self.done.append((self.clock, frame.height))
            self.batches += 1
            self.disk.tidy()


def run(settings: Settings) -> Result:
    return measured(settings, seconds=settings.pick(quick=2.5, full=10.0), rows=1 << 17)


def measured(settings: Settings, seconds: float, rows: int) -> Result:
    """Batches of `rows`; so many seconds per scheme before the change, and as many after it."""

    bandwidth = write_bandwidth(settings.work)
    streams = _streams(settings.seed, rows)
    disk = _UnitDisk(settings.work / "units")
    schemes: dict[str, Encoding | None] = {"adaptive": None, **FIXED}
    runs = [_CompressionRun(StreamReplay(name, bandwidth, fixed, disk.write), disk) for name, fixed in schemes.items()]
    for part, stream in streams.items():
        settings.say(f"{len(runs)} schemes, {seconds:g} s each {part} the change")
        ends = [one.clock + seconds for one in runs]
        while any(one.clock < end for one, end in zip(runs, ends, strict=True)):
            for one, end in zip(runs, ends, strict=True):
                one.slice(part, stream, end)
    return _result(runs, seconds, bandwidth, streams["before"])


def _streams(seed: int, rows: int) -> dict[str, Replayed]:
    """The SM stream as it is, and with readings that became held wide values and climbing counters."""

    stream = replayed(dataset("sm"), rows, _POOL, seed)
    random = np.random.default_rng(seed)

    def changed(number: int, frame: pl.DataFrame) -> pl.DataFrame:
        held = {
            name: np.repeat(random.integers(0, 1 << 30, rows // 100 + 1), 100)[:rows]
            for name in ("mf01", "mf02", "mf03")
        }
        climbing = {
            name: number * (1 << 24) + np.cumsum(random.integers(0, 30, rows)) for name in ("pc13", "pc14", "pc15")
        }
        return frame.with_columns(pl.Series(name, values, pl.Int32) for name, values in {**held, **climbing}.items())

    after = [changed(number, frame) for number, frame in enumerate(stream.pool)]
    return {"before": stream, "after": Replayed(after, stream.steps)}


def _result(runs: Sequence[_CompressionRun], seconds: float, bandwidth: float, stream: Replayed) -> Result:
    parts, width = list(runs[0].replay.totals), stream.bytes_per_row
    rows = [_row(one, part, width) for part in parts for one in runs]
    bars = [_bar(rows, part, column, how) for column, how in _MEASURES.items() for part in parts]
    adaptive = runs[0]
    chosen = adaptive.replay.chooser.choices
    return Result(
        keys=("part", "scheme"),
        rows=rows,
        paper=[
            {"part": part, "scheme": scheme, "tuples_per_s": None, "says": says, "source": _SOURCE}
            for scheme, part, says in _PAPER
        ],
        bars=bars,
        notes=(
            "Throughput is tuples over the wall time of encoding, choosing, writing and syncing each batch, in one"
            f" thread; a batch is {stream.pool[0].height:,} tuples of {width:.0f} bytes and becomes one file.",
            f"Each scheme ran {seconds:g} s before and {seconds:g} s after the change on a clock of its own, taking"
            f" turns every {_SLICE} s. The paper's stream changes after 10 s.",
            "'cpu and bandwidth' is the same without the disk's noise: CPU time plus the bytes at"
            f" {bandwidth / 1e6:.0f} MB/s, measured here with synced files of 8 MB. The adaptive scheme was told it.",
            "The adaptive scheme's time holds its own calibration, looks and trials"
            f" ({adaptive.replay.choosing_seconds:.2f} s in all); it changed its plan {len(_switches(adaptive))} times,"
            f" first at {', '.join(f'{at:.2f} s' for at in _switches(adaptive)[:6])}.",
            "The paper does not say which new values its columns get. Here three readings become wide values held for"
            " 100 tuples, and three become climbing counters.",
        ),
        plot=lambda figure: _plot(figure, runs, rows, seconds),
        also={
            "bandwidth_mb_s": bandwidth / 1e6,
            "switches_s": _switches(adaptive),
            "encodings_at_the_end": {name: str(choice.encoding) for name, choice in chosen.items()},
        },
    )


def _bar(rows: Sequence[Row], part: str, column: str, how: str) -> Bar:
    speed = {row["scheme"]: row[column] for row in rows if row["part"] == part}
    adaptive = speed.pop("adaptive")
    best = max(speed, key=lambda name: speed[name])
    return at_least(
        f"{part} the change, {how}: adaptive over the best fixed scheme ({best})", adaptive / speed[best], _WITHIN
    )


def _row(one: _CompressionRun, part: str, width: float) -> dict[str, Any]:
    totals = one.replay.totals[part]
    return {
        "part": part,
        "scheme": one.replay.scheme,
        "tuples_per_s": totals["rows"] / totals["wall_seconds"],
        "mb_per_s": totals["rows"] * width / totals["wall_seconds"] / 1e6,
        "cpu_and_bandwidth_tuples_per_s": totals["rows"] / totals["seconds"],
        "ratio": totals["rows"] * width / totals["bytes"],
        "encode_ns_per_tuple": totals["encode_seconds"] / totals["rows"] * 1e9,
    }


def _switches(one: _CompressionRun) -> list[float]:
    """When the plan changed, on the scheme's clock."""
    return [round(one.done[number][0], 3) for number in one.replay.switches]


def _plot(figure: Figure, runs: Sequence[_CompressionRun], rows: Sequence[Row], seconds: float) -> None:
    """Throughput over time of the adaptive scheme, of plain, and of the best schemes of each part; below, of all."""

    best: dict[str, None] = {"adaptive": None}
    for part in dict.fromkeys(row["part"] for row in rows):
        ranked = sorted((row for row in rows if row["part"] == part), key=lambda row: -row["tuples_per_s"])
        best |= dict.fromkeys(row["scheme"] for row in ranked[:3])
    best |= {"plain": None, "snappy": None}
    above, below = figure.subplots(2, 1)
    series = {one.replay.scheme: _over_time(one.done, 2 * seconds / _BINS) for one in runs if one.replay.scheme in best}
    lines(above, series, xlabel="seconds", ylabel="million tuples/s")
    above.axvline(seconds, color="black", linestyle=":", label="the values change")
    above.set_ylim(bottom=0)
    above.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    grouped_bars(below, rows, group="scheme", series="part", value="tuples_per_s", ylabel="tuples/s", log=True)
    below.tick_params(axis="x", labelsize=8)


def _over_time(done: Sequence[tuple[float, int]], width: float) -> tuple[list[float], list[float]]:
    """Million tuples per second in bins; a batch belongs to the bin it ended in."""
    bins: dict[int, tuple[int, float]] = {}
    before = 0.0
    for at, rows in done:
        place = int(at / width)
        amount, taken = bins.get(place, (0, 0.0))
        bins[place] = (amount + rows, taken + at - before)
        before = at
    return [(place + 0.5) * width for place in bins], [amount / taken / 1e6 for amount, taken in bins.values()]


EXPERIMENT = Experiment(
    name="adaptive-compression",
    title="Adaptive compression against fixed schemes while the stream changes",
    figure="Scabbard, Fig. 12",
    needs="a disk that syncs",
    run=run,
)
