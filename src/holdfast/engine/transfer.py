"""State in and out of a store: export to a file, and import in place of the state after the last committed epoch.

The file has the columns that users see, so any program that writes Parquet or Arrow can make or change it. An import is
checked as a whole before anything is written, and takes effect with one transaction.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace
from polars.exceptions import PanicException, PolarsError

from holdfast.engine.lease import LeaseKeeper
from holdfast.epoch.record_change import record_of
from holdfast.epoch.transaction import committing
from holdfast.errors import (
    CorruptFileError,
    HoldfastError,
    PipelineChangedError,
    UnknownColumnError,
    UnknownStateError,
    UnknownVersionError,
    WrongTypeError,
)
from holdfast.formats import EXPORT_VERSION
from holdfast.hidden_columns import ALL, DELETED, PANE, POSITION
from holdfast.meta import opened_meta
from holdfast.operators.timers import TIMERS, completed_timers
from holdfast.state.inspection import OperatorState, open_operator, shown_state
from holdfast.state.layout import TABLE, OperatorLayout, TableLayout
from holdfast.state.manifest import Manifest
from holdfast.state.past_moment import Moment
from holdfast.state.pipeline_shape import OperatorShape
from holdfast.state.position import key_positions
from holdfast.state.routing import Routing
from holdfast.state.tables import Writer
from holdfast.store import Private, durable_write
from holdfast.store.location import local_path
from holdfast.stored_json import encode_json

__all__ = ["export_state", "import_state"]

_METADATA = b"holdfast.state"
_ARROW, _PARQUET = (".arrow", ".feather", ".ipc"), (".parquet",)


class ExportHead(msgspec.Struct, frozen=True):
    """What a file of exported state says of itself."""

    version: int
    pipeline: str
    operator: str
    epoch: int
    shape: OperatorShape


class _Versioned(msgspec.Struct, frozen=True):
    version: Any = None


def export_state(
    store: Path | str, pipeline: str, operator: str, path: Path | str, *, epoch: int | None = None,
    at: Moment | None = None, meta: str | None = None,
) -> int:  # fmt: skip
    """Write the state of an operator after a retained epoch, by default the last, to a Parquet or Arrow file.

    The ending of the name says which; `epoch` and `at` are those of `state`. The pipeline may be running meanwhile.
    Returns the number of rows.
    """
    target = local_path(path, "export_state()")
    _kind(target)
    found, rows = shown_state(local_path(store, "store"), pipeline, operator, epoch, at, meta=meta)
    head = encode_json(ExportHead(EXPORT_VERSION, found.pipeline, operator, found.epoch, found.shape))
    table = rows.to_arrow(compat_level=pl.CompatLevel.oldest())
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), _METADATA: head.encode()})
    sink = pa.BufferOutputStream()
    if _kind(target) == "parquet":
        pq.write_table(table, sink)
    else:
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    durable_write(draft, memoryview(sink.getvalue()))
    os.replace(draft, target)
    return rows.height


def import_state(
    store: Path | str, pipeline: str, operator: str, path: Path | str, *, meta: str | None = None
) -> int:  # fmt: skip
    """Replace the state of an operator, as the last committed epoch left it, by the rows of a file.

    The pipeline must not be running. The file may come from another pipeline, or from another program, if its columns
    are those that `state` shows. Returns the number of rows.
    """
    source, place = local_path(path, "import_state()"), local_path(store, "store")
    with opened_meta(place, meta, writes=True) as opened:
        owner = open_operator(opened, place, pipeline, operator).pipeline
        with LeaseKeeper(opened, owner, time.time) as keeper:
            found = open_operator(opened, place, pipeline, operator)
            record = record_of(found.commit)
            if record.base is not None:
                raise PipelineChangedError(
                    f"the state of '{owner}' is not on the stable tier: it was killed, and may have to be replayed",
                    cure="start the pipeline, stop it cleanly, then import",
                    operator=operator,
                )
            tables = _checked(found, *_read(source, operator))
            names: list[str] = []
            try:
                parts = _write(found, record.routing[operator], tables, names)
            except BaseException:
                found.files.remove(names, Private("written for an import that failed"))
                raise
            # From here on nothing is removed: if the transaction fails, the next start sweeps what nothing refers to.
            record = replace(record, state={**record.state, operator: parts})
            with committing(opened, keeper.lease, found.epoch) as transaction:
                transaction.record_again(record)
    return sum(rows.height for rows in tables.values())


def _kind(path: Path) -> str:
    for kind, endings in (("parquet", _PARQUET), ("arrow", _ARROW)):
        if path.suffix.lower() in endings:
            return kind
    raise WrongTypeError(
        f"{path} is neither a Parquet nor an Arrow file, by its name",
        cure=f"use a name that ends in {', '.join((*_PARQUET, *_ARROW))}",
    )


def _read(path: Path, operator: str) -> tuple[pl.DataFrame, ExportHead | None]:
    """The rows of a file, and what it says of itself."""
    kind = _kind(path)
    if not path.exists():
        raise UnknownStateError(f"file {path} does not exist", cure="give a file of exported state", operator=operator)
    try:
        if kind == "parquet":
            table = pq.read_table(path)
        else:
            with pa.OSFile(str(path)) as file:
                table = pa.ipc.open_file(file).read_all()
        table.validate(full=True)
        frame = pl.from_arrow(table)
        head = _head_in((table.schema.metadata or {}).get(_METADATA), path, operator)
    except (pa.ArrowException, PolarsError, PanicException, OSError, ValueError) as error:
        raise CorruptFileError(
            f"{path} cannot be read: {str(error).splitlines()[0]}",
            cure="export it again; nothing was changed",
            operator=operator,
        ) from error
    assert isinstance(frame, pl.DataFrame)
    return frame, head


def _head_in(text: bytes | None, path: Path, operator: str) -> ExportHead | None:
    """What a file says of itself, if anything; ValueError where that is not what an export says."""
    if text is None:
        return None
    version = msgspec.json.decode(text, type=_Versioned).version
    if version != EXPORT_VERSION:
        raise UnknownVersionError(
            f"{path} has version {version}; this program knows version {EXPORT_VERSION}",
            cure="import it with the version of Holdfast that exported it, or a newer one",
            operator=operator,
        )
    return msgspec.json.decode(text, type=ExportHead)


def _checked(found: OperatorState, frame: pl.DataFrame, head: ExportHead | None) -> dict[str, pl.DataFrame]:
    """The rows of each table in its own columns, with positions, sorted by them."""
    layout = found.layout
    if found.shape.tables is None:
        raise UnknownStateError(
            "the store was last written by an older version, which did not record its tables",
            cure="start the pipeline once with this version, then import",
            operator=found.operator,
        )
    if head is not None:
        there, here = head.shape, found.shape
        for part, theirs, ours in (
            ("kind", there.kind, here.kind), ("keys", there.keys, here.keys), ("window", there.window, here.window),
        ):  # fmt: skip
            if theirs != ours:
                raise WrongTypeError(
                    f"{part} of the exported operator '{head.operator}' is {theirs}, here it is {ours}",
                    cure="import into an operator of the same kind, with the same key and window",
                    operator=found.operator,
                )
    frame = _fitting(layout, frame)
    tables = {}
    for table in layout.tables:
        rows = frame.filter(pl.col(TABLE) == table.name) if layout.several else frame
        columns = [pl.col(plain).alias(name) for name, plain in layout.shown(table).items()]
        rows = rows.select(columns)
        if ALL in table.schema:
            rows = rows.with_columns(pl.lit(0, pl.Int8).alias(ALL))
        tables[table.name] = rows.select(table.schema.names())
    _complete_timers(layout, tables)
    for table in layout.tables:
        tables[table.name] = _positioned(layout, table, tables[table.name])
    return tables


def _fitting(layout: OperatorLayout, frame: pl.DataFrame) -> pl.DataFrame:
    """The file's rows, once their columns and types are what the operator has."""
    wanted = layout.shown_schema
    defaults = {name: value for table in layout.tables for name, value in table.defaults.items()}
    for name in frame.columns:
        if name not in wanted:
            raise UnknownColumnError(
                f"the file has a column '{name}', which the state does not have",
                cure=f"the columns are: {', '.join(wanted)}",
                operator=layout.operator,
            )
    for name, dtype in wanted.items():
        if name not in frame.columns:
            if name not in defaults:
                raise UnknownColumnError(
                    f"the file lacks the column '{name}'",
                    cure=f"it must have: {', '.join(wanted)}",
                    operator=layout.operator,
                )
            frame = frame.with_columns(pl.lit(pl.Series([defaults[name]], dtype=dtype)).first().alias(name))
        elif frame.schema[name] != dtype:
            texts = (pl.String, pl.Categorical, pl.Enum)
            if dtype not in texts or frame.schema[name] not in texts:
                raise WrongTypeError(
                    f"column '{name}' of the file is {frame.schema[name]}, but must be {dtype}",
                    cure="cast it before the import",
                    operator=layout.operator,
                )
            frame = frame.with_columns(pl.col(name).cast(dtype))
    if layout.several:
        known = [table.name for table in layout.tables]
        strange = frame.filter(~pl.col(TABLE).is_in(known).fill_null(False))
        if strange.height:
            raise _bad_row(layout, f"column '{TABLE}' is {strange[TABLE][0]!r}", f"it says one of {', '.join(known)}")
    return frame


def _complete_timers(layout: OperatorLayout, tables: dict[str, pl.DataFrame]) -> None:
    """Every pending timer is in the table of timers, which is ordered by time; the state says which are pending."""
    if TIMERS not in tables:
        return
    [kept] = [table for table in layout.tables if table.name != TIMERS]
    tables[TIMERS], silent = completed_timers(tables[TIMERS], tables[kept.name], kept.keys)
    if silent.height:
        raise _bad_row(
            layout, f"the {kept.name} of key {silent.row(0)} have no row in the table '{TIMERS}'",
            "each key has one there whose pane is the time at which its first open session ends",
        )  # fmt: skip


def _positioned(layout: OperatorLayout, table: TableLayout, rows: pl.DataFrame) -> pl.DataFrame:
    for name in table.filled:
        if rows[name].null_count():
            raise _bad_row(layout, f"column '{layout.shown(table)[name]}' is null in a row of table '{table.name}'",
                           "it has a value in every row")  # fmt: skip
    if table.keyed:
        twice = rows.select(table.keys).filter(rows.select(table.keys).is_duplicated())
        if twice.height:
            raise _bad_row(layout, f"the key {twice.row(0)} occurs twice", "each key has one row")
    positions = key_positions([rows[key] for key in table.keys], rows.height)
    order = np.argsort(positions, kind="stable")
    return rows[order].insert_column(0, pl.Series(POSITION, positions[order]))


def _bad_row(layout: OperatorLayout, problem: str, rule: str) -> HoldfastError:
    return WrongTypeError(
        f"the file cannot be imported: {problem}", cure=f"{rule}; nothing was changed", operator=layout.operator
    )


def _write(
    found: OperatorState, routing: Routing, tables: Mapping[str, pl.DataFrame], names: list[str]
) -> tuple[Manifest, ...]:
    """Cut the rows as the operator is partitioned now, and write them. `names` gets the files."""
    owner = {name: routing.assign(rows[POSITION].to_numpy()) for name, rows in tables.items()}
    parts = []
    for number in range(routing.partitions):
        manifest = Manifest(routing.interval(number))
        stem = f"{found.epoch:012d}-{number}-{uuid.uuid4().hex[:12]}"
        writer = Writer(found.files, found.operator, stem)
        for table in found.layout.tables:
            rows = tables[table.name].filter(pl.Series(owner[table.name] == number))
            if not rows.height:
                continue
            names.append(writer.next_name(table.name))
            if table.keyed:
                piece = writer.write(manifest.interval, table.name, rows.with_columns(pl.lit(False).alias(DELETED)))
            else:
                panes = rows[PANE].to_list()
                piece = writer.write(manifest.interval, table.name, rows, min(panes), max(panes))
            manifest = manifest.with_table(table.name, [piece])
        parts.append(manifest)
    return tuple(parts)
