"""What a secondary can have and do before the primary fails: how long it takes to prepare, and what it uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.replica.fragment_metrics import FragmentMetrics

__all__ = [
    "FOLLOWS_STATE",
    "HAS_PROGRAM",
    "HAS_SESSION",
    "HAS_STATE",
    "PROCESSES",
    "PUBLISHES",
    "QUEUES_INPUT",
    "RECEIVES_INPUT",
    "Ability",
    "Usage",
]

_IDLE_CPUS = 0.01
_RECEIVING = 0.1
"""The share of the primary's CPUs that goes into reading input; the rest is spent on processing it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """CPUs, bytes of memory, and bytes per second on the network."""

    cpus: float = 0.0
    memory: float = 0.0
    network: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.cpus + other.cpus, self.memory + other.memory, self.network + other.network)


@dataclass(frozen=True, slots=True, eq=False)
class Ability:
    """`gain_seconds` is how long a running pipeline takes to give a secondary this ability. To lose one takes no time
    worth counting."""

    name: str
    usage: Callable[[FragmentMetrics], Usage] = lambda metrics: Usage()
    gain_seconds: Callable[[FragmentMetrics], float] = lambda metrics: 0.0


HAS_SESSION = Ability(
    "a process with a warm session",
    lambda metrics: Usage(cpus=_IDLE_CPUS, memory=metrics.idle_bytes),
    lambda metrics: metrics.deploy_seconds + metrics.session_seconds,
)
"""Belongs to no pipeline: a host that has only this can serve any of them."""

HAS_PROGRAM = Ability("the program", gain_seconds=lambda metrics: metrics.program_seconds)

HAS_STATE = Ability(
    "the state",
    lambda metrics: Usage(memory=metrics.state_bytes),
    lambda metrics: metrics.state_bytes / metrics.load_bytes_per_second,
)

FOLLOWS_STATE = Ability(
    "the primary's state, read again and again",
    lambda metrics: Usage(network=metrics.written_bytes_per_second(metrics.sync_seconds)),
)

RECEIVES_INPUT = Ability(
    "the input",
    lambda metrics: Usage(cpus=_RECEIVING * metrics.utilisation, network=metrics.input_bytes_per_second),
)

QUEUES_INPUT = Ability(
    "the input since the state was read, in a queue",
    lambda metrics: Usage(memory=metrics.input_bytes_per_second * metrics.sync_seconds),
)


def _catch_up_seconds(metrics: FragmentMetrics) -> float:
    behind = metrics.rows_per_second * (metrics.sync_seconds + metrics.epoch_seconds)
    return behind / max(1.0, metrics.replay_rows_per_second - metrics.rows_per_second)


PROCESSES = Ability(
    "processing",
    lambda metrics: Usage(
        cpus=(1 - _RECEIVING) * metrics.utilisation, memory=metrics.input_bytes_per_second * metrics.epoch_seconds
    ),
    _catch_up_seconds,
)

PUBLISHES = Ability("publishing", lambda metrics: Usage(network=metrics.output_bytes_per_second))
