"""The soak: two fragments on crews with as many short epochs as they can make, and samples of what they hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from holdfast.engine.observer import Observer
from holdfast.epoch.report import EpochReport
from holdfast.run import run
from holdfast_lab.soak.soak_pipeline import EPOCH_ROWS, SoakReader, soak_pipeline
from holdfast_lab.soak.soak_samples import Sample, sample
from holdfast_lab.soak.soak_trend import soak_bars, trends

__all__ = ["SAMPLES", "Soak", "soak_run"]

SAMPLES = 200


@dataclass(slots=True)
class Soak(Observer):
    """Looks at the run now and then."""

    place: Path
    store: Path
    epochs: int
    reader: SoakReader
    say: Callable[[str], None]
    samples: list[Sample] = field(default_factory=list)
    fragments: dict[str, int] = field(default_factory=dict)
    """How many epochs each fragment has committed."""
    _looked: float = 0.0
    """The processor time that looking has taken: it is not the run's."""

    def epoch_committed(self, report: EpochReport) -> None:
        self.fragments[report.fragment] = report.epoch
        if report.entered and report.epoch % max(1, self.epochs // SAMPLES) == 0:
            self._look(report.epoch)

    def _look(self, epoch: int) -> None:
        began, begun = time.monotonic(), time.thread_time()
        self.reader.take()
        taken = self._looked + time.thread_time() - begun
        holds, cpu = sample(self.place, self.store)
        self.samples.append(Sample(epoch, began, time.monotonic(), cpu - taken, holds))
        self._looked += time.thread_time() - begun
        if len(self.samples) % (SAMPLES // 10) == 0:
            self.say(self._line())

    def _line(self) -> str:
        last, before = self.samples[-1], self.samples[-min(len(self.samples), SAMPLES // 10)]
        epochs = max(1, last.epoch - before.epoch)
        total = {
            kind: sum(v for name, v in last.holds.items() if name.startswith(kind))
            for kind in ("files", "bytes", "rows", "open files", "memory")
        }
        return (
            f"epoch {last.epoch:,}: {1e3 * (last.began - before.ended) / epochs:.2f} ms and"
            f" {1e3 * (last.cpu - before.cpu) / epochs:.2f} ms of CPU per epoch; {total['files']:,.0f} files,"
            f" {total['bytes'] / 1e6:.1f} MB, {total['rows']:,.0f} rows, {total['open files']:,.0f} open files,"
            f" {total['memory'] / 1e6:.0f} MB of memory"
        )

    def to_json(self) -> dict[str, Any]:
        wrong = self.reader.wrong(self.epochs * EPOCH_ROWS)
        pairs = pairwise(self.samples)
        spent, used = (
            sum(after.began - before.ended for before, after in pairs),
            self.samples[-1].cpu - self.samples[0].cpu,
        )
        counted = self.samples[-1].epoch - self.samples[0].epoch
        return {
            "epochs": self.fragments,
            "ms_per_epoch": round(1e3 * spent / counted, 3),
            "cpu_ms_per_epoch": round(1e3 * used / counted, 3),
            "trends": [asdict(trend) for trend in trends(self.samples) if trend.early or trend.late],
            "bars": [asdict(bar) for bar in soak_bars(self.samples, wrong)],
        }


def soak_run(spark: SparkSession, place: Path, epochs: int, say: Callable[[str], None]) -> Soak:
    store = place / "store"
    soak = Soak(place, store, epochs, SoakReader(place), say)
    run(
        soak_pipeline(place), spark=spark, observer=soak, store=store, executor="crew", least_rows=EPOCH_ROWS,
        most_rows=EPOCH_ROWS, latency="10 ms", poll="2 ms", max_epochs=epochs, checkpoint="delta",
    )  # fmt: skip
    soak.reader.take()
    return soak
