"""Watermarks: how far event time has come, per source and per operator.

A source's watermark is the greatest event time seen less its lateness. An operator's is the least of those of the
sources its rows come from. Whether a row is late is decided by the watermark of its own source just before the row,
in the order of the source: so it depends neither on how rows are cut into epochs nor on what reads them.

Some sources give rows that have no order among each other: the partitions of a batch of Spark, files that were found
together. Then the watermark before the first of these rows holds for all of them, and it moves when the last of them
has been read. Until then the greatest time among them is pending.

A source may be idle: the plan of an epoch says so, and which others it follows. Its watermark then is at least the
least of theirs, as if a row had brought it. So what it brings later is judged as always, and no watermark goes back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from holdfast.connect.time_range import END_OF_TIME
from holdfast.graph.nodes import SinkNode, SourceNode, Stateful
from holdfast.plan.program import Program
from holdfast.pstream.link import StreamSink

__all__ = ["Following", "SourceTimes", "followed_by", "following", "greatest_after", "operator_watermark"]

Following = Mapping[str, Mapping[str, int]]
"""Idle sources, each with those that it follows and what is added to their greatest times: the difference of both
latenesses."""


def greatest_after(
    before: Mapping[str, int | None],
    pending: Mapping[str, int],
    seen: Iterable[Mapping[str, int]],
    open: Mapping[str, bool],
    idle: Following | None = None,
) -> tuple[dict[str, int | None], dict[str, int]]:
    """The greatest event times by source after an epoch whose tasks have `seen` these: those that count for the
    watermark, and those that are pending. More rows without an order follow from sources that are `open`; those that
    are `idle` follow others."""
    after, waiting = dict(before), dict(pending)
    for times in seen:
        for name, time in times.items():
            waiting[name] = max(waiting.get(name, time), time)
    for name in [name for name in waiting if not open.get(name)]:
        time, known = waiting.pop(name), after.get(name)
        after[name] = time if known is None else max(known, time)
    return following(after, idle or {}), waiting


def following(greatest: Mapping[str, int | None], idle: Following) -> dict[str, int | None]:
    """The greatest event times, where those of idle sources are such that their watermarks are at least the least of
    those that they follow."""
    after = dict(greatest)
    for name, others in idle.items():
        known, seen = greatest.get(name), [greatest.get(other) for other in others]
        times = [time + shift for time, shift in zip(seen, others.values(), strict=True) if time is not None]
        if times and len(times) == len(seen):  # one that has shown nothing holds all up
            after[name] = min(times) if known is None else max(known, min(times))
    return after


def followed_by(program: Program, source: SourceNode, others: Collection[str]) -> dict[str, int]:
    """Those of `others` that the watermark of a source follows while it is idle: all that it meets at an operator or
    before a p-stream, each with what is added to its greatest time."""
    meeting: set[str] = set()
    for node in program.nodes.values():
        if isinstance(node, Stateful) or (isinstance(node, SinkNode) and isinstance(node.sink, StreamSink)):
            sources = program.sources_of(node.name)
            meeting |= sources if source.name in sources else set()
    found = [node for node in program.sources if node.name in meeting and node.name in others]
    return {node.name: source.lateness - node.lateness for node in found if node.name != source.name}


def operator_watermark(
    program: Program, operator: str, greatest: Mapping[str, int | None], done: Mapping[str, bool]
) -> int | None:
    """The watermark at an operator, None while one of its sources has shown nothing."""
    lowest: int | None = None
    for name in program.sources_of(operator):
        node = program.nodes[name]
        assert isinstance(node, SourceNode)
        seen = greatest.get(name)
        if done.get(name):
            mark = END_OF_TIME
        elif seen is None:
            return None
        else:
            mark = seen - node.lateness
        lowest = mark if lowest is None else min(lowest, mark)
    return lowest


class SourceTimes:
    """What the tasks of stage 0 saw of event time in one epoch, on top of what was known before it."""

    def __init__(self) -> None:
        self._seen: dict[int, Mapping[str, int]] = {}
        self._before: Mapping[str, int | None] = {}
        self._pending: Mapping[str, int] = {}
        self._open: Mapping[str, bool] = {}
        self._done_before: Mapping[str, bool] = {}
        self._done: Mapping[str, bool] = {}
        self._idle: Following = {}

    def add(self, task: int, greatest: Mapping[str, int]) -> None:
        self._seen[task] = greatest

    def begin(
        self,
        before: Mapping[str, int | None],
        done_before: Mapping[str, bool],
        done: Mapping[str, bool],
        pending: Mapping[str, int],
        open: Mapping[str, bool],
        idle: Following | None = None,
    ) -> None:
        self._before, self._done_before, self._done = before, done_before, done
        self._pending, self._open, self._idle = pending, open, idle or {}

    def bound_before(self, node: SourceNode, task: int) -> int | None:
        """The watermark of the source before the first row that `task` read."""
        known = [self._before.get(node.name)]
        if node.source.in_order:
            known += [seen.get(node.name) for number, seen in self._seen.items() if number < task]
        times = [time for time in known if time is not None]
        return max(times) - node.lateness if times else None

    def watermarks(self, program: Program, operator: str) -> tuple[int | None, int | None]:
        """The operator's watermark before and after the epoch."""
        return (
            operator_watermark(program, operator, self._before, self._done_before),
            operator_watermark(program, operator, self._greatest(), self._done),
        )

    def farthest(self, program: Program, operator: str) -> int | None:
        """How far the rows alone have brought event time, where the end of the sources has no say."""
        greatest = self._greatest()
        marks = []
        for name in program.sources_of(operator):
            node, seen = program.nodes[name], greatest.get(name)
            assert isinstance(node, SourceNode)
            if seen is not None:
                marks.append(seen - node.lateness)
        return max(marks, default=None)

    def _greatest(self) -> dict[str, int | None]:
        return greatest_after(self._before, self._pending, self._seen.values(), self._open, self._idle)[0]
