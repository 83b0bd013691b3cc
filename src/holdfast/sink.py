"""Sinks: where the rows of a pipeline go, for `stream.sink(name, sink)`.

`parquet`, `ndjson` and `arrow` write files, `database`, `delta` and `iceberg` write to a table, `kafka` to a topic;
`console`, `collect` and `for_each_epoch` are for results that are small. A sink of your own is a subclass of `TaskSink`
(rows are written where they are made) or of `DriverSink` (rows come to the driver).
"""

import typing as _typing

from holdfast.connect.base import DriverSink, Owner, Receipt, Sink, TaskSink
from holdfast.connect.sinks.database import database
from holdfast.connect.sinks.delta_sink import delta
from holdfast.connect.sinks.driver_sinks import CollectSink, collect, console, for_each_epoch
from holdfast.connect.sinks.file_sink import arrow, ndjson, parquet
from holdfast.connect.sinks.iceberg_sink import iceberg
from holdfast.connect.sinks.kafka_sink import kafka
from holdfast.connect.sinks.rhythm import Rhythm
from holdfast.renamed import attribute_error as _attribute_error
from holdfast.store import Right

__all__ = [
    "CollectSink",
    "DriverSink",
    "Owner",
    "Receipt",
    "Rhythm",
    "Right",
    "Sink",
    "TaskSink",
    "arrow",
    "collect",
    "console",
    "database",
    "delta",
    "for_each_epoch",
    "iceberg",
    "kafka",
    "ndjson",
    "parquet",
]


if not _typing.TYPE_CHECKING:  # a type checker would take it to say that every name is here

    def __getattr__(name):
        raise _attribute_error(name, "hf.sink", "module 'holdfast.sink'")
