"""Sources and sinks: how rows come into a pipeline and leave it.

Sources: `files`, `push`, `replay`, `generator`, `memory` (with the faults `Crash` and `Fail` for tests). Sinks:
`parquet`, `ndjson`, `arrow`, `database`, `console`, `collect`, `for_each_epoch`; `read_output` and `published_epochs`
read what the file sinks have published. `base` holds the contracts for connectors of your own.
"""

from holdfast.connect.base import (
    DEAD_LETTER_SCHEMA,
    BadRows,
    Chunk,
    DriverSink,
    Owner,
    Position,
    Receipt,
    Sink,
    Slice,
    Source,
    Take,
    TaskSink,
)
from holdfast.connect.database import DatabaseSink, database
from holdfast.connect.driver_sinks import CollectSink, collect, console, for_each_epoch
from holdfast.connect.file_sink import FileSink, arrow, ndjson, parquet, published_epochs, read_output
from holdfast.connect.files import files
from holdfast.connect.generator import generator
from holdfast.connect.memory import Crash, Fail, memory
from holdfast.connect.push import PushSource, push
from holdfast.connect.replay import replay

__all__ = [
    "DEAD_LETTER_SCHEMA",
    "BadRows",
    "Chunk",
    "CollectSink",
    "Crash",
    "DatabaseSink",
    "DriverSink",
    "Fail",
    "FileSink",
    "Owner",
    "Position",
    "PushSource",
    "Receipt",
    "Sink",
    "Slice",
    "Source",
    "Take",
    "TaskSink",
    "arrow",
    "collect",
    "console",
    "database",
    "files",
    "for_each_epoch",
    "generator",
    "memory",
    "ndjson",
    "parquet",
    "published_epochs",
    "push",
    "read_output",
    "replay",
]
