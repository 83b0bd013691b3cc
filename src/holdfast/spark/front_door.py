"""The data source "holdfast" of Spark: outputs, p-streams and state as DataFrames, and streaming queries that write to
a p-stream.

What is read is said by options: `path`, or `store` with `stream`, or `store` with `pipeline` and `operator`. The source
itself runs in Python processes that Spark starts next to the driver, and its readers and writers in those of tasks.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter
from pyspark.sql.types import StructType

from holdfast.connect.object_store.bucket import bucket_at
from holdfast.connect.sinks.object_output import ObjectOutput
from holdfast.connect.spark_types import spark_schema
from holdfast.errors import DeclarationError
from holdfast.spark.output_reads import LocalOutput, OutputReader, OutputStreamReader, PublishedOutput, output_schema
from holdfast.spark.state_reads import StateReader, state_schema
from holdfast.spark.stream_reads import PStreamReader, PStreamStreamReader, opened_source
from holdfast.spark.stream_writes import PStreamWriter
from holdfast.store.location import local_path

__all__ = ["HoldfastSource"]

_KNOWN = {"path", "store", "meta", "stream", "pipeline", "operator", "epoch", "at", "reader", "maxrows", "budget"}
_OF_SPARK = ("checkpointlocation", "queryname", "asyncprogress", "__")
"""What Spark's own options begin with, which it hands on."""
_STORAGE = "storage."
_WAYS = (
    '.load("/data/out/results") or .load("s3://shop/results") for the output of a file sink, .option("store", ...)'
    '.option("stream", ...) for a p-stream, or .option("store", ...).option("pipeline", ...).option("operator", ...)'
    " for state"
)


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of a read or write, checked."""

    given: dict[str, str]

    @staticmethod
    def of(options: MutableMapping[str, str]) -> _Options:
        given = {name.lower(): value for name, value in options.items()}
        unknown = sorted(
            name for name in given if name not in _KNOWN and not name.startswith(_OF_SPARK) and not _is_storage(name)
        )
        if unknown:
            raise DeclarationError(
                f"the format 'holdfast' has no option '{unknown[0]}'",
                cure=f"its options are {', '.join(sorted(_KNOWN))}, and storage.NAME for a bucket",
            )
        return _Options(given)

    def need(self, name: str, what: str) -> str:
        if not self.given.get(name):
            raise DeclarationError(f"the option '{name}' is missing", cure=f'give .option("{name}", ...): {what}')
        return self.given[name]

    @property
    def store(self) -> Path:
        return _absolute("store", self.need("store", "the directory of the store"))

    @property
    def meta(self) -> str | None:
        return self.given.get("meta")

    @property
    def output(self) -> PublishedOutput:
        """In a directory, or in a bucket, to which the options that begin with "storage." say the way."""
        options = {name.removeprefix(_STORAGE): value for name, value in self.given.items() if _is_storage(name)}
        remote = bucket_at(self.given["path"], options or None, "the format 'holdfast'")
        return LocalOutput(_absolute("path", self.given["path"])) if remote is None else ObjectOutput(*remote)

    @property
    def kind(self) -> str:
        """What is read: "path", "stream" or "operator"."""
        found = [name for name in ("path", "stream", "operator") if self.given.get(name)]
        if len(found) != 1:
            said = f"{' and '.join(found)} were given together" if found else "nothing says what to read"
            raise DeclarationError(f"the format 'holdfast': {said}", cure=f"give {_WAYS}")
        return found[0]

    @property
    def epoch(self) -> int | None:
        text = self.given.get("epoch")
        if text is not None and not text.isdecimal():
            raise DeclarationError(f"epoch='{text}' is not an epoch", cure="give its number, from 1 on")
        return None if text is None else int(text)

    def number(self, name: str, default: int | None) -> int | None:
        text = self.given.get(name)
        if text is not None and not (text.isdecimal() and int(text)):
            raise DeclarationError(f"{name}='{text}' is not a number", cure="give a whole number above 0")
        return default if text is None else int(text)


def _is_storage(name: str) -> bool:
    return name.startswith(_STORAGE) and name != _STORAGE


def _absolute(option: str, text: str) -> Path:
    path = local_path(text, option)
    if not path.is_absolute():
        raise DeclarationError(
            f"the option {option}='{text}' is a relative path, and Spark opens it from other processes",
            cure=f'give an absolute path, e.g. .option("{option}", os.path.abspath("{text}"))',
        )
    return path


class HoldfastSource(DataSource):
    """See the module. Spark makes one for each read and write."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._asked = _Options.of(options)

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> StructType:
        asked = self._asked
        match asked.kind:
            case "path":
                found = output_schema(asked.output)
            case "stream":
                found = opened_source(asked.store, asked.given["stream"], asked.meta).schema
            case _:
                found = state_schema(self._state())
        columns: StructType = spark_schema(found)
        return columns

    def _state(self) -> StateReader:
        asked = self._asked
        pipeline = asked.need("pipeline", "the pipeline that has the operator")
        return StateReader(
            asked.store, asked.meta, pipeline, asked.given["operator"], asked.epoch, asked.given.get("at")
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        asked = self._asked
        match asked.kind:
            case "path":
                return OutputReader(asked.output, schema)
            case "stream":
                return PStreamReader(asked.store, asked.given["stream"], asked.meta, schema)
            case _:
                return self._state().fixed(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        asked = self._asked
        match asked.kind:
            case "path":
                return OutputStreamReader(asked.output, schema)
            case "stream":
                reader = asked.need("reader", "a name for this query, under which the p-stream is kept for it")
                rows = asked.number("maxrows", None)
                return PStreamStreamReader(asked.store, asked.given["stream"], asked.meta, schema, reader, rows)
            case _:
                raise DeclarationError(
                    "state cannot be read as a stream", cure="read it with spark.read, or stream an output or p-stream"
                )

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        asked = self._asked
        stream = asked.need("stream", "the name of the p-stream that is written to")
        budget = asked.number("budget", 16_000_000_000)
        return PStreamWriter(asked.store, stream, asked.meta, schema, budget)
