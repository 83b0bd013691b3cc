"""Sources: where the rows of a pipeline come from, for `pipeline.source(name, source)`.

`files`, `kafka`, `database`, `postgres_changes`, `delta`, `iceberg`, `push`, `mqtt`, `pstream`, `replay`, `generator`
and `memory` make one. `Crash` and `Fail` are faults among the items of a memory source, for tests. A source of your own
is a subclass of `Source`: its `take` plans what is read next, as slices, and its `read` turns a slice into chunks of
rows.
"""

import typing as _typing

from holdfast.connect.base import DEAD_LETTER_SCHEMA, BadRows, Chunk, Marks, Position, Slice, Source, Take
from holdfast.connect.sources.database_table import database
from holdfast.connect.sources.delta_source import delta
from holdfast.connect.sources.files import files
from holdfast.connect.sources.generator import generator
from holdfast.connect.sources.iceberg_source import iceberg
from holdfast.connect.sources.kafka_source import kafka
from holdfast.connect.sources.memory import Crash, Fail, memory
from holdfast.connect.sources.mqtt_source import mqtt
from holdfast.connect.sources.postgres_changes import postgres_changes
from holdfast.connect.sources.push import push
from holdfast.connect.sources.replay import replay
from holdfast.pstream.link import pstream
from holdfast.renamed import attribute_error as _attribute_error

__all__ = [
    "DEAD_LETTER_SCHEMA",
    "BadRows",
    "Chunk",
    "Crash",
    "Fail",
    "Marks",
    "Position",
    "Slice",
    "Source",
    "Take",
    "database",
    "delta",
    "files",
    "generator",
    "iceberg",
    "kafka",
    "memory",
    "mqtt",
    "postgres_changes",
    "pstream",
    "push",
    "replay",
]


if not _typing.TYPE_CHECKING:  # a type checker would take it to say that every name is here

    def __getattr__(name):
        raise _attribute_error(name, "hf.source", "module 'holdfast.source'")
