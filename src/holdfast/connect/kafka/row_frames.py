"""A frame made of rows that come as dictionaries, each of which may not fit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import polars as pl

from holdfast.connect.formats.file_format import first_line
from holdfast.connect.kafka.message_format import DecodedMessages

__all__ = ["RowFrame"]


class RowFrame:
    """Rows by the index of their message. A field that is missing is null, one that is not declared is left out."""

    def __init__(self, schema: pl.Schema) -> None:
        self._schema = schema
        self._rows: list[Mapping[str, object]] = []
        self._indexes: list[int] = []
        self._bad: dict[int, str] = {}

    def add(self, index: int, row: Mapping[str, object]) -> None:
        self._rows.append(row)
        self._indexes.append(index)

    def refuse(self, index: int, reason: str) -> None:
        self._bad[index] = reason

    def decoded(self) -> DecodedMessages:
        """All columns at once; where one does not fit, each of its values by itself."""
        columns = {name: [row.get(name) for row in self._rows] for name in self._schema}
        made: list[pl.Series] = []
        for name, values in columns.items():
            try:
                made.append(_series(name, values, self._schema[name]))
            except _MISFITS:
                self._blame(name, values)
                made.append(pl.Series(name, [None] * len(values), dtype=self._schema[name]))
        wrong = self._bad.keys() & set(self._indexes)
        if not wrong:
            frame = pl.DataFrame(made) if made else pl.DataFrame(height=len(self._rows))
            return DecodedMessages(frame, self._bad)
        kept = [number for number, index in enumerate(self._indexes) if index not in wrong]
        rows = RowFrame(self._schema)
        for number in kept:
            rows.add(self._indexes[number], self._rows[number])
        rows._bad = self._bad
        return rows.decoded()

    def _blame(self, name: str, values: list[Any]) -> None:
        for number, value in enumerate(values):
            try:
                _series(name, [value], self._schema[name])
            except _MISFITS as error:
                reason = f"{value!r:.60} in column '{name}' is not {self._schema[name]}: {first_line(error)}"
                self._bad.setdefault(self._indexes[number], reason)


_MISFITS = (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError)


def _series(name: str, values: list[Any], dtype: pl.DataType) -> pl.Series:
    if isinstance(dtype, pl.Datetime):
        # A time with a zone is a moment: in a column without zones it is that of UTC.
        if any(isinstance(value, datetime) and value.tzinfo is not None for value in values):
            moments = pl.Series(name, values, dtype=pl.Datetime(dtype.time_unit, "UTC"), strict=True)
            zone = dtype.time_zone
            return moments.dt.convert_time_zone(zone) if zone else moments.dt.replace_time_zone(None)
        if any(isinstance(value, int) for value in values):
            return pl.Series(name, values, dtype=pl.Int64, strict=True).cast(dtype)
    if dtype.is_float() and all(isinstance(value, int | float | None) for value in values):
        return pl.Series(name, [None if value is None else float(value) for value in values], dtype=dtype)
    if dtype.is_integer() and any(isinstance(value, bool | float) for value in values):
        raise TypeError("no integer")
    return pl.Series(name, values, dtype=dtype, strict=True)
