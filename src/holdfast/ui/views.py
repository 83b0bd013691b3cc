"""The two views of a run: a panel that is redrawn in a terminal, and one line at a time everywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from holdfast.engine.observer import Observer
from holdfast.engine.recovery import RecoveryReport
from holdfast.engine.scaling_rules import ScalingDecision
from holdfast.engine.summary import RunSummary
from holdfast.epoch.epoch_times import EpochTimes
from holdfast.epoch.report import EpochReport
from holdfast.plurals import counted
from holdfast.ui.figures import amount, duration, moment, size
from holdfast.ui.progress import Progress
from holdfast.ui.terminal_graph import TerminalGraph

__all__ = ["LiveView", "PlainView", "View"]

_REDRAWS_PER_SECOND = 4
_SECONDS_BETWEEN_LINES = 1.0
_BORDER = 4

Clock = Callable[[], float]


class View(Observer):
    """Shows a run, between `__enter__` and `__exit__`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def beginning(fragments: Mapping[str, int]) -> str:
    """How the run starts, in words."""
    last = max(fragments.values(), default=0)
    return f"resuming after epoch {last}" if last else "new, from the start of its sources"


def ending(summary: RunSummary) -> str:
    """How the run ended, without the pipeline's name."""
    return str(summary).removeprefix(f"{summary.pipeline} ")


class PlainView(View):
    """Log lines: start, progress at most once a second, stop."""

    def __init__(self, progress: Progress, write: Callable[[str], None], clock: Clock = time.time) -> None:
        self._progress = progress
        self._write = write
        self._clock = clock
        self._next_line = 0.0
        self._untold = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._untold:
            self._line()

    def started(self, fragments: Mapping[str, int]) -> None:
        self._say(f"started: {beginning(fragments)}")

    def ended(self, summary: RunSummary) -> None:
        if self._untold:
            self._line()
        self._say(ending(summary))

    def epoch_committed(self, report: EpochReport) -> None:
        self._progress.add(report)
        self._untold = True
        now = self._clock()
        if now >= self._next_line:
            self._next_line = now + _SECONDS_BETWEEN_LINES
            self._line()

    def listening(self, addresses: Mapping[str, Mapping[str, str]]) -> None:
        self._say(listening(addresses))

    def stream_full(self, fragment: str, text: str) -> None:
        self._say(f"waiting: {text}")

    def notice(self, fragment: str, text: str) -> None:
        self._say(f"notice: {text}")

    def scaling_decided(self, decision: ScalingDecision) -> None:
        self._say(str(decision))

    def recovered(self, report: RecoveryReport) -> None:
        self._say(recovered(report, self._progress.pipeline))

    def stopping(self) -> None:
        self._say("stopping: epochs in flight are committed first; press Ctrl-C again to abort")

    def _line(self) -> None:
        self._untold = False
        progress, last = self._progress, self._progress.last
        assert last is not None
        parts = [
            f"{_epoch_of(progress, last)}",
            f"{amount(progress.rate(self._clock()))} rows/s",
            f"latency {duration(last.committed - last.started)}",
            f"watermark {moment(last.watermark, progress.unit)}",
            f"state {amount(progress.state_rows)} rows {size(progress.state_bytes)}",
        ]
        if last.lag is not None:
            parts.append(f"lag {_counted_rows(last.lag)}")
        parts += [f"{name} {count:,}" for name, count in _unwanted(progress) if count]
        self._say(", ".join(parts))

    def _say(self, text: str) -> None:
        stamp = time.strftime("%H:%M:%S", time.localtime(self._clock()))
        self._write(f"{stamp} {self._progress.pipeline} {text}")


class LiveView(View):
    """A panel with the graph, the figures and the guarantee of the run, redrawn in place; sinks print above it."""

    def __init__(
        self, progress: Progress, console: Console, clock: Clock = time.time, graph: TerminalGraph | None = None
    ) -> None:
        self._progress = progress
        self._console = console
        self._graph = graph
        self._recoveries: list[RecoveryReport] = []
        self._clock = clock
        self._status = "opening Spark"
        self._summary: RunSummary | None = None
        self._live = Live(
            get_renderable=self.panel, console=console, refresh_per_second=_REDRAWS_PER_SECOND, transient=False
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status = "ended" if kind is None else "failed"
        self._live.stop()
        if self._summary is not None:
            self._console.print(str(self._summary), markup=False, highlight=False)

    def started(self, fragments: Mapping[str, int]) -> None:
        self._status = f"running, {beginning(fragments)}"

    def ended(self, summary: RunSummary) -> None:
        self._summary = summary

    def epoch_committed(self, report: EpochReport) -> None:
        self._progress.add(report)

    def listening(self, addresses: Mapping[str, Mapping[str, str]]) -> None:
        self._console.print(listening(addresses))

    def stream_full(self, fragment: str, text: str) -> None:
        self._console.print(f"waiting: {text}")

    def notice(self, fragment: str, text: str) -> None:
        self._console.print(f"notice: {text}", markup=False, highlight=False)

    def scaling_decided(self, decision: ScalingDecision) -> None:
        self._console.print(str(decision), markup=False, highlight=False)

    def recovered(self, report: RecoveryReport) -> None:
        self._recoveries.append(report)
        self._console.print(recovered(report, self._progress.pipeline))

    def stopping(self) -> None:
        self._status = "stopping: committing the epochs in flight (press Ctrl-C again to abort)"

    def panel(self) -> Panel:
        """The view as it is now."""
        progress, now = self._progress, self._clock()
        grid = Table.grid(padding=(0, 3))
        for _ in range(3):
            grid.add_column(style="dim")
            grid.add_column(justify="right", min_width=12)
        for row in _rows(progress, now):
            grid.add_row(*(cell for pair in row for cell in pair))
        title = f"[bold]{progress.pipeline}[/] [dim]{duration(max(0.0, now - progress.began))}[/]"
        shown: RenderableType = grid
        if self._graph is not None:
            graph = self._graph.table(progress.reports, self._console.width - _BORDER)
            promise = self._graph.promise(self._recoveries, progress.latency(0.5))
            shown = Group(*((graph, "") if graph is not None else ()), grid, "", promise)
        return Panel(shown, title=title, title_align="left", subtitle=self._status, subtitle_align="left", expand=False)


def _epoch_of(progress: Progress, report: EpochReport) -> str:
    """The epoch, and whose it is where the pipeline has several fragments."""
    short = _short(progress, report.fragment)
    return f"epoch {report.epoch}" + (f" of {short}" if short != progress.pipeline else "")


def _short(progress: Progress, fragment: str) -> str:
    return fragment.removeprefix(f"{progress.pipeline}.")


def recovered(report: RecoveryReport, pipeline: str) -> str:
    """A recovery in words, phase by phase; without the fragment's name where it is the whole pipeline."""
    whose = "" if report.fragment == pipeline else f" {report.fragment.removeprefix(f'{pipeline}.')}"
    phases = ", ".join(f"{phase} {seconds * 1_000:.0f} ms" for phase, seconds in report.seconds.items())
    return (
        f"recovered{whose} after epoch {report.epoch} in {duration(report.total)}: {phases};"
        f" {counted(report.units, 'p-unit')} of {size(report.bytes)} checked,"
        f" {counted(report.replayed, 'epoch')} run again"
        + "".join(
            f"; {counted(gathering.windows, 'window')} of {gathering.operator} collected from"
            f" {counted(gathering.records, 'footprint')}"
            f" in {duration(gathering.seconds)}"
            for gathering in report.gathered
        )
    )


def listening(addresses: Mapping[str, Mapping[str, str]]) -> str:
    """Where receivers listen, in words."""
    said = (f"{source} on {protocol} {where}" for source, ways in addresses.items() for protocol, where in ways.items())
    return f"listening: {', '.join(said)}"


def _unwanted(progress: Progress) -> list[tuple[str, int]]:
    return [("late rows", progress.summary.late_rows), ("bad rows", progress.summary.bad_rows)]


def _rows(progress: Progress, now: float) -> list[list[tuple[str, str]]]:
    last = progress.last
    middle, high = progress.latency(0.5), progress.latency(0.95)
    (late, late_rows), (bad, bad_rows) = _unwanted(progress)
    return [
        [
            ("rate", f"{amount(progress.rate(now))} rows/s"),
            ("epoch p50", "-" if middle is None else duration(middle)),
            ("epochs committed", f"{progress.summary.epochs:,}"),
        ],
        [
            ("rows in", f"{progress.summary.rows:,}"),
            ("epoch p95", "-" if high is None else duration(high)),
            ("last epoch", "-" if last is None else f"{last.epoch:,}"),
        ],
        [
            ("rows out", f"{progress.summary.output_rows:,}"),
            ("lag", "-" if last is None or last.lag is None else _counted_rows(last.lag)),
            ("watermark", "-" if last is None else moment(last.watermark, progress.unit)),
        ],
        [
            ("state", "-" if last is None else _counted_rows(progress.state_rows)),
            ("state size", "-" if last is None else size(progress.state_bytes)),
            ("written", size(progress.written_bytes)),
        ],
        [(late, f"{late_rows:,}"), (bad, f"{bad_rows:,}"), ("", "")],
        *_times(progress.times),
    ]


def _times(times: EpochTimes | None) -> list[list[tuple[str, str]]]:
    """Where the time of an epoch goes, in rows of three."""
    cells = [] if times is None else [(name, f"{1_000 * seconds:.1f} ms") for name, seconds in times.parts().items()]
    cells += [("", "")] * (-len(cells) % 3)
    return [cells[at : at + 3] for at in range(0, len(cells), 3)]


def _counted_rows(number: int) -> str:
    return f"{amount(number)} {'row' if number == 1 else 'rows'}"
