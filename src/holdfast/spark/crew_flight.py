"""An epoch while a crew runs it."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.epoch.execution import Execution
from holdfast.epoch.messages import Message
from holdfast.spark.stall import Silence

__all__ = ["CrewFlight"]


@dataclass(slots=True)
class CrewFlight:
    """An epoch in flight, and what has come of it in this generation."""

    execution: Execution
    plan: bytes
    handover: bytes | None = None
    read: set[int] = field(default_factory=set)
    ended: dict[int, list[Message]] = field(default_factory=dict)
    silence: Silence | None = None
    stalls: int = 0

    @property
    def finished(self) -> bool:
        return self.execution.messages is not None
