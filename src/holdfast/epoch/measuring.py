"""What the operators of a task cost: CPU seconds and the load of their key intervals, for the commit message.

CPU time is user and system time of the Python worker, which runs one task at a time. What a task does for all its
operators together (receiving, sending, preparing sinks) is shared out evenly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from holdfast.epoch.steps import Arrivals
from holdfast.graph.nodes import Stateful
from holdfast.state.load import KeyLoad, measure
from holdfast.state.manifest import Interval

__all__ = ["PartitionWork", "WorkMeter", "work_of"]


@dataclass(frozen=True, slots=True)
class PartitionWork:
    """What one partition of an operator, or one reading task, did in an epoch. Where rows have no key, and where they
    are read, there is no load of key positions."""

    cpu: float
    rows: int
    load: KeyLoad | None = None

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> PartitionWork:
        load = value.get("load")
        return PartitionWork(value["cpu"], value["rows"], None if load is None else KeyLoad.from_json(load))


@dataclass(slots=True)
class WorkMeter:
    """Measures the operators of one assembly task."""

    clock: Callable[[], float] = time.process_time
    _since: float = field(init=False)
    _waited: float = 0.0
    _work: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._since = self.clock()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """What is spent in here is nobody's work."""
        began = self.clock()
        yield
        self._waited += self.clock() - began

    def begin(self, node: Stateful) -> None:
        """What is spent from now until `end` is the operator's work."""
        self._work[node.name] = {"cpu": -self.clock(), "rows": 0}

    def end(self, node: Stateful) -> None:
        self._work[node.name]["cpu"] += self.clock()

    def arrived(self, node: Stateful, arrivals: Arrivals, interval: Interval) -> None:
        """Count what arrived at the operator's partition."""
        frames = [batch.frame for port in arrivals.ports for batch in port]
        self._work[node.name]["rows"] = sum(frame.height for frame in frames)
        if node.keys:
            self._work[node.name]["load"] = measure(frames, node.keys, interval).to_json()

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Work by operator, with each one's part of what was done for all."""
        total = self.clock() - self._since - self._waited
        shared = total - sum(work["cpu"] for work in self._work.values())
        return {
            name: {**work, "cpu": work["cpu"] + max(0.0, shared) / len(self._work)} for name, work in self._work.items()
        }


def work_of(heads: list[dict[str, Any]]) -> tuple[dict[str, tuple[PartitionWork, ...]], tuple[PartitionWork, ...]]:
    """The work of each operator's partitions and of the reading tasks, from what the tasks of an epoch said."""
    operators: dict[str, list[PartitionWork]] = {}
    reading = []
    for head in sorted(heads, key=lambda head: (head["stage"], head["task"])):
        if head["stage"] == 0:
            reading.append(PartitionWork(head["cpu"], sum(head.get("read", {}).values())))
        for name, work in head.get("work", {}).items():
            operators.setdefault(name, []).append(PartitionWork.from_json(work))
    return {name: tuple(parts) for name, parts in operators.items()}, tuple(reading)
