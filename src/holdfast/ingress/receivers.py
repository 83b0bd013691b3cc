"""From a pipeline to its receivers: the streams they write, the right to write them, and the server.

A stream has one writer. Its lease in the meta store is held as long as the receivers run, so a second process that
would receive for the same source is told so before it listens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from holdfast.connect.sources.received import ReceivedSource
from holdfast.engine.fragment_runs import open_cuts
from holdfast.engine.lease import LeaseKeeper
from holdfast.errors import AlreadyRunningError, DeclarationError, HoldfastError, OperatorError
from holdfast.graph.nodes import SourceNode
from holdfast.graph.pipeline import Pipeline
from holdfast.hidden_columns import BOUND
from holdfast.ingress.server import IngressServer
from holdfast.meta import MetaStore
from holdfast.plan.chain import Chain
from holdfast.plan.cuts import Receiving
from holdfast.pstream import Announcements
from holdfast.pstream.appender import open_appender

__all__ = ["Receivers", "embedded_receivers", "open_receivers", "push_nodes", "receivers_for", "receiving"]


@dataclass(frozen=True, slots=True)
class Receivers:
    """The running receivers of a pipeline."""

    server: IngressServer
    leases: tuple[LeaseKeeper, ...]

    def addresses(self) -> dict[str, dict[str, str]]:
        """Where each source listens, by protocol."""
        found = self.server.addresses.items()
        return {name: {way: str(where) for way, where in ways.items()} for name, ways in found}

    def check(self) -> None:
        """To be called now and then: raises what kept a lease from being renewed, or ended a receiver."""
        for lease in self.leases:
            lease.renew()
        self.server.check()


def push_nodes(pipeline: Pipeline) -> dict[str, tuple[SourceNode, ReceivedSource]]:
    """The sources of a pipeline that clients push to, by name."""
    return {
        name: (node, node.source)
        for name, node in pipeline.nodes.items()
        if isinstance(node, SourceNode) and isinstance(node.source, ReceivedSource)
    }


@contextmanager
def open_receivers(
    pipeline: Pipeline,
    meta: MetaStore,
    store: Path,
    *,
    sync: bool = True,
    clock: Callable[[], float] = time.time,
    announcements: Announcements | None = None,
) -> Iterator[Receivers]:
    """Receive for all push sources of a pipeline. At the end, what is on its way is finished and acknowledged."""
    if not push_nodes(pipeline):
        raise DeclarationError(
            f"pipeline '{pipeline.name}' has no push source",
            cure="declare one with pipeline.source(..., hf.source.push(...))",
        )
    with receivers_for(
        receiving(pipeline, meta), meta, store, sync=sync, clock=clock, announcements=announcements
    ) as receivers:
        yield receivers


def receiving(pipeline: Pipeline, meta: MetaStore) -> tuple[Receiving, ...]:
    """What is received for a pipeline: its push sources, and the streams that are written, which are made known."""
    nodes = push_nodes(pipeline)
    return tuple(replace(item, source=nodes[item.source.name][0]) for item in open_cuts(pipeline, meta).receiving)


@contextmanager
def receivers_for(
    items: Iterable[Receiving],
    meta: MetaStore,
    store: Path,
    *,
    sync: bool = True,
    clock: Callable[[], float] = time.time,
    announcements: Announcements | None = None,
) -> Iterator[Receivers]:
    """Receive what `receiving` has found."""
    with ExitStack() as stack:
        targets, leases = {}, []
        for item in items:
            node, source, stream = item.source, item.source.source, item.stream.name
            assert isinstance(source, ReceivedSource)
            name = node.name
            try:
                keeper = stack.enter_context(LeaseKeeper(meta, f"ingress:{stream}", clock))
            except AlreadyRunningError as error:
                raise AlreadyRunningError(
                    f"another process receives for source '{name}': {error.problem}",
                    cure="run the pipeline with --no-ingress (ingress=False), or stop the other process",
                    operator=name,
                ) from error
            leases.append(keeper)
            appender = open_appender(
                meta, store, stream, item.stream.schema, lateness=node.lateness, budget=source.budget, sync=sync,
                event_time=None if node.time is None else node.time.column, prepare=_preparing(item),
                lease=keeper.lease, marked=item.marked, announcements=announcements, compress=source.compress,
            )  # fmt: skip
            stack.callback(appender.close)
            targets[name] = (replace(source, times=node.allowed, clock=clock), appender)
        yield Receivers(stack.enter_context(IngressServer(targets)), tuple(leases))


def _preparing(item: Receiving) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """What is done to rows before they are written: the operators that were moved before the p-stream, and only the
    columns that are read behind it."""
    place, name = item.stream.placement.place, item.source.name
    nodes = {name: item.source, **item.chain}

    def prepare(frame: pl.DataFrame) -> pl.DataFrame:
        hidden = [BOUND] if BOUND in frame.columns else []
        if not item.chain:  # small batches are many: a plan that does nothing costs more than they do
            kept = [*place.columns, *hidden]
            return frame if frame.columns == kept else frame.select(kept)
        chain = Chain(nodes)
        try:
            rows = chain.frames([place.after], {name: frame.lazy()})[place.after]
            return rows.select(*place.columns, *hidden).collect()
        except HoldfastError:
            raise
        except Exception as error:
            blamed = chain.blame(place.after, {name: frame}, error, None)
            raise OperatorError(
                f"the rows do not fit the pipeline: {blamed.problem}",
                cure="correct the rows; or let the pipeline's operator take them, or declare push(..., push_up=False)",
                operator=blamed.operator,
            ) from error

    return prepare


@contextmanager
def embedded_receivers(
    pipeline: Pipeline,
    store: Path,
    *,
    meta: str | None = None,
    sync: bool = True,
    on_open: Callable[[Mapping[str, Mapping[str, str]]], None] = lambda addresses: None,
) -> Iterator[None]:
    """Receive in this process, if the pipeline has any push source. `on_open` is told the addresses, by source and
    protocol."""
    if not push_nodes(pipeline):
        yield
        return
    opened = MetaStore(meta or store, sync=sync)
    try:
        with open_receivers(pipeline, opened, store.resolve(), sync=sync) as receivers:
            on_open(receivers.addresses())
            yield
    finally:
        opened.close()
