"""Names of version 0.1 that are called otherwise since 0.2. Whoever uses an old one is told the new one.

The table is the only list of them: the errors here, `docs/migration.md` and its test go by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["CALLBACKS", "FUNCTIONS", "METHODS", "cure_for"]

FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        **{name: f"source.{name}" for name in ("files", "generator", "memory", "pstream", "push", "replay")},
        **{name: f"source.{name}" for name in ("Chunk", "Crash", "Fail", "Slice", "Source", "Take")},
        **{name: f"sink.{name}" for name in ("arrow", "collect", "console", "database", "for_each_epoch")},
        **{name: f"sink.{name}" for name in ("ndjson", "parquet", "DriverSink", "Sink", "TaskSink")},
        **{name: f"window.{name}" for name in ("session", "sliding", "tumbling")},
        "count_window": "window.count",
        **{name: f"checkpoint.{name}" for name in ("delta", "eventual", "interval", "none")},
        "open_session": "open_spark",
        "close_session": "close_spark",
        "cluster": "spark_cluster",
        "read_state": "state",
        "RunStatus": "RunSummary",
    }
)
"""What stood in `holdfast` itself, and where it is now."""

METHODS: Mapping[str, str] = MappingProxyType({"map": "map_batches", "flat_map": "map_batches"})
"""The same of the methods of a stream."""

CALLBACKS: Mapping[str, str] = MappingProxyType(
    {
        "on_epoch": "epoch_committed",
        "on_recovery": "recovered",
        "on_checkpoint": "checkpoint_copied",
        "on_scaling": "scaling_decided",
    }
)
"""What `hf.run` took as functions, and the method of an observer that is called instead."""


def cure_for(name: str, renamed: Mapping[str, str], owner: str) -> str | None:
    """What to write instead of a name of 0.1 that `owner` had; None of any other name."""
    return f"{owner}.{name} is {owner}.{renamed[name]} since 0.2" if name in renamed else None
