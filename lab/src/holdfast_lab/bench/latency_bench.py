"""`holdfast bench latency`: how long rows take at fixed rates, in Holdfast, Structured Streaming and Flink, in one run.

What is measured in each system is said where it is measured (`latency_runs`, `latency_elsewhere`): always from the
arrival of a row, by a schedule that does not wait, to the commit that contains it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from holdfast.errors import HoldfastError
from holdfast_lab.bench.open_loop import LatencyOfRows
from holdfast_lab.bench.query_runs import session
from holdfast_lab.experiment.plots import COLOURS, MARKERS, readable, save

__all__ = ["BARS", "LatencyBench", "measure_latency"]

RATES = (10_000, 100_000, 1_000_000)
BARS = {10_000: (10.0, 50.0), 100_000: (10.0, 50.0), 1_000_000: (20.0, 100.0)}
"""Milliseconds at each rate that the median and the 99th percentile of `sliding` must not exceed; twice as many for the
other loads."""
_INTERVALS = (1.0, 0.1)
_WARM = 5.0


@dataclass(frozen=True, slots=True)
class LatencyResult:
    """Of one load at one rate in one system; `times` is where the time of an epoch went, in milliseconds."""

    system: str
    load: str
    rate: int
    latency: LatencyOfRows | None
    times: dict[str, float] | None = None
    problem: str | None = None

    def line(self) -> str:
        found = f"{self.system:<34} {self.load:<8} {self.rate:>9,} rows/s: "
        if self.latency is None:
            return found + (self.problem or "no checkpoint was completed")
        shown = f"p50 {self.latency.p50:,.1f}, p99 {self.latency.p99:,.1f}, p99.9 {self.latency.p999:,.1f} ms"
        return found + shown + ("" if self.latency.kept_up else " (did not keep up)")


@dataclass(frozen=True, slots=True)
class LatencyBench:
    """All results of a run."""

    results: tuple[LatencyResult, ...]

    def bars(self) -> list[dict[str, Any]]:
        """What Holdfast must reach at the rates that something is promised for. A rate that is not kept up with is
        missed, whatever its percentiles are."""
        made = []
        for result in self.results:
            if result.system != "Holdfast" or result.rate not in BARS:
                continue
            for name, limit in zip(("p50", "p99"), BARS[result.rate], strict=True):
                bar = limit if result.load == "sliding" else 2 * limit
                found: float | None = None if result.latency is None else getattr(result.latency, name)
                kept_up = result.latency is not None and result.latency.kept_up
                ok = kept_up and found is not None and found <= bar
                named = f"{result.load} at {result.rate:,} rows/s, {name} in ms"
                made.append({"name": named, "value": found, "bar": bar, "ok": ok})
        return made

    def to_json(self) -> dict[str, Any]:
        results = [asdict(result) for result in self.results]
        return {"query": "latency", "results": results, "bars": self.bars(), "notes": self.notes()}

    def notes(self) -> list[str]:
        """What differs between the systems, where there are several."""
        from holdfast_lab.bench.latency_elsewhere import DIFFERENCES  # noqa: PLC0415 - Spark is slow to import

        return list(DIFFERENCES) if any(result.system != "Holdfast" for result in self.results) else []

    def plot(self, directory: Path) -> list[Path]:
        """Latency over rate, one line for each system: the median, and the 99th percentile dashed."""
        directory.mkdir(parents=True, exist_ok=True)
        return save(self._draw, "From a row's arrival to the commit that contains it", directory, "latency")

    def _draw(self, figure: Figure) -> None:
        loads = [load for load in ("sliding", "keyed", "pushed") if any(r.load == load for r in self.results)]
        systems = list(dict.fromkeys(result.system for result in self.results))
        for place, load in enumerate(loads):
            axes = figure.add_subplot(1, len(loads), place + 1)
            for number, system in enumerate(systems):
                own = [r for r in self.results if (r.load, r.system) == (load, system) and r.latency is not None]
                if own:
                    rates = [result.rate for result in own]
                    style: dict[str, Any] = {"color": COLOURS[number], "marker": MARKERS[number]}
                    axes.plot(rates, [r.latency.p50 for r in own if r.latency], "-", label=system, **style)
                    axes.plot(rates, [r.latency.p99 for r in own if r.latency], "--", **style)
            axes.set_xscale("log")
            axes.set_yscale("log")
            readable(axes.yaxis)
            axes.set_title(load)
            axes.set_xlabel("rows per second")
            if not place:
                axes.set_ylabel("milliseconds: p50, and p99 dashed")
                axes.legend()


def measure_latency(
    seconds: float,
    place: Path,
    *,
    rates: Sequence[int] = RATES,
    elsewhere: bool = True,
    told: Callable[[str], None] = lambda line: None,
) -> LatencyBench:
    """Measure each load at each rate for `seconds` after a warm-up; `elsewhere` too, in Spark and Flink. `told` hears
    of each result as it comes."""
    results = []
    for result in _all(seconds, place, rates, elsewhere=elsewhere):
        told(result.line())
        results.append(result)
    return LatencyBench(tuple(results))


def _all(seconds: float, place: Path, rates: Sequence[int], *, elsewhere: bool) -> Iterator[LatencyResult]:
    from holdfast_lab.bench.latency_elsewhere import flink_latency, spark_latency  # noqa: PLC0415 - only if asked for
    from holdfast_lab.bench.latency_runs import LOADS, measured_latency  # noqa: PLC0415 - Spark is slow to import

    with session("holdfast") as spark:
        for load in LOADS:
            for rate in rates:
                home = place / f"holdfast-{load}-{rate}"
                latency, times = measured_latency(spark, load, rate, _WARM, seconds, home)
                parts = None if times is None else {n: round(1_000 * s, 3) for n, s in times.parts().items()}
                yield LatencyResult("Holdfast", load, rate, latency, parts)
    if not elsewhere:
        return
    others = {load: keys for load, (_, keys, pushed) in LOADS.items() if not pushed}
    with session("spark") as spark:
        for load, keys in others.items():
            for rate in rates:
                home = place / f"spark-{load}-{rate}"
                found = spark_latency(spark, load, rate, _WARM, seconds, keys, home)
                yield LatencyResult("Structured Streaming", load, rate, found)
    for interval in _INTERVALS:
        for load, keys in others.items():
            for rate in rates:
                name = f"Flink, a checkpoint every {1_000 * interval:.0f} ms"
                try:
                    done = flink_latency(
                        load, rate, _WARM, seconds, keys, interval, place / f"f-{load}-{rate}-{interval}"
                    )
                    yield LatencyResult(name, load, rate, done)
                except HoldfastError as error:  # it may not be there; the others are measured all the same
                    yield LatencyResult(name, load, rate, None, problem=error.problem)
