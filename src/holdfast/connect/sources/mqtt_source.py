"""Messages of an MQTT broker: which topics to subscribe to, and what their messages are.

The receiver acknowledges a message to the broker once its row is durable in the source's p-stream, and has a session of
its own there, by a fixed client id. So what was not acknowledged comes again after a crash of either side: each message
at least once. A message that comes again is a row again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

import polars as pl

from holdfast.connect.base import BadRows
from holdfast.connect.extra_library import require_library
from holdfast.connect.kafka.message_format import BytesMessages, JsonMessages, MessageFormat
from holdfast.connect.schema import AnySchema, as_schema
from holdfast.connect.secret_text import check_reference
from holdfast.connect.sources.push import Address
from holdfast.connect.sources.received import ReceivedSource, check_received_schema, parse_size
from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.spans import Duration, seconds_of
from holdfast.store.location import local_path

__all__ = ["MqttFormat", "MqttSource", "MqttVersion", "mqtt"]

MqttFormat = Literal["json", "bytes"]
MqttVersion = Literal["5", "3.1.1"]

_PORTS = {"mqtt": 1883, "mqtts": 8883}
_FORMATS: dict[str, MessageFormat] = {"json": JsonMessages(), "bytes": BytesMessages()}
_MOST_BYTES = 268_435_455
"""Of a message, by the protocol."""
_MOST_IN_FLIGHT = 65_535
_BY = "mqtt()"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MqttSource(ReceivedSource):
    """See `mqtt`. `session` is in seconds; None is for ever."""

    broker: Address
    topics: tuple[str, ...]
    client: str
    format: MessageFormat
    topic: str | None
    user: str | None
    password: str | None = field(repr=False)
    tls: bool
    ca: Path | None
    certificate: Path | None
    key: Path | None
    version: MqttVersion
    session: float | None
    in_flight: int

    def describe(self) -> str:
        lock = ", TLS" if self.tls else ""
        return f"mqtt {', '.join(self.topics)} at {self.broker}{lock}, QoS 1, acknowledged when durable"

    @property
    def value_schema(self) -> pl.Schema:
        """The columns that come out of the payload."""
        return pl.Schema({name: dtype for name, dtype in self.schema.items() if name != self.topic})


def mqtt(
    broker: str,
    topics: str | Sequence[str],
    schema: AnySchema,
    *,
    client: str,
    format: MqttFormat = "json",
    topic: str | None = None,
    user: str | None = None,
    password: str | None = None,
    ca: str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    version: MqttVersion = "5",
    session: Duration | None = None,
    in_flight: int = 1000,
    budget: str | int = "4 GB",
    bad_rows: BadRows = "fail",
    push_up: bool = True,
    compress: bool = True,
) -> MqttSource:
    """Receive the messages of topics of an MQTT broker, with QoS 1, acknowledged to it when durable.

    `broker` is "mqtt://host:port", or "mqtts://host:port" for TLS; `ca`, `certificate` and `key` are PEM files. A topic
    may have wildcards (`+`, `#`). `client` is the client id, which nobody else may use at this broker: under it the
    broker keeps what was not acknowledged, for a time of `session` without a connection (by default for ever; in
    version 3.1.1 as long as the broker likes). A message is one row: a JSON object, or with `format="bytes"` one column
    as it is; `topic` names a column that gets the topic. `user` and `password` are "env:NAME" or "file:PATH". At most
    `in_flight` messages wait for their acknowledgement, and `budget` bounds what waits on disk. A message that does not
    fit stops the run, or with `bad_rows="skip"` is dropped.
    """
    require_library("paho", "mqtt", "hf.source.mqtt()")
    host, tls = _broker(broker)
    wanted = as_schema(schema, _BY)
    check_received_schema(_BY, wanted)
    if format not in _FORMATS:
        raise DeclarationError(f"{_BY}: format={format!r}", cure=f"use one of {', '.join(_FORMATS)}")
    if version not in get_args(MqttVersion):
        raise DeclarationError(f"{_BY}: version={version!r}", cure="use '5' or '3.1.1'")
    if bad_rows not in ("fail", "skip"):
        raise DeclarationError(f"{_BY}: bad_rows={bad_rows!r}", cure="use 'fail' or 'skip'")
    if not isinstance(client, str) or not 1 <= len(client.encode()) <= 200 or "\0" in client:
        raise WrongTypeError(
            f"{_BY}: client={client!r}",
            cure="give the client id of this pipeline at the broker, 1 to 200 characters; it must not change, and no"
            " other client may use it",
        )
    if not isinstance(in_flight, int) or isinstance(in_flight, bool) or not 1 <= in_flight <= _MOST_IN_FLIGHT:
        raise WrongTypeError(f"{_BY}: in_flight={in_flight!r}", cure=f"give a number from 1 to {_MOST_IN_FLIGHT}")
    if not tls and (ca is not None or certificate is not None or key is not None):
        raise DeclarationError(f"{_BY}: certificates, but no TLS", cure='write the broker as "mqtts://host:port"')
    if (certificate is None) != (key is None):
        raise DeclarationError(f"{_BY}: certificate= and key= belong together", cure="give both, as PEM files")
    if password is not None and user is None:
        raise DeclarationError(f"{_BY}: a password without a user", cure="give user=, too")
    found = MqttSource(
        schema=wanted,
        max_body=_MOST_BYTES,
        budget=parse_size(f"{_BY}: budget", budget),
        bad_rows=bad_rows,
        idle=60.0,
        push_up=push_up,
        compress=compress,
        broker=host,
        topics=_topics(topics),
        client=client,
        format=_FORMATS[format],
        topic=_topic_column(topic, wanted),
        user=None if user is None else check_reference(_BY, "user", user),
        password=None if password is None else check_reference(_BY, "password", password),
        tls=tls,
        ca=None if ca is None else local_path(ca, _BY),
        certificate=None if certificate is None else local_path(certificate, _BY),
        key=None if key is None else local_path(key, _BY),
        version=version,
        session=None if session is None else seconds_of(f"{_BY}: session", session),
        in_flight=in_flight,
    )
    found.format.check_schema(_BY, found.value_schema)
    return found


def _broker(text: str) -> tuple[Address, bool]:
    try:
        parts = urlsplit(text)
        if parts.scheme in _PORTS and parts.hostname and not (parts.path.strip("/") or parts.query or parts.username):
            return Address(parts.hostname, parts.port or _PORTS[parts.scheme]), parts.scheme == "mqtts"
    except (ValueError, AttributeError, TypeError):
        pass
    # Not repeated: somebody may have written a password into it.
    raise WrongTypeError(
        f"{_BY}: the broker is not an address of one",
        cure='write "mqtt://host:1883", or "mqtts://host:8883" for TLS; give user= and password= separately',
    )


def _topics(given: str | Sequence[str]) -> tuple[str, ...]:
    topics = (given,) if isinstance(given, str) else tuple(given)
    for topic in topics:
        levels = topic.split("/") if isinstance(topic, str) and topic and "\0" not in topic else []
        fits = (
            all(level in ("+", "#") or ("+" not in level and "#" not in level) for level in levels)
            and "#" not in levels[:-1]
        )
        if not levels or not fits:
            raise WrongTypeError(
                f"{_BY}: {topic!r} is not a topic",
                cure="write levels with '/' between them; '+' stands for one level, '#' at the end for all others",
            )
    if not topics:
        raise WrongTypeError(f"{_BY}: there is no topic", cure="give one, or a list of them")
    return topics


def _topic_column(name: str | None, schema: pl.Schema) -> str | None:
    if name is not None and not isinstance(schema.get(name), pl.String):
        raise WrongTypeError(
            f"{_BY}: topic={name!r} should hold the topic, but is not a String column of the schema",
            cure=f"declare '{name}': pl.String among the columns",
        )
    return name
