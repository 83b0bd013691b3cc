"""Footprints: what open windows leave in the log of their operator, record by record.

A record says what a window was at the end of an epoch: when it opened (G_open), later on (G_check), or that it closed
(R). Records are the rows of a batch, and each carries a fingerprint of itself. A batch is read whole while its file is
sound; when it is not, the fingerprints tell the records that can still be used from those that cannot. The epoch is
part of the fingerprint, so that records of another batch are not taken for those of this one.

The fingerprint is written out in NumPy, because it is stored: it must be the same in every version, on every machine.
`tests/state/test_footprints.py` holds golden values.
"""

from __future__ import annotations

import logging
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import xxhash
from polars.datatypes import DataTypeClass

from holdfast.errors import CorruptPUnitError, WrongTypeError
from holdfast.hidden_columns import FINGERPRINT, KIND, POSITION
from holdfast.pstream.punit import PUnit, open_table, punit_bytes
from holdfast.state.position import MIX1, MIX2, Positions, key_positions, mixed
from holdfast.store import DirectoryStore

__all__ = ["FootprintKind", "fingerprints", "read_batch", "sealed", "sound", "window_codes"]

_NULL = np.uint64(0x6E756C6C20202020)
_log = logging.getLogger(__name__)


class FootprintKind(IntEnum):
    """What happened to the window."""

    OPEN = 1
    CHECK = 2
    CLOSED = 3


def sealed(rows: pl.DataFrame, kinds: npt.ArrayLike | int, epoch: int) -> pl.DataFrame:
    """The records of an epoch as they are written: their kinds first, their fingerprints last."""
    kind = np.broadcast_to(np.asarray(kinds, dtype=np.uint8), rows.height)
    records = rows.select(pl.Series(KIND, kind, dtype=pl.UInt8), pl.all())
    return records.with_columns(pl.Series(FINGERPRINT, fingerprints(records, epoch), dtype=pl.UInt64))


def sound(rows: pl.DataFrame, epoch: int) -> npt.NDArray[np.bool_]:
    """Which records are what was written in this epoch."""
    if rows.columns[-1:] != [FINGERPRINT] or rows.schema[FINGERPRINT] != pl.UInt64:
        return np.zeros(rows.height, dtype=bool)
    there = rows[FINGERPRINT]
    right = pl.Series(fingerprints(rows.drop(FINGERPRINT), epoch))
    return there.eq_missing(right).to_numpy()


def read_batch(store: DirectoryStore, punit: PUnit, epoch: int) -> tuple[pl.DataFrame, int]:
    """The sound records of a batch, and how many were left out.

    A file that matches its checksum needs no look at fingerprints; a spoilt one is restored from a sound copy, if there
    is one. Else its records are used as far as they are sound: in the worst case there are none, and no columns either.
    """
    try:
        frame = pl.from_arrow(open_table(store, punit))
        assert isinstance(frame, pl.DataFrame)
        return frame, 0
    except CorruptPUnitError as error:
        kept = pl.DataFrame()
        for path in store.copies(punit.name):
            found = _salvaged(path, punit, epoch)
            if kept.height < found.height <= punit.rows:
                kept = found
        left_out = punit.rows - kept.height
        _log.warning("%s; %d of its %d records were left out", error.problem, left_out, punit.rows)
        return kept, left_out


def _salvaged(path: Path, punit: PUnit, epoch: int) -> pl.DataFrame:
    """The sound records of a spoilt file. Its bytes are not mapped but copied, as they may change or go meanwhile."""
    try:
        frames = _readable(punit_bytes(path, punit))
        kept = [frame.filter(sound(frame, epoch)) for frame in frames]
        return pl.concat(kept, how="vertical") if kept else pl.DataFrame()
    except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001 - there is no end to what can be wrong
        _log.warning("%s cannot be read: %s", path, error)
        return pl.DataFrame()


def _readable(data: bytes) -> list[pl.DataFrame]:
    """The parts of an Arrow file that can be handed on: Polars trusts offsets, so Arrow has to look at them all."""
    reader = pa.ipc.open_file(pa.BufferReader(data))
    frames = []
    for number in range(reader.num_record_batches):
        try:
            part = reader.get_batch(number)
            part.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            _log.warning("a part of a damaged file cannot be read: %s", error)
            continue
        frame = pl.from_arrow(part)
        assert isinstance(frame, pl.DataFrame)
        frames.append(frame)
    return frames


def window_codes(rows: pl.DataFrame, pane: str | None) -> Positions:
    """A number for each row that is the same for the same window, and hardly ever for two: by the position of its key
    and, where there is one, its pane."""
    positions = rows[POSITION].to_numpy()
    if pane is None:
        return positions
    with np.errstate(over="ignore"):
        return mixed(positions ^ mixed(rows[pane].to_physical().cast(pl.Int64).to_numpy().view(np.uint64)))


def fingerprints(rows: pl.DataFrame, seed: int) -> Positions:
    """A 64-bit hash of each row: of its values, their order, the names and types of the columns, and the seed.

    Of two rows that differ in one number, float or time the fingerprints surely differ; others do, but for a chance of
    one in 2**64.
    """
    start = xxhash.xxh3_64_intdigest(_described(rows.schema).encode(), seed & 0xFFFFFFFFFFFFFFFF)
    result = np.full(rows.height, start, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in rows.iter_columns():
            result = mixed(result * MIX1 ^ _words(column))
    return result


def _described(schema: pl.Schema) -> str:
    """A schema in words of our own: a bit that flips in the head of a file can change a name or a type."""
    return ",".join(f"{len(name)}:{name} {_type_name(dtype)}" for name, dtype in schema.items())


def _type_name(dtype: pl.DataType) -> str:
    match dtype:
        case pl.List():
            return f"List({_type_name(_inner(dtype.inner))})"
        case pl.Array():
            return f"Array({_type_name(_inner(dtype.inner))},{dtype.size})"
        case pl.Struct():
            fields = pl.Schema({field.name: _inner(field.dtype) for field in dtype.fields})
            return f"Struct({_described(fields)})"
        case pl.Decimal():
            return f"Decimal({dtype.precision},{dtype.scale})"
        case pl.Datetime():
            return f"Datetime({dtype.time_unit},{dtype.time_zone or ''})"
        case pl.Duration():
            return f"Duration({dtype.time_unit})"
        case pl.Enum() | pl.Categorical():
            return "String"  # which of the three comes back is up to Polars
    return dtype.base_type().__name__


def _inner(dtype: pl.DataType | DataTypeClass) -> pl.DataType:
    return dtype if isinstance(dtype, pl.DataType) else dtype()


def _words(column: pl.Series) -> Positions:
    """One 64-bit word per value of any type; nulls have one of their own."""
    words = _words_of_values(column)
    if column.null_count():
        return np.where(column.is_null().to_numpy(), _NULL, words)
    return words


def _words_of_values(column: pl.Series) -> Positions:
    """One 64-bit word per value, anything for nulls."""
    dtype = column.dtype
    match dtype:
        case pl.Struct():
            return _words_of_structs(column)
        case pl.List():
            return _words_of_lists(column)
        case pl.Array():
            return _words_of_lists(column.arr.to_list())
        case pl.Enum() | pl.Categorical():
            return key_positions([column.cast(pl.String)])
        case pl.String() | pl.Binary():
            return key_positions([column])
        case pl.Null():
            return np.full(len(column), _NULL, dtype=np.uint64)
        case pl.Decimal() | pl.Int128() | pl.UInt128():
            return _words_of_wide(column.to_physical())
    if dtype.is_float():
        # As bits: here, unlike in a key, -0.0 is not 0.0.
        return _filled(column.cast(pl.Float64)).view(np.uint64)
    if dtype == pl.UInt64:
        return _filled(column)
    if dtype.is_integer() or dtype.is_temporal() or dtype == pl.Boolean:
        return _filled(column.to_physical().cast(pl.Int64)).view(np.uint64)
    raise WrongTypeError(
        f"column '{column.name}' is {dtype}, which cannot be written to a log",
        cure="use columns of numbers, strings, times, or lists and structs of them",
    )


def _filled(column: pl.Series) -> npt.NDArray[np.uint64]:
    return (column.fill_null(0) if column.null_count() else column).to_numpy()


def _words_of_wide(column: pl.Series) -> Positions:
    """A word of both halves of 128-bit integers."""
    two64 = pl.lit(1 << 64, column.dtype)
    value = pl.col("value").fill_null(0)
    halves = column.alias("value").to_frame().select(high=value // two64, low=value % two64)
    high = halves["high"].cast(pl.Int64 if column.dtype == pl.Int128 else pl.UInt64).to_numpy().view(np.uint64)
    return mixed(mixed(high) * MIX1 ^ halves["low"].cast(pl.UInt64).to_numpy())


def _words_of_structs(column: pl.Series) -> Positions:
    result = np.zeros(len(column), dtype=np.uint64)
    for field in column.struct.unnest().iter_columns():
        result = mixed(result * MIX1 ^ _words(field))
    return result


def _words_of_lists(column: pl.Series) -> Positions:
    """The sum of the elements, each mixed with its place in the list, and the length: vectorised over all lists."""
    lengths = column.list.len().fill_null(0).to_numpy().astype(np.int64)
    elements = _words(column.explode(empty_as_null=False, keep_nulls=False))
    ends = np.cumsum(lengths)
    places = np.arange(len(elements)) - np.repeat(ends - lengths, lengths)
    terms = mixed(mixed(elements) + places.view(np.uint64) * MIX2)
    sums = np.zeros(len(elements) + 1, dtype=np.uint64)
    np.cumsum(terms, out=sums[1:])
    return mixed((sums[ends] - sums[ends - lengths]) * MIX1 + lengths.view(np.uint64))
