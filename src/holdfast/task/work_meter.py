"""What the operators of a task cost: CPU seconds and the load of their key intervals, for the commit message.

CPU time is user and system time of the Python worker, which runs one task at a time. What a task does for all its
operators together (receiving, sending, preparing sinks) is shared out evenly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from holdfast.epoch.task_commit import PartitionWork
from holdfast.graph.nodes import Stateful
from holdfast.operators.step import StepInput
from holdfast.state.key_load import KeyLoad, measure
from holdfast.state.manifest import Interval

__all__ = ["WorkMeter"]


@dataclass(slots=True)
class WorkMeter:
    """Measures the operators of one assembly task."""

    clock: Callable[[], float] = time.process_time
    _since: float = field(init=False)
    _waited: float = 0.0
    _cpu: dict[str, float] = field(default_factory=dict)
    _rows: dict[str, int] = field(default_factory=dict)
    _load: dict[str, KeyLoad] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._since = self.clock()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """What is spent in here is not counted as work."""
        began = self.clock()
        yield
        self._waited += self.clock() - began

    def begin(self, node: Stateful) -> None:
        """What is spent from now until `end` is the operator's work."""
        self._cpu[node.name] = -self.clock()

    def end(self, node: Stateful) -> None:
        self._cpu[node.name] += self.clock()

    def arrived(self, node: Stateful, arrivals: StepInput, interval: Interval) -> None:
        """Count what arrived at the operator's partition."""
        frames = [batch.frame for port in arrivals.ports for batch in port]
        self._rows[node.name] = sum(frame.height for frame in frames)
        if node.keys:
            self._load[node.name] = measure(frames, node.keys, interval)

    def work(self) -> dict[str, PartitionWork]:
        """Work by operator, with each one's part of what was done for all."""
        total = self.clock() - self._since - self._waited
        shared = max(0.0, total - sum(self._cpu.values())) / max(1, len(self._cpu))
        return {
            name: PartitionWork(cpu + shared, self._rows.get(name, 0), self._load.get(name))
            for name, cpu in self._cpu.items()
        }
