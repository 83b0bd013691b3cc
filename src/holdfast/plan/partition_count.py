"""How many partitions a stateful operator begins with, where neither it nor the run says so.

Partitions are worked on at the same time, but rows must be cut and sent between workers for that. An epoch of a few
milliseconds has so few rows that this costs more than it saves: where such a latency is asked for, one worker does it
alone as long as it can. Pure: the same rule decides at the start of a run and is explained before.
"""

from __future__ import annotations

__all__ = ["SHORT_LATENCY", "USUAL_PARTITIONS", "begins_alone", "first_partitions"]

USUAL_PARTITIONS = 2
SHORT_LATENCY = 0.05
"""Seconds up to which the costs of an epoch are mostly not its rows."""


def begins_alone(given: int | None, latency: float, *, scaled: bool) -> bool:
    """Whether operators begin with one partition, and get more when the load asks for it. `given` is what the run says,
    `scaled` whether an autoscaler decides."""
    return given is None and latency <= SHORT_LATENCY and not scaled


def first_partitions(given: int | None, latency: float, *, scaled: bool) -> int:
    """Of operators that do not say how many they have."""
    if begins_alone(given, latency, scaled=scaled):
        return 1
    return USUAL_PARTITIONS if given is None else given
