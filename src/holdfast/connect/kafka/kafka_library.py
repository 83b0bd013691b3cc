"""The client library of Kafka, which is an extra: loaded when the first source or sink needs it."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

from holdfast.connect.extra_library import require_library

__all__ = ["KAFKA_LOG", "admin_library", "client_library", "passes", "require_client", "said"]

KAFKA_LOG = logging.getLogger("holdfast.kafka")
"""Where the library says what it has to say; quiet unless it is asked."""
KAFKA_LOG.addHandler(logging.NullHandler())
KAFKA_LOG.propagate = False

_PASSING = (
    "NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "UNKNOWN_TOPIC_OR_PART", "FENCED_LEADER_EPOCH",
    "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC",
)  # fmt: skip


def client_library(by: str) -> ModuleType:
    """The library, or an error that says how to get it."""
    require_client(by)
    import confluent_kafka  # noqa: PLC0415 - an extra

    return confluent_kafka


def admin_library(by: str) -> ModuleType:
    """The part of it that asks brokers about topics."""
    require_client(by)
    from confluent_kafka import admin  # noqa: PLC0415 - an extra

    return admin


def require_client(by: str) -> None:
    """Raise unless the library is installed. It is not loaded for that."""
    require_library("confluent_kafka", "kafka", by)


def said(error: Any) -> str:
    """What the library says of an error, in one line."""
    inner = error.args[0] if isinstance(error, Exception) and error.args else error
    text = inner.str() if hasattr(inner, "str") else str(inner)
    return str(text).strip().partition("\n")[0] or type(error).__name__


def passes(by: str, error: Exception) -> bool:
    """Whether an error of the library says what is over in a moment: that a topic has just been made, or that brokers
    are agreeing on who leads a partition."""
    kinds = client_library(by).KafkaError
    return bool(error.args) and error.args[0].code() in {getattr(kinds, name) for name in _PASSING}
