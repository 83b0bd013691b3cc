"""Avro messages whose schemas are in a registry.

A message is read by the schema it was written with; fields go into columns by name, and a field that it does not have
is null. What is written has a schema that follows from the columns.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import polars as pl

from holdfast.connect.extra_library import require_library
from holdfast.connect.kafka.message_format import DecodedMessages, MessageFormat, Values
from holdfast.connect.kafka.row_frames import RowFrame
from holdfast.connect.kafka.schema_registry import FRAME, SchemaRegistry, as_registry, schema_number
from holdfast.errors import WrongTypeError

__all__ = ["AvroMessages", "avro"]

_BY = "hf.kafka.avro()"
_PLAIN: dict[type[pl.DataType], str] = {
    pl.Boolean: "boolean",
    pl.Int8: "int",
    pl.Int16: "int",
    pl.Int32: "int",
    pl.UInt8: "int",
    pl.UInt16: "int",
    pl.UInt32: "long",
    pl.Int64: "long",
    pl.Float32: "float",
    pl.Float64: "double",
    pl.String: "string",
    pl.Categorical: "string",
    pl.Enum: "string",
    pl.Binary: "bytes",
}


@dataclass(frozen=True, slots=True)
class AvroMessages(MessageFormat):
    """See `avro`."""

    registry: SchemaRegistry
    subject: str | None = None
    name = "Avro"

    def check_schema(self, by: str, schema: pl.Schema) -> None:
        for column, dtype in schema.items():
            if _type(dtype, column) is None:
                raise WrongTypeError(
                    f"{by}: column '{column}': Avro cannot hold {dtype}", cure="cast it before the sink, e.g. to String"
                )

    def decode(self, values: Values, schema: pl.Schema) -> DecodedMessages:
        rows = RowFrame(schema)
        last, read = -1, None
        for index, value in enumerate(values):
            if value is None:
                rows.add(index, {})
                continue
            number = schema_number(value)
            if isinstance(number, str):
                rows.refuse(index, number)
                continue
            if number != last or read is None:
                last, read = number, _reader(self.registry, number)
            try:
                row = read(io.BytesIO(value[FRAME.size :]))
            except Exception as error:  # noqa: BLE001 - fastavro raises what its decoders stumble on
                rows.refuse(index, f"no Avro of schema {number}: {type(error).__name__} {error}".rstrip())
                continue
            rows.add(index, row) if isinstance(row, dict) else rows.refuse(index, f"schema {number} is not a record")
        return rows.decoded()

    def encode(self, rows: pl.DataFrame, topic: str) -> list[bytes]:
        fastavro = _library()
        schema = _record(rows.schema)
        number = self.registry.number(self.subject or f"{topic}-value", json.dumps(schema), "AVRO")
        parsed = fastavro.parse_schema(schema)
        head, made = FRAME.pack(0, number), []
        for row in rows.iter_rows(named=True):
            out = io.BytesIO()
            out.write(head)
            fastavro.schemaless_writer(out, parsed, row)
            made.append(out.getvalue())
        return made


def avro(registry: str | SchemaRegistry, *, subject: str | None = None) -> AvroMessages:
    """Messages in Avro, with the number of their schema in front, as Confluent's serializers write them.

    `registry` is the URL of the schema registry, or what `hf.kafka.registry(...)` made. A sink registers the schema of
    its columns under `subject`, which is `<topic>-value` by default.
    """
    require_library("fastavro", "kafka", _BY)
    return AvroMessages(as_registry(registry), subject)


def _library() -> Any:
    require_library("fastavro", "kafka", _BY)
    import fastavro  # noqa: PLC0415 - an extra

    return fastavro


@lru_cache(maxsize=256)
def _reader(registry: SchemaRegistry, number: int) -> Callable[[io.BytesIO], Any]:
    fastavro = _library()
    parsed = fastavro.parse_schema(json.loads(registry.schema(number)))
    return lambda body: fastavro.schemaless_reader(body, parsed, None)


def _record(schema: pl.Schema) -> dict[str, Any]:
    fields = [{"name": name, "type": ["null", _type(dtype, name)], "default": None} for name, dtype in schema.items()]
    return {"type": "record", "name": "Row", "namespace": "holdfast", "fields": fields}


def _type(dtype: pl.DataType, name: str) -> Any:
    """The type in Avro's words; None if there is none."""
    if (plain := _PLAIN.get(type(dtype))) is not None:
        return plain
    if isinstance(dtype, pl.Date):
        return {"type": "int", "logicalType": "date"}
    if isinstance(dtype, pl.Datetime):
        unit = {"ms": "millis", "us": "micros", "ns": "micros"}[dtype.time_unit]
        return {"type": "long", "logicalType": f"{'' if dtype.time_zone else 'local-'}timestamp-{unit}"}
    if isinstance(dtype, pl.List):
        inner = _type(dtype.inner, name)  # type: ignore[arg-type]
        return None if inner is None else {"type": "array", "items": ["null", inner]}
    if isinstance(dtype, pl.Struct):
        fields = [(field.name, _type(field.dtype, f"{name}_{field.name}")) for field in dtype.fields]  # type: ignore[arg-type]
        if any(inner is None for _, inner in fields):
            return None
        made = [{"name": field, "type": ["null", inner], "default": None} for field, inner in fields]
        return {"type": "record", "name": f"{name}_record", "fields": made}
    return None
