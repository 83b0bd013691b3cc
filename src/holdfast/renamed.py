"""Names that are called otherwise here: those of version 0.1, and the words of Spark and Polars for what Holdfast has.
Whoever uses one is told what to write.

The tables are the only list of them: the errors here, `docs/migration.md` and its test go by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["CALLBACKS", "FUNCTIONS", "METHODS", "WORDS", "attribute_error", "cure_for"]

FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        **{name: f"source.{name}" for name in ("files", "generator", "memory", "pstream", "push", "replay")},
        **{name: f"source.{name}" for name in ("Chunk", "Crash", "Fail", "Slice", "Source", "Take")},
        **{name: f"sink.{name}" for name in ("arrow", "collect", "console", "database", "for_each_epoch")},
        **{name: f"sink.{name}" for name in ("ndjson", "parquet", "DriverSink", "Sink", "TaskSink")},
        **{name: f"window.{name}" for name in ("session", "sliding", "tumbling")},
        "count_window": "window.count",
        **{name: f"checkpoint.{name}" for name in ("delta", "eventual", "interval", "none")},
        "open_session": "open_spark",
        "close_session": "close_spark",
        "cluster": "spark_cluster",
        "read_state": "state",
        "RunStatus": "RunSummary",
    }
)
"""What stood in `holdfast` itself, and where it is now."""

METHODS: Mapping[str, str] = MappingProxyType({"map": "map_batches", "flat_map": "map_batches"})
"""The same of the methods of a stream."""

CALLBACKS: Mapping[str, str] = MappingProxyType(
    {
        "on_epoch": "epoch_committed",
        "on_recovery": "recovered",
        "on_checkpoint": "checkpoint_copied",
        "on_scaling": "scaling_decided",
    }
)
"""What `hf.run` took as functions, and the method of an observer that is called instead."""


_KEYED = ".key_by('user'), and then .window(...).agg(...) or .process(...)"
_WATERMARK = "lateness= of the source: pipeline.source(..., event_time='at', lateness='10s')"
_OUTPUT = ".sink('name', hf.sink.parquet('out')), and hf.run(pipeline)"
_AGGREGATE = ".window(hf.window.tumbling('1 min')).agg(n=hf.count())"
_PROCESS = ".key_by('user').process(function, state={...}, output={...}, ttl='1h')"
_UNIQUE = ".deduplicate('id', within='10 min')"
_LOOK = ".sink('look', hf.sink.console()), or hf.sink.collect() to get the rows"
_ORDER = "hf.top_k('x', 10) in a window: a stream has no order and no end"
_FROM_SPARK = "pipeline.from_spark('name', spark.readStream.format(...).load())"
_KAFKA = "pipeline.source('name', hf.source.kafka(servers, topic, schema))"
_OWN_SINK = "hf.sink.for_each_epoch(function), which gets each epoch's rows"

WORDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "Stream": {
            **dict.fromkeys(("group_by", "groupBy", "groupby", "keyBy"), _KEYED),
            **dict.fromkeys(("withWatermark", "with_watermark"), _WATERMARK),
            **dict.fromkeys(("writeStream", "write_stream", "write", "to_sink"), _OUTPUT),
            **dict.fromkeys(("agg", "count", "group_by_dynamic", "rolling"), _AGGREGATE),
            **dict.fromkeys(("withColumn", "withColumns", "assign"), ".with_columns(x=...)"),
            "withColumnRenamed": ".rename({'old': 'new'})",
            "where": ".filter(...)",
            **dict.fromkeys(("unionAll", "unionByName", "concat"), ".union(other)"),
            **dict.fromkeys(("dropDuplicates", "drop_duplicates", "distinct", "unique"), _UNIQUE),
            "dropDuplicatesWithinWatermark": _UNIQUE,
            **dict.fromkeys(("mapInPandas", "mapInArrow", "flatMap", "apply", "transform"), ".map_batches(function)"),
            **dict.fromkeys(("foreachBatch", "foreach", "for_each"), f".sink('name', sink) with {_OWN_SINK}"),
            **dict.fromkeys(("sort", "orderBy", "order_by", "limit", "head"), _ORDER),
            **dict.fromkeys(("show", "collect", "toPandas", "to_pandas"), _LOOK),
            **dict.fromkeys(("columns", "dtypes", "printSchema"), ".schema"),
            **dict.fromkeys(("run", "start"), "hf.run(pipeline) or hf.start(pipeline)"),
        },
        "KeyedStream": {
            **dict.fromkeys(("count", "sum", "min", "max", "mean", "avg"), _AGGREGATE),
            **dict.fromkeys(("applyInPandasWithState", "transformWithState", "transformWithStateInPandas"), _PROCESS),
            **dict.fromkeys(("flatMapGroupsWithState", "mapGroupsWithState", "apply", "map_batches"), _PROCESS),
        },
        "Pipeline": {
            "run": "hf.run(pipeline)",
            "start": "hf.start(pipeline)",
            "explain": "hf.explain(pipeline)",
            "sink": "stream.sink('name', sink)",
            **dict.fromkeys(("readStream", "read_stream"), _FROM_SPARK),
            **dict.fromkeys(("from_kafka", "kafka"), _KAFKA),
        },
        "hf": {
            **dict.fromkeys(
                ("col", "lit", "when", "expr", "functions", "F"), "an expression of Polars, as pl.col('x')"
            ),
            "avg": "hf.mean('x')",
            "stddev": "hf.std('x')",
            "variance": "hf.var('x')",
            "len": "hf.count()",
            "approx_count_distinct": "hf.approx_distinct('x')",
            **dict.fromkeys(("countDistinct", "n_unique"), "hf.count_distinct('x')"),
            **dict.fromkeys(("percentile", "percentile_approx"), "hf.quantile('x', 0.95)"),
            **dict.fromkeys(("array_agg", "implode"), "hf.collect_list('x')"),
            "max_by": "hf.arg_max('by', 'x')",
            "min_by": "hf.arg_min('by', 'x')",
            **dict.fromkeys(("readStream", "from_spark"), _FROM_SPARK),
        },
        "hf.source": {
            **dict.fromkeys(("kinesis", "pulsar", "spark"), _FROM_SPARK),
            **dict.fromkeys(("csv", "json", "ndjson", "parquet", "arrow"), "hf.source.files('in', format=...)"),
            **dict.fromkeys(("socket", "tcp"), "hf.source.push(schema, tcp='127.0.0.1:9999')"),
            **dict.fromkeys(("http", "flight"), "hf.source.push(schema, http='127.0.0.1:8080')"),
            "rate": "hf.source.generator(function, schema)",
        },
        "hf.sink": {
            "csv": "hf.sink.parquet('out'), hf.sink.ndjson('out') or hf.sink.arrow('out')",
            "json": "hf.sink.ndjson('out')",
            "files": "hf.sink.parquet('out')",
            **dict.fromkeys(("foreach", "foreach_batch", "foreachBatch"), _OWN_SINK),
            **dict.fromkeys(("jdbc", "postgres", "postgresql", "sqlite", "sql"), "hf.sink.database(...)"),
            "memory": "hf.sink.collect()",
            **dict.fromkeys(("print", "stdout"), "hf.sink.console()"),
        },
        "hf.window": {
            **dict.fromkeys(("hopping", "hop", "slide"), "hf.window.sliding('1 min', '10s')"),
            **dict.fromkeys(("tumble", "fixed", "window"), "hf.window.tumbling('1 min')"),
            **dict.fromkeys(("session_window", "sessions"), "hf.window.session('5 min')"),
        },
    }
)
"""What others call what is here: by whom it was asked for, what to write."""


def cure_for(name: str, renamed: Mapping[str, str], owner: str) -> str | None:
    """What to write instead of a name that `owner` had in 0.1, or that others have for it; None of any other name."""
    if name in renamed:
        return f"{owner}.{name} is {owner}.{renamed[name]} since 0.2"
    word = WORDS.get(owner, {}).get(name)
    return None if word is None else f"there is no {owner}.{name}: write {word}"


def attribute_error(name: str, owner: str, what: str) -> AttributeError:
    """What to raise where `owner`, which Python calls `what`, has nothing of that name."""
    return AttributeError(cure_for(name, {}, owner) or f"{what} has no attribute '{name}'")
