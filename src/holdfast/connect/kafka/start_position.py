"""Where to begin in a topic: at its earliest or latest messages, at a time, or at given offsets."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from holdfast.connect.kafka.topic_watch import TopicWatch
from holdfast.errors import DeclarationError, InputError

__all__ = ["Start", "checked_start", "first_offsets"]

Start: TypeAlias = "Literal['earliest', 'latest'] | str | datetime | Mapping[int, int]"

_CURE = 'give "earliest", "latest", a datetime, a text such as "2030-01-31T12:00:00Z", or offsets such as {0: 17, 1: 4}'


def checked_start(where: str, given: Start) -> str | int | dict[int, int]:
    """A start as it is kept: a word, a time in milliseconds, or offsets by partition."""
    if given in ("earliest", "latest"):
        return str(given)
    if isinstance(given, Mapping):
        if not given or not all(_is_count(number) and _is_count(offset) for number, offset in given.items()):
            raise DeclarationError(f"{where}: start={given!r} is not a mapping of partitions to offsets", cure=_CURE)
        return dict(given)
    if isinstance(given, str):
        try:
            given = datetime.fromisoformat(given)
        except ValueError:
            raise DeclarationError(f"{where}: unknown start={given!r}", cure=_CURE) from None
    if not isinstance(given, datetime):
        raise DeclarationError(f"{where}: unknown start={given!r}", cure=_CURE)
    moment = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def first_offsets(start: str | int | dict[int, int], topic: TopicWatch) -> dict[int, int]:
    """The offsets of a topic's partitions that a start means now. Where offsets are given, the other partitions are
    read from their first message on."""
    extents = topic.look()
    if isinstance(start, int):
        return topic.at_time(start)
    if start == "latest":
        return {partition: end for partition, (_, end) in extents.items()}
    offsets = {partition: low for partition, (low, _) in extents.items()}
    if isinstance(start, dict):
        for partition, offset in start.items():
            if partition not in extents:
                raise InputError(
                    f"start= names partition {partition}, but the topic '{topic.topic}' has"
                    f" {', '.join(map(str, extents))}",
                    cure="remove it from start=",
                )
            if offset > extents[partition][1]:
                raise InputError(
                    f"start= names offset {offset} of partition {partition}, which ends at {extents[partition][1]}",
                    cure='name an offset up to there, or "latest"',
                )
            offsets[partition] = offset
    return offsets


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
