"""From the reports of epochs to the figures of a benchmark. Pure: no clock, no Spark.

The first epochs do not count: the pacer starts with small ones and makes them larger until they fit the latency asked
for, and Java compiles what it runs. `Meter` says when that is over and when enough was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.engine.observer import Observer
from holdfast.epoch.report import EpochReport
from holdfast.ui.figures import quantile

__all__ = ["Figures", "Meter", "Passage", "Reports", "figures", "first_results", "latencies"]

_GROWING = 1.25
"""An epoch this many times as large as the one before: the pacer is still looking for the size."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured after the warm-up. Times are seconds."""

    query: str
    engine: str
    tuples: int
    seconds: float
    epochs: int
    epoch_seconds: tuple[float, ...]
    latency_seconds: tuple[float, ...]
    raw_bytes: int
    persisted_bytes: int
    output_rows: int
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def tuples_per_s(self) -> float:
        return self.tuples / self.seconds if self.seconds > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "query": self.query,
            "engine": self.engine,
            "tuples": self.tuples,
            "seconds": round(self.seconds, 3),
            "tuples_per_s": round(self.tuples_per_s),
            "epochs": self.epochs,
            "epoch_ms": milliseconds(self.epoch_seconds),
            "latency_ms": milliseconds(self.latency_seconds),
            "raw_bytes": self.raw_bytes,
            "persisted_bytes": self.persisted_bytes,
            "output_rows": self.output_rows,
            **self.notes,
        }


def milliseconds(values: Sequence[float]) -> dict[str, float | None]:
    """Median and 95th percentile."""
    found = {name: quantile(values, share) for name, share in (("p50", 0.5), ("p95", 0.95))}
    return {name: None if value is None else round(value * 1_000, 1) for name, value in found.items()}


@dataclass(slots=True)
class Reports(Observer):
    """Collects the reports of all epochs."""

    epochs: list[EpochReport] = field(default_factory=list)

    def epoch_committed(self, report: EpochReport) -> None:
        self.epochs.append(report)


@dataclass(slots=True)
class Meter(Observer):
    """Collects reports and calls `stop` when `seconds` were measured after a warm-up.

    The warm-up lasts at least `warm_epochs`, of those after the first `warm_rows` rows, and ends when two epochs in a
    row were no larger than the one before, or after `patience` seconds.
    """

    seconds: float
    stop: Callable[[], None] = lambda: None
    warm_epochs: int = 4
    patience: float = 60.0
    warm_rows: int = 0
    reports: list[EpochReport] = field(default_factory=list)
    warm: int | None = None
    """How many epochs the warm-up took, once it is over."""
    _steady: int = 0
    _rows: int = 0
    _since: int = 0
    """How many epochs there were until `warm_rows` were read."""

    def epoch_committed(self, report: EpochReport) -> None:
        before = self.reports[-1] if self.reports else None
        self.reports.append(report)
        if self.warm is None:
            growing = before is None or report.rows > before.rows * _GROWING
            self._steady = 0 if growing else self._steady + 1
            lasted = report.committed - self.reports[0].started
            self._since += self._rows < self.warm_rows
            self._rows += report.rows
            settled = self._steady >= 2 and len(self.reports) - self._since >= self.warm_epochs
            if settled or lasted >= self.patience:
                self.warm = len(self.reports)
        elif report.committed - self.reports[self.warm - 1].committed >= self.seconds:
            self.stop()

    def measured(self) -> list[EpochReport]:
        """The epochs after the warm-up."""
        return self.reports[self.warm :] if self.warm is not None else []


def figures(meter: Meter, query: str, tuple_bytes: int, slide: int | None, **notes: Any) -> Figures:
    """The figures of the measured epochs. `slide` is in ticks of event time, None without time windows."""
    reports = meter.measured()
    began = meter.reports[meter.warm - 1].committed if meter.warm else 0.0
    tuples = sum(report.rows for report in reports)
    return Figures(
        query=query,
        engine="holdfast",
        tuples=tuples,
        seconds=reports[-1].committed - began if reports else 0.0,
        epochs=len(reports),
        epoch_seconds=tuple(report.committed - report.started for report in reports),
        latency_seconds=tuple(latencies(reports, slide)),
        raw_bytes=tuples * tuple_bytes,
        persisted_bytes=sum(report.written_bytes for report in reports),
        output_rows=sum(report.output_rows for report in reports),
        notes=notes,
    )


class Passage(Protocol):
    """What a latency is made of, of an epoch or of a batch. `watermark` is the one its results were put out by."""

    @property
    def started(self) -> float: ...

    @property
    def committed(self) -> float: ...

    @property
    def watermark(self) -> int | None: ...


def latencies(reports: Sequence[EpochReport], slide: int | None) -> list[float]:
    """The latencies of epochs; without windows every epoch puts out its own results."""
    if slide is None:
        return [report.committed - report.started for report in reports]
    return first_results(reports, [_greatest(report) for report in reports], slide)


def first_results(passed: Sequence[Passage], greatest: Sequence[int | None], slide: int) -> list[float]:
    """Seconds from the start of each epoch to the commit of the first result that contains its last tuples.

    A window's result comes when the watermark reaches its end: the first window with a tuple at time t that closes
    ends at the next multiple of the slide. `greatest` has the time of each epoch's last tuples. Epochs whose result
    did not come before the end are left out.
    """
    found = []
    at = 0
    for index, (epoch, last) in enumerate(zip(passed, greatest, strict=True)):
        if last is None:
            continue
        end = (last // slide + 1) * slide
        at = max(at, index)
        while at < len(passed) and not _reached(passed[at].watermark, end):
            at += 1
        if at == len(passed):
            break
        found.append(passed[at].committed - epoch.started)
    return found


def _greatest(report: EpochReport) -> int | None:
    return max((time for time in report.greatest.values() if time is not None), default=None)


def _reached(watermark: int | None, end: int) -> bool:
    return watermark is not None and watermark >= end
