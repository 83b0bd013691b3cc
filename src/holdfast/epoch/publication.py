"""When readers see what tasks have prepared: committed epochs are gathered, and published in groups.

The meta store has what is committed and not known to be published (`meta/outputs.py`). It is told of a publication in
the transaction of the next commit, so that publishing costs no transaction of its own. Until then a sink can tell by
itself what it has published, and does nothing when it is asked again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from holdfast.connect.base import TaskSink
from holdfast.epoch.sink_errors import named
from holdfast.errors import CorruptFileError, PipelineChangedError
from holdfast.graph.nodes import SinkNode
from holdfast.meta import Group, Lease, MetaStore, OutputMeta
from holdfast.store import Right

__all__ = ["Publication"]


class Publication:
    """What the sinks of a fragment that tasks write to have in store for readers."""

    def __init__(self, pipeline: str, nodes: Iterable[SinkNode], meta: MetaStore, clock: Callable[[], float]) -> None:
        self._pipeline = pipeline
        self._sinks = {node.name: (node, node.sink) for node in nodes if isinstance(node.sink, TaskSink)}
        self._meta = meta
        self._outputs = OutputMeta(pipeline)
        self._clock = clock
        self._last = dict.fromkeys(self._sinks, -math.inf)
        """When each sink last published, by the clock."""
        self._waiting: set[str] = set()
        """Sinks with epochs that are in no group yet, when the store was last looked at."""
        self._shown: dict[tuple[str, int], Group] = {}
        """Groups that were published here, and that the store may not know to be."""

    def writes(
        self, epoch: int, receipts: Mapping[str, Sequence[Any]], more: Callable[[sa.Connection], None] | None
    ) -> Callable[[sa.Connection], None] | None:
        """What is to be written in the transaction that commits the epoch, if anything; `more` is done first."""
        if not self._sinks:
            return more
        mine = {name: receipts[name] for name in self._sinks if receipts.get(name)}

        def also(connection: sa.Connection) -> None:
            if more is not None:
                more(connection)
            self._outputs.published(connection, self._shown.values())
            for name, prepared in mine.items():
                self._outputs.gather(connection, name, epoch, self._sinks[name][1].place, prepared)
            self._close_due(connection)

        return also

    def _close_due(self, connection: sa.Connection) -> None:
        now = self._clock()
        for name, size in self._outputs.gathered(connection).items():
            if name in self._sinks and self._sinks[name][1].rhythm.due(now - self._last[name], size):
                self._outputs.close(connection, name)

    def publish(self) -> None:
        """Let readers see every group that there is."""
        if not self._sinks:
            return
        groups = self._look()
        for group in groups:
            if group.name not in self._shown:
                self._publish(group)
        for name in self._shown.keys() - {group.name for group in groups}:
            group = self._shown.pop(name)
            self._sinks[group.sink][1].forget(group.epoch, group.receipts)

    def _publish(self, group: Group) -> None:
        node, sink = self._of(group)
        try:
            with named(node, group.epoch):
                sink.publish(group.epoch, group.receipts)
        except CorruptFileError:
            # Another host of the pipeline may have published it meanwhile, told the store, and removed what was left.
            if group.name in {each.name for each in self._look()}:
                raise
            return
        self._shown[group.name] = group
        self._last[group.sink] = self._clock()

    def publish_due(self, lease: Lease) -> None:
        """While there is nothing to commit: publish what has waited long enough."""
        now = self._clock()
        if any(
            self._sinks[name][1].rhythm.due(now - self._last[name], 0) for name in self._waiting if name in self._sinks
        ):
            with self._meta.writing() as connection:
                self._meta.fence(connection, lease)
                self._close_due(connection)
            self.publish()

    def publish_all(self, lease: Lease) -> None:
        """At the start and at a clean end: publish all that is committed, and have the store know."""
        if not self._look() and not self._waiting:
            return
        with self._meta.writing() as connection:
            self._meta.fence(connection, lease)
            for name in self._outputs.gathered(connection):
                self._outputs.close(connection, name)
        for group in self._look():
            self._of(group)
        self.publish()
        with self._meta.writing() as connection:
            self._meta.fence(connection, lease)
            self._outputs.published(connection, self._shown.values())
        self.publish()

    def sweep(self, before_epoch: int, right: Right) -> None:
        """Remove what lost attempts have prepared. Only after all that was committed before was published."""
        for _, sink in self._sinks.values():
            right.check()
            sink.sweep(before_epoch)

    def _look(self) -> list[Group]:
        """The groups that the store has now."""
        with self._meta.reading() as connection:
            self._waiting = set(self._outputs.gathered(connection))
            return self._outputs.groups(connection)

    def _of(self, group: Group) -> tuple[SinkNode, TaskSink]:
        """The sink of a group, if it is still the one that the epochs were prepared for."""
        found = self._sinks.get(group.sink)
        if found is None or (group.places and group.places != {found[1].place}):
            now = "is gone" if found is None else f"writes elsewhere, to {found[1].place}"
            place = f" for {', '.join(sorted(group.places))}" if group.places else ""
            raise PipelineChangedError(
                f"pipeline '{self._pipeline}' has changed: epochs up to {group.epoch} are committed and not published"
                f"{place}, and their sink {now}",
                cure="declare the sink as it was, start the pipeline once more and stop it: this publishes them",
                operator=group.sink,
                epoch=group.epoch,
            )
        return found
