"""Protobuf messages, of a class that the Protobuf compiler has made, with the number of their schema in front.

Fields go into columns by name. Protobuf itself says what becomes of fields that one side does not know; the registry
keeps the schema for others, and is asked only by those who write.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from functools import lru_cache
from typing import Any

import polars as pl

from holdfast.connect.extra_library import require_library
from holdfast.connect.kafka.message_format import DecodedMessages, MessageFormat, Values
from holdfast.connect.kafka.row_frames import RowFrame
from holdfast.connect.kafka.schema_registry import FRAME, SchemaRegistry, as_registry, schema_number
from holdfast.errors import UnknownColumnError, WrongTypeError

__all__ = ["ProtobufMessages", "protobuf"]

_BY = "hf.kafka.protobuf()"
_TIMESTAMP = "google.protobuf.Timestamp"


@dataclass(frozen=True, slots=True)
class ProtobufMessages(MessageFormat):
    """See `protobuf`. The class goes to tasks as the description that it was made of: they need not be able to import
    it."""

    registry: SchemaRegistry | None
    files: tuple[bytes, ...]
    """The descriptions of its files, those first that others need."""
    full_name: str
    subject: str | None = None
    name = "Protobuf"

    def check_schema(self, by: str, schema: pl.Schema) -> None:
        known = [field.name for field in _class(self.files, self.full_name).DESCRIPTOR.fields]
        for column in schema:
            if column not in known:
                raise UnknownColumnError(
                    f"{by}: the message {self.full_name} has no field '{column}'; it has {', '.join(known)}",
                    cure="give columns the names of its fields, with select() before a sink",
                )

    def decode(self, values: Values, schema: pl.Schema) -> DecodedMessages:
        made = _class(self.files, self.full_name)
        fields = [field for field in made.DESCRIPTOR.fields if field.name in schema]
        rows = RowFrame(schema)
        for index, value in enumerate(values):
            if value is None:
                rows.add(index, {})
                continue
            body = self._body(value)
            if isinstance(body, str):
                rows.refuse(index, body)
                continue
            try:
                message = made.FromString(body)
            except Exception as error:  # noqa: BLE001 - the library's errors depend on what it is built of
                rows.refuse(index, f"no message {self.full_name}: {error}")
                continue
            rows.add(index, {field.name: _value(message, field) for field in fields})
        return rows.decoded()

    def _body(self, value: bytes) -> bytes | str:
        """The message itself, or why there is none. Before it stand the number of the schema and the path to the type
        in its file; without a registry, nothing."""
        if self.registry is None:
            return value
        number = schema_number(value)
        if isinstance(number, str):
            return number
        try:
            count, at = _zigzag(value, FRAME.size)
            for _ in range(count):
                _, at = _zigzag(value, at)
        except IndexError:
            return "it ends before the message begins"
        return value[at:]

    def encode(self, rows: pl.DataFrame, topic: str) -> list[bytes]:
        made = _class(self.files, self.full_name)
        head = b""
        if self.registry is not None:
            text = base64.b64encode(self.files[-1]).decode()
            number = self.registry.number(self.subject or f"{topic}-value", text, "PROTOBUF")
            head = FRAME.pack(0, number) + _path(made.DESCRIPTOR)
        return [head + _message(made, row).SerializeToString() for row in rows.iter_rows(named=True)]


def protobuf(
    message: type[Any], *, registry: str | SchemaRegistry | None = None, subject: str | None = None
) -> ProtobufMessages:
    """Messages in Protobuf, of a class that the Protobuf compiler has made.

    With a `registry`, messages have the number of their schema in front, as Confluent's serializers write them, and a
    sink registers the schema under `subject` (`<topic>-value` by default). Without one they are the bare message.
    """
    require_library("google.protobuf", "kafka", _BY)
    from google.protobuf.message import Message  # noqa: PLC0415 - an extra

    if not isinstance(message, type) or not issubclass(message, Message):
        raise WrongTypeError(
            f"{_BY}: {message!r} is not a Protobuf message class", cure="give a class that protoc generated"
        )
    files = tuple(_needed(message.DESCRIPTOR.file))
    found = None if registry is None else as_registry(registry)
    return ProtobufMessages(found, files, message.DESCRIPTOR.full_name, subject)


def _needed(file: Any, known: set[str] | None = None) -> list[bytes]:
    """The descriptions of a file and of all that it needs, the file's own at last."""
    known = set() if known is None else known
    found: list[bytes] = []
    for other in file.dependencies:
        if other.name not in known:
            known.add(other.name)
            found += _needed(other, known)
    return [*found, file.serialized_pb]


@lru_cache(maxsize=64)
def _class(files: tuple[bytes, ...], full_name: str) -> type[Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415 - an extra

    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(descriptor_pb2.FileDescriptorProto.FromString(file))
    made: type[Any] = message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name))
    return made


def _value(message: Any, field: Any) -> Any:
    """A field as a plain value; null where it is known not to be there."""
    if _repeated(field):
        return [_plain(one, field) for one in getattr(message, field.name)]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _plain(getattr(message, field.name), field)


def _plain(value: Any, field: Any) -> Any:
    if field.message_type is None:
        return field.enum_type.values_by_number[value].name if field.enum_type is not None else value
    if field.message_type.full_name == _TIMESTAMP:
        return value.ToDatetime(tzinfo=UTC)
    return {inner.name: _value(value, inner) for inner in field.message_type.fields}


def _message(made: type[Any], row: Mapping[str, Any]) -> Any:
    message = made()
    for name, value in row.items():
        if value is not None:
            field = message.DESCRIPTOR.fields_by_name[name]
            _set(message, field, value)
    return message


def _set(message: Any, field: Any, value: Any) -> None:
    inner = getattr(message, field.name)
    if _repeated(field):
        for one in value:
            if field.message_type is None:
                inner.append(one)
            else:
                _fill(inner.add(), field.message_type, one)
    elif field.message_type is not None:
        _fill(inner, field.message_type, value)
    elif field.enum_type is not None and isinstance(value, str):
        setattr(message, field.name, field.enum_type.values_by_name[value].number)
    else:
        setattr(message, field.name, value)


def _fill(message: Any, kind: Any, value: Any) -> None:
    if kind.full_name == _TIMESTAMP:
        message.FromDatetime(value)
        return
    message.SetInParent()
    for name, one in value.items():
        if one is not None:
            _set(message, kind.fields_by_name[name], one)


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _path(kind: Any) -> bytes:
    """The path to a type in its file: how many steps, and the index at each; a single zero for the first type."""
    steps: list[int] = []
    while kind is not None:
        outer = kind.containing_type
        among = list((kind.file.message_types_by_name if outer is None else outer.nested_types_by_name).values())
        steps.insert(0, [one.name for one in among].index(kind.name))
        kind = outer
    if steps == [0]:
        return b"\x00"
    return b"".join(_varint(2 * number) for number in (len(steps), *steps))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = value[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (number >> 1) ^ -(number & 1), at
