"""What a recovery does after the failure was detected, and how long each phase takes according to measurements.

A phase is a function of the metrics and of what is known about the replay. The worst case is assumed: a failure just
before the next commit, checkpoint or copy of the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.replica.fragment_metrics import FragmentMetrics

__all__ = [
    "Phase",
    "Replay",
    "connect_downstream",
    "connect_upstream",
    "load_program",
    "load_state",
    "open_spark",
    "publish_withheld",
    "replay_queue",
    "replay_seconds",
    "replay_since_checkpoint",
    "replay_since_sync",
    "start_process",
]


@dataclass(frozen=True, slots=True)
class Replay:
    """With gap recovery, which is not `precise`, nothing is replayed. `epochs` is how many were, once that is known."""

    precise: bool = True
    epochs: float | None = None


Phase = Callable[[FragmentMetrics, Replay], float]


def start_process(metrics: FragmentMetrics, replay: Replay) -> float:
    return metrics.deploy_seconds


def open_spark(metrics: FragmentMetrics, replay: Replay) -> float:
    return metrics.session_seconds


def load_program(metrics: FragmentMetrics, replay: Replay) -> float:
    return metrics.program_seconds


def connect_downstream(metrics: FragmentMetrics, replay: Replay) -> float:
    """Take the lease and connect to readers."""
    return metrics.connect_seconds


def connect_upstream(metrics: FragmentMetrics, replay: Replay) -> float:
    """Connect to the inputs."""
    return metrics.connect_seconds


def load_state(metrics: FragmentMetrics, replay: Replay) -> float:
    """Read the last checkpoint."""
    return metrics.state_bytes / metrics.load_bytes_per_second


def publish_withheld(metrics: FragmentMetrics, replay: Replay) -> float:
    """Commit what was processed and not published: two epochs may be in flight."""
    return 2 * metrics.commit_seconds


def replay_queue(metrics: FragmentMetrics, replay: Replay) -> float:
    """Process the input that has been queued since the state was read."""
    return replay_seconds(metrics, replay, metrics.sync_seconds, queued=True)


def replay_since_sync(metrics: FragmentMetrics, replay: Replay) -> float:
    """Fetch and process the input since the state was read."""
    return replay_seconds(metrics, replay, metrics.sync_seconds)


def replay_since_checkpoint(metrics: FragmentMetrics, replay: Replay) -> float:
    """Fetch and process the input since the last checkpoint."""
    return replay_seconds(metrics, replay, metrics.checkpoint_seconds)


def replay_seconds(metrics: FragmentMetrics, replay: Replay, age: float, *, queued: bool = False) -> float:
    """Process again what came since the state was `age` seconds younger, or as many epochs as are known. Where the
    input is `queued`, it need not be fetched again, and there are tasks that only wait for an epoch."""
    if not replay.precise:
        return 0.0
    rows = metrics.rows_per_second * (age + metrics.epoch_seconds)
    epochs = metrics.epochs_per_second * (age + metrics.epoch_seconds)
    if replay.epochs is not None and epochs:
        rows, epochs = rows * replay.epochs / epochs, replay.epochs
    seconds = rows / metrics.replay_rows_per_second + epochs * metrics.overhead_seconds
    if queued:
        seconds = max(0.0, seconds - epochs * metrics.fetch_seconds)
    else:
        seconds += rows * metrics.row_bytes / metrics.load_bytes_per_second
    if not epochs:
        return seconds
    return seconds + (metrics.resume_standing_seconds if queued else metrics.resume_seconds)
