"""Timers by the clock, as the planner sees them: whether one is due, so that an epoch is planned without any row."""

from __future__ import annotations

from holdfast.engine.run_context import RunContext
from holdfast.epoch.record import EpochRecord
from holdfast.operators.registry import operator_of
from holdfast.operators.step import clock_ticks
from holdfast.plan.program import Program

__all__ = ["ClockTimers"]


class ClockTimers:
    """Looks at the state after the last commit, once for each."""

    def __init__(self, program: Program) -> None:
        self._operators = {node.name: operator for node in program.stateful if (operator := operator_of(node)).by_clock}
        self._record: EpochRecord | None = None
        self._next: int | None = None

    def due(self, run: RunContext) -> bool:
        """Whether there is something to do by now. What epochs in flight will do is waited for."""
        if not self._operators or run.progress.plans:
            return False
        record = run.progress.record
        if record is not self._record:
            clock = clock_ticks(record.clock)
            parts = ((operator, part) for name, operator in self._operators.items() for part in record.state[name])
            times = [operator.due(part, clock) for operator, part in parts]
            self._record, self._next = record, min((time for time in times if time is not None), default=None)
        return self._next is not None and self._next <= (clock_ticks(run.clock()) or 0)
