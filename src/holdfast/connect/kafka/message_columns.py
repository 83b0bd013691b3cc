"""Columns of what a message has besides its value: key, timestamp, headers, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from holdfast.connect.kafka.message_block import HEADERS, MessageBlock
from holdfast.connect.kafka.message_format import as_text
from holdfast.errors import WrongTypeError

__all__ = ["MessageColumns"]

_TYPES: Mapping[str, tuple[pl.DataType, ...]] = {
    "key": (pl.Binary(), pl.String()),
    "timestamp": (pl.Datetime("ms"), pl.Datetime("us"), pl.Datetime("ms", "UTC"), pl.Datetime("us", "UTC"), pl.Int64()),
    "headers": (HEADERS,),
    "partition": (pl.Int32(), pl.Int64()),
    "offset": (pl.Int64(),),
}
"""What there is, and the types that a column of it may have: the first one unless the schema says another."""


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """The names of such columns, by what they hold, with their types."""

    columns: tuple[tuple[str, str, pl.DataType], ...]

    @staticmethod
    def of(by: str, schema: pl.Schema, names: Mapping[str, str | None]) -> MessageColumns:
        made: list[tuple[str, str, pl.DataType]] = []
        for what, name in names.items():
            if name is None:
                continue
            dtype = schema.get(name, _TYPES[what][0])
            if dtype not in _TYPES[what]:
                raise WrongTypeError(
                    f"{by}: column '{name}' should hold the {what} of messages, but is declared as {dtype}",
                    cure=f"declare it as {' or '.join(str(one) for one in _TYPES[what])}, or leave it out",
                )
            if any(name == other for _, other, _ in made):
                raise WrongTypeError(f"{by}: column '{name}' is used for two fields", cure="give each its own name")
            made.append((what, name, dtype))
        return MessageColumns(tuple(made))

    @property
    def schema(self) -> pl.Schema:
        return pl.Schema({name: dtype for _, name, dtype in self.columns})

    def read(self, messages: MessageBlock, wanted: pl.Schema) -> tuple[list[pl.Series], dict[int, str]]:
        """The columns that are wanted, and the messages whose key is not what was declared."""
        made: list[pl.Series] = []
        bad: dict[int, str] = {}
        for what, name, dtype in self.columns:
            if name not in wanted:
                continue
            series = messages.column(what).alias(name)
            if what == "key" and isinstance(dtype, pl.String):
                series, bad = as_text(series)
            made.append(series.cast(dtype) if series.dtype != dtype else series)
        return made, bad
