"""Kafka: its brokers and the formats of messages, for `hf.source.kafka(...)` and `hf.sink.kafka(...)`.

`servers` says how to reach and trust brokers, with TLS, SASL and secrets by reference. `avro` and `protobuf` are
formats whose schemas are in a schema registry, `registry` says how to reach one.
"""

import typing as _typing

from holdfast.connect.kafka.avro_messages import avro
from holdfast.connect.kafka.kafka_servers import servers
from holdfast.connect.kafka.protobuf_messages import protobuf
from holdfast.connect.kafka.schema_registry import registry
from holdfast.renamed import attribute_error as _attribute_error

__all__ = ["avro", "protobuf", "registry", "servers"]


if not _typing.TYPE_CHECKING:  # a type checker would take it to say that every name is here

    def __getattr__(name):
        raise _attribute_error(name, "hf.kafka", "module 'holdfast.kafka'")
