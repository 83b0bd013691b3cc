"""What the driver knows of a topic: its partitions, where they begin and end, and whether the brokers answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.connect.kafka.kafka_library import admin_library, client_library, passes, said
from holdfast.connect.kafka.kafka_servers import KafkaServers
from holdfast.errors import InputError
from holdfast.plurals import counted

__all__ = ["Extents", "TopicWatch", "UnreachableError"]

_BY = "hf.source.kafka()"
_ANSWER_SECONDS = 10.0
_PAUSE_SECONDS = 0.05
_PARTITIONS_SECONDS = 2.0
"""How long the list of partitions is believed."""

Extents = Mapping[int, tuple[int, int]]
"""The first offset of each partition, and the one behind the last that readers may see."""


class UnreachableError(Exception):
    """No broker answers. The message is the library's."""


@dataclass(slots=True)
class TopicWatch:
    """One topic, asked about by one process."""

    servers: KafkaServers
    topic: str
    clock: Callable[[], float] = time.monotonic
    reached: bool = False
    """Whether the brokers have ever answered this process."""
    extents: Extents | None = None
    """As they were when they were last asked for."""
    _admin: Any = None
    _partitions: tuple[int, ...] = ()
    _listed: float | None = None

    def look(self) -> Extents:
        """Ask the brokers."""
        spec = admin_library(_BY).OffsetSpec
        lows, ends = self._offsets(spec.earliest(), spec.latest())
        found = {partition: (low, ends[partition]) for partition, low in lows.items()}
        self.extents, self.reached = found, True
        return found

    def partitions(self) -> Sequence[int]:
        now = self.clock()
        if self._listed is None or now - self._listed > _PARTITIONS_SECONDS:
            try:
                metadata = self._client().list_topics(self.topic, timeout=_ANSWER_SECONDS).topics[self.topic]
            except client_library(_BY).KafkaException as error:
                raise UnreachableError(said(error)) from error
            if metadata.error is not None:
                raise InputError(
                    f"the topic '{self.topic}' cannot be read at {self.servers}: {said(metadata.error)}",
                    cure="create the topic, or check that its name is right and that this user may read it",
                )
            self._partitions, self._listed = tuple(sorted(metadata.partitions)), now
        return self._partitions

    def at_time(self, milliseconds: int) -> dict[int, int]:
        """The offset of the first message of that time or later, by partition; the end where there is none."""
        [found] = self._offsets(admin_library(_BY).OffsetSpec.for_timestamp(milliseconds))
        ends = self.look()
        return {partition: offset if offset >= 0 else ends[partition][1] for partition, offset in found.items()}

    def lag(self, offsets: Mapping[int, int]) -> int | None:
        """How many messages waited behind these offsets when the brokers were last asked."""
        if self.extents is None:
            return None
        return sum(max(0, end - offsets.get(partition, low)) for partition, (low, end) in self.extents.items())

    def close(self) -> None:
        self._admin = None

    def _offsets(self, *specs: Any) -> list[dict[int, int]]:
        """For each of what is asked, the offsets by partition. Where brokers are just agreeing on who leads a
        partition, they are asked again."""
        library = client_library(_BY)
        until = self.clock() + _ANSWER_SECONDS
        while True:
            try:
                return self._offsets_now(*specs)
            except library.KafkaException as error:
                if not passes(_BY, error) or self.clock() > until:
                    raise UnreachableError(said(error)) from error
            except TimeoutError as error:
                raise UnreachableError(said(error)) from error
            time.sleep(_PAUSE_SECONDS)

    def _offsets_now(self, *specs: Any) -> list[dict[int, int]]:
        """One request for all partitions of a broker, and all of them at once."""
        library, admin = client_library(_BY), self._client()
        committed = library.IsolationLevel.READ_COMMITTED
        places = [library.TopicPartition(self.topic, partition) for partition in self.partitions()]
        asked = [
            admin.list_offsets(dict.fromkeys(places, spec), isolation_level=committed, request_timeout=_ANSWER_SECONDS)
            for spec in specs
        ]
        return [
            {place.partition: int(future.result(_ANSWER_SECONDS).offset) for place, future in futures.items()}
            for futures in asked
        ]

    def _client(self) -> Any:
        if self._admin is None:
            settings = self.servers.configuration(_BY, reconnect_backoff_max_ms=1_000)
            self._admin = admin_library(_BY).AdminClient(settings)
        return self._admin

    def unreachable(self, why: UnreachableError) -> InputError:
        return InputError(
            f"no broker answers at {self.servers} about topic '{self.topic}'"
            f" within {counted(int(_ANSWER_SECONDS), 'second')}: {why}",
            cure="check that the addresses, tls= and sasl= are right and that a broker runs",
        )
