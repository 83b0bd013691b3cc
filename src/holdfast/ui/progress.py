"""What is known of a run so far, added up from the reports of its epochs. No clock and no terminal."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from holdfast.epoch.driver import EpochReport
from holdfast.graph.durations import TimeUnit
from holdfast.graph.nodes import SourceNode
from holdfast.graph.pipeline import Pipeline
from holdfast.ui.figures import quantile

__all__ = ["Progress", "event_unit"]

_SPAN_SECONDS = 10.0
_LATENCIES = 200


@dataclass(slots=True)
class Progress:
    """Totals since the start of this run, and figures over its last ten seconds."""

    pipeline: str
    unit: TimeUnit | None
    began: float
    resumed_after: int = 0
    epochs: int = 0
    entered: int = 0
    read: int = 0
    output_rows: int = 0
    late_rows: int = 0
    bad_rows: int = 0
    written_bytes: int = 0
    last: EpochReport | None = None
    fragments: dict[str, EpochReport] = field(default_factory=dict)
    """The last report of each fragment."""
    _received: dict[str, int] = field(default_factory=dict)
    _recent: deque[EpochReport] = field(default_factory=deque)
    _latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))

    def add(self, report: EpochReport) -> None:
        """Count a committed epoch."""
        self.epochs += 1
        self.entered += report.entered
        self.read += report.rows
        received = self._received.get(report.fragment, 0) + report.received
        self._received[report.fragment] = received
        self.output_rows += report.output_rows
        self.late_rows += report.late_rows
        self.bad_rows += report.bad_rows
        self.written_bytes += report.written_bytes
        self.last = report
        self.fragments[report.fragment] = report
        self._latencies.append(report.committed - report.started)
        self._recent.append(report)
        while self._recent[0].committed < report.committed - _SPAN_SECONDS:
            self._recent.popleft()

    def rate(self, now: float) -> float:
        """Rows per second over the last seconds before `now`."""
        recent = [report for report in self._recent if report.committed >= now - _SPAN_SECONDS]
        if not recent:
            return 0.0
        begin = max(now - _SPAN_SECONDS, min(report.started for report in recent))
        return sum(self._counted(report) for report in recent) / max(1e-3, now - begin)

    @property
    def rows(self) -> int:
        """Rows that came into the pipeline, each counted once; what was read, where it only reads p-streams."""
        return self.entered + max(self._received.values(), default=0) or self.read

    @property
    def state_rows(self) -> int:
        return sum(report.state_rows for report in self.fragments.values())

    @property
    def state_bytes(self) -> int:
        return sum(report.state_bytes for report in self.fragments.values())

    def _counted(self, report: EpochReport) -> int:
        if self.entered:
            return report.entered
        if any(self._received.values()):
            return report.received if report.fragment == max(self._received, key=lambda f: self._received[f]) else 0
        return report.rows

    def latency(self, share: float) -> float | None:
        """Seconds from the launch of an epoch to its commit."""
        return quantile(list(self._latencies), share)


def event_unit(pipeline: Pipeline) -> TimeUnit | None:
    """The unit in which the pipeline's watermark counts."""
    for node in pipeline.nodes.values():
        if isinstance(node, SourceNode) and node.time is not None:
            return node.time.unit
    return None
