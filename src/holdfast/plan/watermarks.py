"""Watermarks: how far event time has come, per source and per operator.

A source's watermark is the greatest event time seen less its lateness. An operator's is the least of those of the
sources its rows come from. Whether a row is late is decided by the watermark of its own source just before the row,
in the order of the source: so it depends neither on how rows are cut into epochs nor on who reads them.

Some sources give rows that have no order among each other: the partitions of a batch of Spark, files that were found
together. Then the watermark before the first of these rows holds for all of them, and it moves when the last of them
has been read. Until then the greatest time among them is pending.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.connect.time_range import END_OF_TIME
from holdfast.graph.nodes import SourceNode
from holdfast.plan.program import Program

__all__ = ["SourceTimes", "greatest_after", "operator_watermark"]


def greatest_after(
    before: Mapping[str, int | None],
    pending: Mapping[str, int],
    seen: Iterable[Mapping[str, int]],
    open: Mapping[str, bool],
) -> tuple[dict[str, int | None], dict[str, int]]:
    """The greatest event times by source after an epoch whose tasks have `seen` these: those that count for the
    watermark, and those that are pending. More rows without an order follow from sources that are `open`."""
    after, waiting = dict(before), dict(pending)
    for times in seen:
        for name, time in times.items():
            waiting[name] = max(waiting.get(name, time), time)
    for name in [name for name in waiting if not open.get(name)]:
        time, known = waiting.pop(name), after.get(name)
        after[name] = time if known is None else max(known, time)
    return after, waiting


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

    def add(self, task: int, greatest: Mapping[str, int]) -> None:
        self._seen[task] = greatest

    def begin(
        self,
        before: Mapping[str, int | None],
        done_before: Mapping[str, bool],
        done: Mapping[str, bool],
        pending: Mapping[str, int],
        open: Mapping[str, bool],
    ) -> None:
        self._before, self._done_before, self._done = before, done_before, done
        self._pending, self._open = pending, open

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
        return greatest_after(self._before, self._pending, self._seen.values(), self._open)[0]
