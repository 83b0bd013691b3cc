"""The state of operators, gathered from the last footprints of their windows after the volatile tier was lost."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from holdfast.epoch.record import Footing
from holdfast.errors import CorruptPUnitError, HoldfastError
from holdfast.graph.nodes import Stateful
from holdfast.hidden_columns import POSITION
from holdfast.meta import MetaStore
from holdfast.operators.registry import operator_of
from holdfast.plan.program import Program
from holdfast.pstream import Control
from holdfast.pstream.pstream import PStream
from holdfast.state.eventual_checkpoint import EventualCheckpoint, LoggedBatch, load_eventual
from holdfast.state.manifest import Manifest
from holdfast.state.partition import partition_buffer_state
from holdfast.state.routing import Routing
from holdfast.state.tables import Writer
from holdfast.store import DirectoryStore

__all__ = ["Gathered", "eventual_checkpoint", "gather_state"]


@dataclass(frozen=True, slots=True)
class Gathered:
    """How the eventual checkpoint of an operator was gathered; `predicted` is how long its recovery was to take."""

    operator: str
    windows: int
    records: int
    bytes: int
    left_out: int
    chunks: int
    seconds: float
    oldest: int | None
    predicted: float | None


def gather_state(
    program: Program,
    footings: Mapping[str, Footing],
    routing: Mapping[str, Routing],
    meta: MetaStore,
    root: Path,
    store: DirectoryStore,
    epoch: int,
) -> tuple[dict[str, tuple[Manifest, ...]], list[Gathered]]:
    """State to continue with after `epoch`, partitioned by `routing` and written to `store`."""
    state: dict[str, tuple[Manifest, ...]] = {}
    gathered = []
    for node in program.stateful:
        footing = footings[node.name]
        try:
            found = eventual_checkpoint(node, footing, PStream(meta, root, footing.stream))
            if found.oldest is not None and found.oldest < epoch:
                raise CorruptPUnitError(
                    f"{found.left_out} damaged footprints were left out; one of them could be replaced by an older"
                    f" one, of epoch {found.oldest}, but what was read before epoch {epoch + 1} is released",
                    cure="restore the p-stream's files from a copy of the store",
                )
        except HoldfastError as error:
            raise error.at(operator=node.name, epoch=footing.extent.epoch) from error.__cause__
        state[node.name] = _partitioned(program, node, found.rows, routing[node.name], store, epoch)
        gathered.append(
            Gathered(
                node.name, found.windows, found.records, found.bytes, found.left_out, found.chunks, found.seconds,
                found.oldest, footing.predicted,
            )
        )  # fmt: skip
    return state, gathered


def eventual_checkpoint(node: Stateful, footing: Footing, stream: PStream) -> EventualCheckpoint:
    """The last footprints of all windows of an operator. The log itself says how many there are."""
    rule = operator_of(node).footprints
    assert rule is not None
    head = _newest(stream, footing).head
    if head["windows"] != footing.extent.windows:
        raise CorruptPUnitError(
            f"the log has {head['windows']} windows after epoch {footing.extent.epoch}, but the record"
            f" has {footing.extent.windows}",
            cure="the store and its p-streams come from different times; restore both from one copy",
        )
    return load_eventual(
        stream.store,
        _batches(stream, footing),
        head["windows"],
        rule.names,
        pane=rule.pane,
        closed=head["closed"],
        grouped=rule.grouped,
        resting=rule.resting,
    )


def _newest(stream: PStream, footing: Footing) -> Control:
    for control in _controls(stream, footing):
        return control
    raise CorruptPUnitError(
        f"the log of footprints, p-stream '{footing.stream}', has none of epoch {footing.extent.epoch}",
        cure="the store and its p-streams come from different times; restore both from one copy",
    )


def _controls(stream: PStream, footing: Footing) -> Iterator[Control]:
    """The control records of an operator, newest first, from the epoch of its footing on."""
    for entry in stream.backwards():
        control = entry.control.get(footing.name)
        if control is not None and control.epoch <= footing.extent.epoch:
            yield control


def _batches(stream: PStream, footing: Footing) -> Iterator[LoggedBatch]:
    """The batches of an operator's log, newest first."""
    for control in _controls(stream, footing):
        yield from (LoggedBatch(control.epoch, unit) for unit in control.units)


def _partitioned(
    program: Program, node: Stateful, rows: pl.DataFrame, routing: Routing, store: DirectoryStore, epoch: int
) -> tuple[Manifest, ...]:
    manifests = [Manifest(routing.interval(part)) for part in range(routing.partitions)]
    rule, inputs = operator_of(node).footprints, program.inputs_of(node)
    assert rule is not None
    if rows.height:
        attempt = uuid.uuid4().hex[:12]
        for part, mine in partition_buffer_state(rows, rows[POSITION].to_numpy(), routing):
            writer = Writer(store, node.name, f"{epoch:012d}-{part}-{attempt}")
            manifests[part] = rule.load(inputs, mine, routing.interval(part), writer)
    return tuple(manifests)
