"""When readers see what tasks have prepared: committed epochs are collected and published in groups.

The meta store records what is committed and may not be published yet (`meta/outputs.py`). The transaction of the next
commit records a publication, so publishing needs no transaction of its own. Until then a sink can find out by itself
what it has published, and a repeated request does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from holdfast.connect.base import Receipt, TaskSink
from holdfast.engine.sink_calls import SinkCalls
from holdfast.epoch.transaction import Transaction, committing
from holdfast.errors import CorruptFileError, PipelineChangedError
from holdfast.graph.nodes import SinkNode
from holdfast.meta import Group, Lease, MetaStore, OutputMeta
from holdfast.store import Private, Right

__all__ = ["Publication"]

_PUBLISHED = Private("the store knows that it is published, and its names are never used again")


class Publication:
    """What the sinks of a fragment that tasks write to have in store for readers."""

    def __init__(
        self,
        pipeline: str,
        nodes: Iterable[SinkNode],
        meta: MetaStore,
        clock: Callable[[], float],
        calls: SinkCalls,
    ) -> None:
        self._pipeline = pipeline
        self._sinks = {node.name: (node, node.sink) for node in nodes if isinstance(node.sink, TaskSink)}
        self._meta = meta
        self._outputs = OutputMeta(pipeline)
        self._clock = clock
        self._calls = calls
        self._last = dict.fromkeys(self._sinks, -math.inf)
        """When each sink last published, by the clock."""
        self._gathered: dict[str, int] = {}
        """Bytes of sinks with epochs that are in no group yet: when the store was last looked at, and since then."""
        self._closed = False
        """Whether groups were made since the store was last looked at."""
        self._shown: dict[tuple[str, int], Group] = {}
        """Groups that were published here, and that the store may not know to be."""

    def gather(self, transaction: Transaction, receipts: Mapping[str, Sequence[Receipt]]) -> None:
        """With the commit of an epoch: what was published before it, what it has prepared, and what is to be published
        now."""
        if not self._sinks:
            return
        transaction.published(self._shown.values())
        for name, (_, sink) in self._sinks.items():
            if prepared := receipts.get(name):
                size = transaction.gather(name, sink.place, prepared)
                self._gathered[name] = self._gathered.get(name, 0) + size
        self._close_due(transaction)

    def _close_due(self, transaction: Transaction) -> None:
        now = self._clock()
        for name, size in list(self._gathered.items()):
            if name in self._sinks and self._sinks[name][1].rhythm.due(now - self._last[name], size):
                transaction.close_group(name)
                self._closed = True
                del self._gathered[name]

    def publish(self, *, alone: bool = False) -> None:
        """Publish every group that there is. Where no other host makes any (`alone`), the store is not asked in
        vain: an epoch that is only gathered costs nothing here."""
        if not self._sinks or (alone and not self._closed and not self._shown):
            return
        groups = self._look()
        for group in groups:
            if group.name not in self._shown:
                self._publish(group)
        for name in self._shown.keys() - {group.name for group in groups}:
            group = self._shown.pop(name)
            node, sink = self._sinks[group.sink]
            self._calls.call(node, group.epoch, "to clean up", sink.forget, group.epoch, group.receipts, _PUBLISHED)

    def _publish(self, group: Group) -> None:
        node, sink = self._of(group)
        try:
            self._calls.call(node, group.epoch, "to publish", sink.publish, group.epoch, group.receipts)
        except CorruptFileError:
            # Another host of the pipeline may have published it meanwhile, recorded that, and removed what was left.
            if group.name in {waiting.name for waiting in self._look()}:
                raise
            return
        self._shown[group.name] = group
        self._last[group.sink] = self._clock()

    def publish_due(self, lease: Lease) -> None:
        """While there is nothing to commit: publish what has waited long enough."""
        now = self._clock()
        if any(
            self._sinks[name][1].rhythm.due(now - self._last[name], 0) for name in self._gathered if name in self._sinks
        ):
            with committing(self._meta, lease) as transaction:
                self._close_due(transaction)
            self.publish()

    def publish_all(self, lease: Lease) -> None:
        """At the start and at a clean end: publish all that is committed, and have the store know."""
        if not self._look() and not self._gathered:
            return
        with committing(self._meta, lease) as transaction:
            for name in transaction.gathered():
                transaction.close_group(name)
        for group in self._look():
            self._of(group)
        self.publish()
        with committing(self._meta, lease) as transaction:
            transaction.published(self._shown.values())
        self.publish()

    def sweep(self, before_epoch: int, right: Right) -> None:
        """Remove what lost attempts have prepared. Only after all that was committed before was published."""
        for node, sink in self._sinks.values():
            self._calls.call(node, None, "to clean up", sink.sweep, before_epoch, right)

    def _look(self) -> list[Group]:
        """The groups that the store has now."""
        with self._meta.reading() as connection:
            self._gathered, self._closed = self._outputs.gathered(connection), False
            return self._outputs.groups(connection)

    def _of(self, group: Group) -> tuple[SinkNode, TaskSink]:
        """The sink of a group, if it is still the one that the epochs were prepared for."""
        found = self._sinks.get(group.sink)
        if found is None or (group.places and group.places != {found[1].place}):
            now = "is gone" if found is None else f"writes elsewhere, to {found[1].place}"
            place = f" for {', '.join(sorted(group.places))}" if group.places else ""
            raise PipelineChangedError(
                f"pipeline '{self._pipeline}' has changed: epochs up to {group.epoch} are committed but not published"
                f"{place}, and their sink {now}",
                cure="declare the sink as it was, then start and stop the pipeline once: this publishes them",
                operator=group.sink,
                epoch=group.epoch,
            )
        return found
