"""From a pipeline to its receivers: the streams they write, the right to write them, and the server.

A stream has one writer. Its lease in the meta store is held as long as the receivers run, so a second process that
would receive for the same source is told so before it listens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from holdfast.connect.sources.push import PushSource
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
from holdfast.pstream.appender import open_appender

__all__ = ["Receivers", "embedded_receivers", "open_receivers", "push_nodes"]


@dataclass(frozen=True, slots=True)
class Receivers:
    """The running receivers of a pipeline."""

    server: IngressServer
    leases: tuple[LeaseKeeper, ...]

    def check(self) -> None:
        """To be called now and then: raises what kept a lease from being renewed."""
        for lease in self.leases:
            lease.renew()


def push_nodes(pipeline: Pipeline) -> dict[str, tuple[SourceNode, PushSource]]:
    """The sources of a pipeline that clients push to, by name."""
    return {
        name: (node, node.source)
        for name, node in pipeline.nodes.items()
        if isinstance(node, SourceNode) and isinstance(node.source, PushSource)
    }


@contextmanager
def open_receivers(
    pipeline: Pipeline,
    meta: MetaStore,
    store: Path,
    *,
    sync: bool = True,
    clock: Callable[[], float] = time.time,
) -> Iterator[Receivers]:
    """Receive for all push sources of a pipeline. At the end, what is on its way is finished and acknowledged."""
    nodes = push_nodes(pipeline)
    if not nodes:
        raise DeclarationError(
            f"pipeline '{pipeline.name}' has no push source",
            cure="declare one with pipeline.source(..., hf.source.push(...))",
        )
    cuts = open_cuts(pipeline, meta)
    with ExitStack() as stack:
        targets, leases = {}, []
        for item in cuts.receiving:
            name = item.source.name
            node, source = nodes[name]
            stream = item.stream.name
            try:
                keeper = stack.enter_context(LeaseKeeper(meta, f"ingress:{stream}", clock))
            except AlreadyRunningError as error:
                raise AlreadyRunningError(
                    f"another process receives for source '{name}': {error.problem}",
                    cure="run the pipeline with --no-ingress (ingress=False) beside it, or stop the other process",
                    operator=name,
                ) from error
            leases.append(keeper)
            appender = open_appender(
                meta, store, stream, item.stream.schema, lateness=node.lateness, budget=source.budget, sync=sync,
                event_time=None if node.time is None else node.time.column, prepare=_preparing(item),
                lease=keeper.lease, marked=item.marked,
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
        chain = Chain(nodes)
        hidden = [BOUND] if BOUND in frame.columns else []
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
    """Receive in the process that runs the pipeline, if the pipeline has any push source. `on_open` is told the
    addresses, by source and protocol."""
    if not push_nodes(pipeline):
        yield
        return
    opened = MetaStore(meta or store, sync=sync)
    try:
        with open_receivers(pipeline, opened, store.resolve(), sync=sync) as receivers:
            addresses = receivers.server.addresses.items()
            on_open({name: {protocol: str(where) for protocol, where in ways.items()} for name, ways in addresses})
            yield
    finally:
        opened.close()
