"""The events of a store as a table: `hf.events`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

import msgspec
import polars as pl

from holdfast.errors import UnknownStateError
from holdfast.state.past_moment import Moment, seconds_at
from holdfast.store.location import local_path
from holdfast.watch.event_kinds import LoggedEvent
from holdfast.watch.event_log import EVENTS
from holdfast.watch.event_reader import read_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["KINDS", "check_kinds", "event_details", "event_frame", "events"]

_COMMON = ("kind", "at", "pipeline", "fragment", "host", "epoch")
_MOMENT = pl.Datetime("us", "UTC")
_SCHEMA: dict[str, type[pl.DataType]] = {
    "at": pl.Int64, "pipeline": pl.String, "fragment": pl.String, "host": pl.String,
    "kind": pl.String, "epoch": pl.Int64, "text": pl.String, "details": pl.String,
}  # fmt: skip
KINDS = tuple(str(kind.__struct_config__.tag) for kind in EVENTS.type.__args__)
"""The names of all kinds."""


@overload
def events(
    store: Path | str, *, since: Moment | None = None, until: Moment | None = None, kind: str | Sequence[str] = (),
    pipeline: str | None = None, spark: None = None,
) -> pl.DataFrame: ...  # fmt: skip


@overload
def events(
    store: Path | str, *, since: Moment | None = None, until: Moment | None = None, kind: str | Sequence[str] = (),
    pipeline: str | None = None, spark: SparkSession,
) -> DataFrame: ...  # fmt: skip


def events(
    store: Path | str,
    *,
    since: Moment | None = None,
    until: Moment | None = None,
    kind: str | Sequence[str] = (),
    pipeline: str | None = None,
    spark: SparkSession | None = None,
) -> pl.DataFrame | DataFrame:
    """What has happened to the pipelines of a store, oldest first; a Spark DataFrame if a session is given.

    `since` and `until` are moments ("1 h ago", a datetime or its text, a timedelta before now), `kind` is a kind of
    events or several, `pipeline` the name of a pipeline or of a fragment. The columns are `at`, `pipeline`, `fragment`,
    `host`, `kind`, `epoch`, `text` (the event as a sentence) and `details` (all its other fields as JSON). Events of
    the last second may not be there yet.
    """
    now, kinds = time.time(), (kind,) if isinstance(kind, str) else tuple(kind)
    check_kinds(kinds)
    found = read_events(
        local_path(store, "store"),
        since=None if since is None else seconds_at(since, now),
        until=None if until is None else seconds_at(until, now),
        kinds=kinds,
        pipeline=pipeline,
    )
    frame = event_frame(found)
    return frame if spark is None else spark.createDataFrame(frame.to_arrow(compat_level=pl.CompatLevel.oldest()))


def check_kinds(kinds: Iterable[str]) -> None:
    for kind in kinds:
        if kind not in KINDS:
            raise UnknownStateError(f"there are no events of kind '{kind}'", cure=f"the kinds are: {', '.join(KINDS)}")


def event_frame(found: Iterable[LoggedEvent]) -> pl.DataFrame:
    """Events as a table."""
    rows = [
        (
            round(event.at * 1e6), event.pipeline, event.fragment, event.host, event.kind, event.epoch, event.text,
            event_details(event),
        )
        for event in found
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row").with_columns(pl.col("at").cast(_MOMENT))


def event_details(event: LoggedEvent) -> str:
    """The fields that only this kind of event has, as JSON."""
    facts = msgspec.to_builtins(event)
    return msgspec.json.encode({name: value for name, value in facts.items() if name not in _COMMON}).decode()
