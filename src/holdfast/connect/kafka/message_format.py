"""What the values of Kafka's messages are: JSON objects, plain bytes, or what a schema registry describes.

A format turns the values of many messages into a frame, and the rows of a frame into values. A value that does not fit
is told by its index, with the reason.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from holdfast.connect.formats.lines import MisfitError, sort_out
from holdfast.connect.formats.ndjson import NdjsonFormat, NdjsonParser
from holdfast.connect.kafka.record_batches import RecordValues
from holdfast.errors import WrongTypeError

__all__ = ["BytesMessages", "DecodedMessages", "JsonMessages", "MessageFormat", "as_text"]

Values = Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class DecodedMessages:
    """Rows of values, in their order, without those that are bad: for these the reasons, by index."""

    frame: pl.DataFrame
    bad: dict[int, str]


class MessageFormat(ABC):
    """One way to put a row into a value. Instances are values: settings only, hashable, pickled into tasks."""

    name: str

    @abstractmethod
    def check_schema(self, by: str, schema: pl.Schema) -> None:
        """Refuse columns that the format cannot hold, while declaring."""

    @abstractmethod
    def decode(self, values: Values, schema: pl.Schema) -> DecodedMessages:
        """The columns of the schema, which may be some of those that were declared. A message without a value (a
        tombstone) is a row of nulls."""

    @abstractmethod
    def encode(self, rows: pl.DataFrame, topic: str) -> list[bytes]:
        """A value for each row, for this topic."""


class _OneForOne:
    """A parser of NDJSON that gives a row for each line, or nothing."""

    def __init__(self, schema: pl.Schema) -> None:
        self._parser = NdjsonParser(schema)

    def parse(self, lines: bytes) -> pl.DataFrame:
        frame = self._parser.parse(lines)
        wanted = lines.count(b"\n") + (bool(lines) and not lines.endswith(b"\n"))
        if frame.height != wanted:
            raise MisfitError("not one JSON object")
        return frame

    def is_blank(self, line: bytes) -> bool:
        return False

    def suspects(self, lines: Sequence[bytes]) -> dict[int, str]:
        return self._parser.suspects(lines)


@dataclass(frozen=True, slots=True)
class JsonMessages(MessageFormat):
    """Values are JSON objects, fields by name, as in NDJSON files."""

    name = "json"

    def check_schema(self, by: str, schema: pl.Schema) -> None:
        try:
            NdjsonFormat().check_schema(schema)
        except WrongTypeError as error:
            raise WrongTypeError(f"{by}: {error.problem}", cure=error.cure) from None

    def decode(self, values: Values, schema: pl.Schema) -> DecodedMessages:
        if not schema:
            return DecodedMessages(pl.DataFrame(height=len(values)), {})
        if isinstance(values, RecordValues) and (objects := values.objects()) is not None:
            try:
                frame = NdjsonParser(schema).parse(objects)
            except MisfitError:
                frame = None
            if frame is not None and frame.height == len(values):
                return DecodedMessages(frame, {})
            values = list(values)
        try:
            block = b"\n".join(values)  # type: ignore[arg-type]
        except TypeError:  # a tombstone among them
            block = b"\n".join([b"{}" if value is None else value for value in values])
        if block.count(b"\n") != len(values) - 1:
            # A line break within JSON is white space, and may be any other.
            block = b"\n".join([b"{}" if value is None else value.replace(b"\n", b" ") for value in values])
        if not block.strip():  # the parser of files takes it for no rows
            return DecodedMessages(pl.DataFrame(schema=schema), dict.fromkeys(range(len(values)), "an empty value"))
        rows = sort_out(block, _OneForOne(schema))
        bad: dict[int, str] = {}
        at = index = 0
        for row in rows.bad:
            index += block.count(b"\n", at, row.at)
            at = row.at
            bad[index] = row.reason
        return DecodedMessages(rows.frame, bad)

    def encode(self, rows: pl.DataFrame, topic: str) -> list[bytes]:
        lines = rows.write_ndjson().encode().split(b"\n")
        return lines[: rows.height]


@dataclass(frozen=True, slots=True)
class BytesMessages(MessageFormat):
    """The value as it is, in one column."""

    name = "bytes"

    def check_schema(self, by: str, schema: pl.Schema) -> None:
        if len(schema) != 1 or not all(isinstance(dtype, pl.Binary | pl.String) for dtype in schema.values()):
            raise WrongTypeError(
                f"{by}: a value of plain bytes is one column of type Binary, or of String for UTF-8; the columns are"
                f" {', '.join(f'{name} ({dtype})' for name, dtype in schema.items()) or 'none'}",
                cure="declare one such column, or give format='json' or another one",
            )

    def decode(self, values: Values, schema: pl.Schema) -> DecodedMessages:
        if not schema:
            return DecodedMessages(pl.DataFrame(height=len(values)), {})
        [(name, dtype)] = schema.items()
        series = pl.Series(name, values, dtype=pl.Binary)
        if isinstance(dtype, pl.Binary):
            return DecodedMessages(series.to_frame(), {})
        text, bad = as_text(series)
        return DecodedMessages(
            text.to_frame().filter(~pl.Series(range(len(text))).is_in(list(bad))) if bad else text.to_frame(), bad
        )

    def encode(self, rows: pl.DataFrame, topic: str) -> list[bytes]:
        return rows.to_series().cast(pl.Binary).to_list()


def as_text(series: pl.Series) -> tuple[pl.Series, dict[int, str]]:
    """Bytes as UTF-8, and which of them are none."""
    try:
        return series.cast(pl.String), {}
    except pl.exceptions.ComputeError:
        pass
    texts: list[str | None] = []
    bad: dict[int, str] = {}
    for index, value in enumerate(series):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError:
            texts.append(None)
            bad[index] = f"{series.name} is not UTF-8"
    return pl.Series(series.name, texts, dtype=pl.String), bad
