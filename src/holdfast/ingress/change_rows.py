"""Changes of a table as rows of the declared types: gathered as text, and made columns all at once."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import polars as pl

from holdfast.connect.formats.file_format import first_line
from holdfast.connect.sources.postgres_changes import ChangesSource
from holdfast.errors import InputError
from holdfast.ingress.pgoutput import UNCHANGED, Change, Relation, Values

__all__ = ["ChangeRows"]

_ROW_BYTES = 64
"""What a row takes besides its texts."""


class ChangeRows:
    """Rows that wait to be written. `relation` says in which order the values of changes come."""

    def __init__(self, source: ChangesSource) -> None:
        self._source = source
        self._places: list[tuple[str, int]] = []
        self._clear()

    def _clear(self) -> None:
        source = self._source
        self.height = 0
        self.bytes = 0
        self._texts: dict[str, list[bytes | None]] = {name: [] for name in source.columns}
        self._before: dict[str, list[bytes | None]] = {name: [] for name in source.key}
        self._ops: list[str] = []
        self._lsns: list[int] = []
        self._seqs: list[int] = []
        self._times: list[datetime] = []
        self._unchanged: list[list[str] | None] = []

    def describe(self, relation: Relation) -> list[str]:
        """The table has these columns from here on; returns those that are not declared."""
        at = {name: index for index, name in enumerate(relation.columns)}
        missing = [name for name in self._source.columns if name not in at]
        if missing:
            raise InputError(
                f"table '{self._source.table}' no longer has the column '{missing[0]}': it has"
                f" {', '.join(relation.columns)}",
                cure="give the table the column back; or declare the columns that it has now in a pipeline of another"
                " name with another slot, and drop this one's slot: select pg_drop_replication_slot("
                f"'{self._source.slot}')",
            )
        self._places = [(name, at[name]) for name in self._source.columns]
        return [name for name in relation.columns if name not in self._source.columns]

    def add(self, change: Change, lsn: int, seq: int, time: datetime) -> None:
        """A change of the table that was described."""
        now = change.new if change.new is not None else change.old
        assert now is not None
        unchanged: list[str] | None = None
        size = _ROW_BYTES
        for name, at in self._places:
            value = now[at]
            if value is UNCHANGED:
                value = _known(change.old, at)
                if value is UNCHANGED:
                    unchanged = [*(unchanged or ()), name]
                    value = None
            self._texts[name].append(value)  # type: ignore[arg-type]
            if value is not None:
                size += len(value)  # type: ignore[arg-type]
        places = dict(self._places)
        for name, values in self._before.items():
            if change.op == "insert":
                values.append(None)
            else:
                was = now if change.old is None else change.old
                values.append(was[places[name]])  # type: ignore[arg-type]
        self._end(change.op, lsn, seq, time, unchanged, size)

    def add_text(self, op: str, values: tuple[str | None, ...], lsn: int, seq: int, time: datetime) -> None:
        """A row of the snapshot, with the declared columns in their order; or none, for a change of the whole table."""
        size = _ROW_BYTES
        for name, value in zip(self._texts, values or (None,) * len(self._texts), strict=True):
            text = None if value is None else value.encode()
            self._texts[name].append(text)
            size += 0 if text is None else len(text)
        for values_before in self._before.values():
            values_before.append(None)
        self._end(op, lsn, seq, time, None, size)

    def _end(self, op: str, lsn: int, seq: int, time: datetime, unchanged: list[str] | None, size: int) -> None:
        self._ops.append(op)
        self._lsns.append(lsn)
        self._seqs.append(seq)
        self._times.append(time)
        self._unchanged.append(unchanged)
        self.height += 1
        self.bytes += size

    def take(self) -> pl.DataFrame:
        """All rows; none are left."""
        source = self._source
        own: dict[str, list[Any]] = {
            "op": self._ops, "lsn": self._lsns, "seq": self._seqs, "committed_at": self._times,
            "unchanged": self._unchanged,
        }  # fmt: skip
        made = [self._column(name, name, texts) for name, texts in self._texts.items()]
        made += [
            pl.Series(source.named(name), values, dtype=source.schema[source.named(name)])
            for name, values in own.items()
        ]
        made += [self._column(source.before(name), name, texts) for name, texts in self._before.items()]
        self._clear()
        return pl.DataFrame(made).select(source.schema.names())

    def _column(self, name: str, of: str, texts: list[bytes | None]) -> pl.Series:
        dtype = self._source.columns[of]
        series = pl.Series(name, texts, dtype=pl.Binary)
        try:
            return _typed(series.cast(pl.String), dtype)
        except (pl.exceptions.PolarsError, ValueError) as error:
            raise InputError(
                f"column '{of}' of table '{self._source.table}' has values that are not {dtype}: {first_line(error)}",
                cure=f"declare '{of}' in a type that holds its values; pl.String holds all of them",
            ) from error


def _known(old: Values | None, at: int) -> object:
    """What the old row says of a value that an update left as it was; where only its key is known, that is nothing."""
    return UNCHANGED if old is None or old[at] is None else old[at]


def _typed(texts: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Values as PostgreSQL writes them, in a type."""
    if isinstance(dtype, pl.String):
        return texts
    if isinstance(dtype, pl.Boolean):
        return texts.replace_strict({"t": True, "f": False}, return_dtype=pl.Boolean)
    if isinstance(dtype, pl.Binary):
        return texts.str.strip_prefix("\\x").str.decode("hex")
    if isinstance(dtype, pl.Date):
        return texts.str.to_date("%Y-%m-%d")
    if isinstance(dtype, pl.Time):
        return texts.str.to_time("%H:%M:%S%.f")
    if isinstance(dtype, pl.Datetime):
        unit = dtype.time_unit
        if not texts.str.ends_with("+00").any():
            times = texts.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit=unit)
            return times.dt.replace_time_zone("UTC").dt.convert_time_zone(dtype.time_zone) if dtype.time_zone else times
        moments = texts.str.strip_suffix("+00").str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit=unit)
        zone = dtype.time_zone
        return moments.dt.replace_time_zone("UTC").dt.convert_time_zone(zone) if zone else moments
    return texts.cast(dtype)
