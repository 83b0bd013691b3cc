"""The servers that a campaign's rows come from and go to, each started for it and gone afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from holdfast_lab.chaos.database_server import DatabaseServer
from holdfast_lab.chaos.kafka_server import KafkaServer
from holdfast_lab.chaos.s3_server import make_bucket, serve_process

__all__ = ["BUCKET", "ConnectorServers", "open_servers"]

BUCKET = "campaign"


@dataclass(frozen=True, slots=True)
class ConnectorServers:
    """Where they are, by name. The broker can be killed."""

    addresses: dict[str, str] = field(default_factory=dict)
    broker: KafkaServer | None = None


@contextmanager
def open_servers(names: set[str], say: Callable[[str], None]) -> Iterator[ConnectorServers]:
    """Those of the connectors that have one; what others name are files."""
    addresses: dict[str, str] = {}
    broker: KafkaServer | None = None
    with ExitStack() as stack:
        if "kafka" in names:
            broker = stack.enter_context(KafkaServer(say=say))
            addresses["kafka"] = broker.address
        if "postgresql" in names:
            addresses["postgresql"] = stack.enter_context(DatabaseServer()).url
        if "s3" in names:
            server = stack.enter_context(serve_process())
            make_bucket(server, BUCKET)
            addresses["s3"] = server.endpoint
        yield ConnectorServers(addresses, broker)
