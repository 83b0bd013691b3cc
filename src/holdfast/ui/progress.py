"""What is known of a run so far, added up from the reports of its epochs. No clock and no terminal."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from holdfast.engine.summary import FragmentSummary, RunSummary
from holdfast.epoch.epoch_times import EpochTimes, mean_times
from holdfast.epoch.report import EpochReport
from holdfast.graph.durations import TimeUnit
from holdfast.graph.nodes import SourceNode
from holdfast.graph.pipeline import Pipeline
from holdfast.ui.figures import quantile

__all__ = ["Progress", "event_unit"]

_SPAN_SECONDS = 10.0
_LATENCIES = 200


@dataclass(slots=True)
class Progress:
    """Figures of a run over its last ten seconds, and those of its last epochs."""

    pipeline: str
    unit: TimeUnit | None
    began: float
    written_bytes: int = 0
    last: EpochReport | None = None
    totals: dict[str, FragmentSummary] = field(default_factory=dict)
    """What was done with each fragment since the start of this run."""
    _reports: dict[str, EpochReport] = field(default_factory=dict)
    """The last report of each fragment."""
    _recent: deque[EpochReport] = field(default_factory=deque)
    _latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))

    def add(self, report: EpochReport) -> None:
        """Count a committed epoch."""
        name = report.fragment
        self.totals[name] = self.totals.get(name, FragmentSummary(name)).after(report)
        self.written_bytes += report.written_bytes
        self.last = self._reports[name] = report
        self._latencies.append(report.committed - report.started)
        self._recent.append(report)
        while self._recent[0].committed < report.committed - _SPAN_SECONDS:
            self._recent.popleft()

    @property
    def reports(self) -> tuple[EpochReport, ...]:
        """The last one of each fragment."""
        return tuple(self._reports.values())

    @property
    def summary(self) -> RunSummary:
        return RunSummary(self.pipeline, fragments=dict(self.totals))

    def rate(self, now: float) -> float:
        """Rows per second over the last seconds before `now`."""
        recent = [report for report in self._recent if report.committed >= now - _SPAN_SECONDS]
        if not recent:
            return 0.0
        begin = max(now - _SPAN_SECONDS, min(report.started for report in recent))
        return sum(self._counted(report) for report in recent) / max(1e-3, now - begin)

    @property
    def state_rows(self) -> int:
        return sum(report.state_rows for report in self._reports.values())

    @property
    def state_bytes(self) -> int:
        return sum(report.state_bytes for report in self._reports.values())

    def _counted(self, report: EpochReport) -> int:
        """What of an epoch counts as come into the pipeline."""
        if any(total.outside_rows for total in self.totals.values()):
            return report.entered
        pushed = {name: total.pushed_rows for name, total in self.totals.items()}
        if any(pushed.values()):
            return report.received if report.fragment == max(pushed, key=lambda name: pushed[name]) else 0
        return report.rows

    @property
    def times(self) -> EpochTimes | None:
        """Where the time of an epoch went, in the mean of the last seconds."""
        return mean_times(report.times for report in self._recent if report.times is not None)

    def latency(self, share: float) -> float | None:
        """Seconds from the launch of an epoch to its commit."""
        return quantile(list(self._latencies), share)


def event_unit(pipeline: Pipeline) -> TimeUnit | None:
    """The unit in which the pipeline's watermark counts."""
    for node in pipeline.nodes.values():
        if isinstance(node, SourceNode) and node.time is not None:
            return node.time.unit
    return None
