"""Mistakes that are easily made: each is refused where it is declared, by an error that says what to write instead."""

from __future__ import annotations

import re
from datetime import timedelta

import polars as pl
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

import holdfast as hf
from harness import run
from holdfast.errors import DeclarationError, HoldfastError, OperatorError, UnknownColumnError
from holdfast.renamed import WORDS

FRAME = pl.DataFrame({"ts": [1, 2, 3], "name": ["x", "y", "x"], "amount": [1.0, 2.0, 3.0]})
CATEGORIES = pl.col("name").cast(pl.Categorical)


def rows_of(frame: pl.DataFrame = FRAME, **options) -> hf.Stream:
    given = {"event_time": "ts", "time_unit": "s", **options}
    return hf.Pipeline("mistakes").source("in", hf.source.memory(frame), **given)


def test_a_keyword_of_filter_is_a_condition_on_that_column():
    wanted = rows_of().filter(pl.col("amount") > 1, name="x").node
    assert FRAME.filter(wanted.predicate)["ts"].to_list() == [3]
    assert wanted.name == "filter"
    assert rows_of().filter(name="x").node.name == "filter"


def test_a_name_given_to_filter_goes_behind_it():
    rows = rows_of().drop("name")
    with pytest.raises(UnknownColumnError) as caught:
        rows.filter(pl.col("amount") > 1, name="big")
    assert ".named('big')" in caught.value.cure
    with pytest.raises(UnknownColumnError, match="unknown column 'amuont'"):
        rows.filter(amuont=1)


@pytest.mark.parametrize(
    "expr",
    [
        CATEGORIES.to_physical(),
        CATEGORIES.cat.physical() + 1,
        pl.when(pl.col("ts") > 1).then(CATEGORIES.to_physical()),
        pl.concat_list("name").list.eval(pl.element().cast(pl.Categorical).to_physical()),
    ],
)
def test_codes_of_categories_are_refused(expr):
    with pytest.raises(DeclarationError, match="differ from process to process") as caught:
        rows_of().with_columns(code=expr)
    assert "pl.Enum" in caught.value.cure


def test_codes_of_a_categorical_column_are_refused_and_those_of_an_enum_are_not():
    rows = rows_of(FRAME.with_columns(c=CATEGORIES, e=pl.col("name").cast(pl.Enum(["x", "y"]))))
    with pytest.raises(DeclarationError, match="differ from process to process"):
        rows.with_columns(code=pl.col("c").to_physical())
    made = rows.with_columns(code=pl.col("e").to_physical(), at=pl.col("ts").to_physical(), h=pl.col("c").hash())
    assert made.schema["code"].is_integer()


class Mute(hf.sink.DriverSink):
    pass


class Unpromising(hf.sink.TaskSink):
    def prepare(self, rows, *, epoch, part, attempt):
        return {}

    def publish(self, epoch, receipts): ...

    def sweep(self, before_epoch, right): ...


def pipeline() -> hf.Pipeline:
    return hf.Pipeline("mistakes")


def windowed() -> hf.WindowedStream:
    return rows_of().window(hf.window.tumbling("1s"))


def processed(**options) -> hf.Stream:
    given = {"state": {}, "output": {"ts": pl.Int64, "name": pl.String}, "keep_forever": True, **options}
    return rows_of().key_by("name").process(lambda rows, state, context: hf.Step(), **given)


MISTAKES = {
    # sinks and sources
    "a path as a sink": (lambda: rows_of().sink("o", "out"), "'out' is not a sink", "hf.sink.parquet('out')"),
    "a sink not made": (lambda: rows_of().sink("o", hf.sink.parquet), "creates a sink", "hf.sink.parquet(...)"),
    "a sink before its name": (lambda: rows_of().sink(hf.sink.collect(), "o"), "comes first", ".sink('name', sink)"),
    "a sink that does nothing": (lambda: rows_of().sink("o", Mute()), "Mute does nothing", "before_commit"),
    "a sink without a guarantee": (lambda: rows_of().sink("o", Unpromising()), "what it guarantees", "`guarantee`"),
    "a sink's name that is none": (lambda: rows_of().sink(3, hf.sink.collect()), "operator name 3", "letters"),
    "a path as a source": (lambda: pipeline().source("s", "in"), "'in' is not a source", "hf.source.files('in'"),
    "a frame as a source": (lambda: pipeline().source("s", FRAME), "a DataFrame is not", "hf.source.memory(frame)"),
    "a source not made": (lambda: pipeline().source("s", hf.source.memory), "creates a", "hf.source.memory(...)"),
    "a source before its name": (lambda: pipeline().source(hf.source.memory(FRAME), "s"), "comes first", "'name'"),
    "lateness of no time": (lambda: rows_of(event_time=None, time_unit=None, lateness="1s"), "lateness", "event_time="),
    "unit of no time": (lambda: rows_of(event_time=None), "time_unit concerns", "event_time="),
    "no guarantee": (lambda: hf.Pipeline("p", guarantee=hf.Guarantee()), "asks for nothing", "recovery="),
    # schemas and durations
    "an empty schema": (lambda: hf.source.push({}, http="127.0.0.1:0"), "push(): the schema has no", "pl.String"),
    "a type that Spark has": (lambda: hf.source.files("in", "csv", "a MAP<INT,INT>"), "'a MAP<INT'", "pl.String"),
    "a schema without types": (lambda: hf.source.files("in", "csv", ["a"]), "it is a list", "pl.String"),
    "an empty result": (lambda: rows_of().map_batches(lambda rows: rows, schema={}), "has no column", "pl.String"),
    "state without types": (lambda: processed(state=["a"]), "process(state=...)", "pl.String"),
    "no duration to settle": (lambda: hf.source.files("in", "csv", {"a": pl.Int64}, settle="x"), "settle='x'", '"10s"'),
    "a negative pause": (
        lambda: hf.source.push({"a": pl.Int64}, http="127.0.0.1:0", idle=-1), "idle=-1 is negative", "0 or more",
    ),
    "no latency": (lambda: hf.RunOptions(latency="soon"), "latency='soon'", '"500ms"'),
    "a trigger of Spark": (lambda: hf.RunOptions(trigger="availableNow"), "availableNow", 'trigger="available now"'),
    "a trigger of old": (lambda: hf.RunOptions(trigger="once"), "once", 'trigger="available now"'),
    # runs
    "a file to run": (lambda: hf.run("x.py"), "hf.run was given 'x.py'", "`holdfast run x.py`"),
    "a stream to run": (lambda: hf.run(rows_of()), "hf.run was given a Stream", "stream.pipeline"),
    "a stream to start": (lambda: hf.start(rows_of()), "hf.start was given a Stream", "stream.pipeline"),
    "a stream to explain": (lambda: hf.explain(rows_of()), "hf.explain was given a Stream", "stream.pipeline"),
    "a class as observer": (lambda: hf.run(pipeline(), observer=hf.Observer), "is a class", "observer=Observer()"),
    "a function as observer": (lambda: hf.run(pipeline(), observer=print), "not an observer", "hf.Observer"),
    # aggregates, windows and tables
    "a function as a column": (lambda: rows_of().select(max), "not a Polars expression", "pl.col('x') for F.col('x')"),
    "an aggregate without a name": (lambda: windowed().agg(hf.count()), "without a name", ".agg(n=hf.count())"),
    "an aggregate of Polars": (
        lambda: windowed().agg(x=pl.col("amount").sum()), "'x' is not", "write x=hf.sum('amount')",
    ),
    "a count of Polars": (lambda: windowed().agg(x=pl.len()), "'x' is not", "write x=hf.count()"),
    "an aggregate not made": (lambda: windowed().agg(n=hf.count), "'n' is not", "n=hf.count()"),
    "half a row": (lambda: hf.window.count(2.5), "2.5 is not a number of rows", "whole number"),
    "a dict as memory": (lambda: hf.source.memory({"a": [1]}), "neither a DataFrame", "pl.DataFrame"),
    "a dict as a table": (lambda: rows_of().join_table({"ts": [1]}, on="ts"), "the table is a dict", "pl.DataFrame"),
    "a table without the key": (
        lambda: rows_of().join_table(pl.DataFrame({"t": [1]}), on="ts"), "'ts' of the table", "the table has t Int64",
    ),
    "least of lists": (
        lambda: rows_of(FRAME.with_columns(l=pl.concat_list("ts"))).window(hf.window.tumbling("1s")).agg(x=hf.min("l")),
        "min of l",
        ".list.min()",
    ),
    "distinct expressions": (lambda: hf.approx_distinct(pl.col("a") + 1), "approx_distinct of", "with_columns"),
    "an aggregate of a number": (lambda: windowed().agg(x=hf.sum(3)), "an aggregate of 3", "hf.sum('amount')"),
    "a function as names": (lambda: rows_of().rename(str.upper), "names are a method", "{'old': 'new'}"),
    "a text as a time": (lambda: rows_of().cast({"name": pl.Date}), "cannot be cast to Date", "strptime(pl.Date"),
    "a cast of nothing": (lambda: rows_of().cast({"nam": pl.Int64}), "unknown column 'nam'", "did you mean 'name'"),
    "a type that is none": (lambda: rows_of().cast({"name": "text"}), "cast(): the schema", "Polars type"),
    "two columns of a name": (lambda: rows_of().rename({"ts": "name"}), "operator 'rename'", "alias"),
    # event time
    "a window behind a process": (
        lambda: processed().filter(pl.col("ts") > 0).window(hf.window.tumbling("1s")).agg(n=hf.count()),
        "'filter' has no event time",
        ".process(..., event_time='...')",
    ),
    "a time-to-live behind a process": (
        lambda: processed().drop("ts").key_by("name").process(print, state={}, output={}, ttl="1s"),
        "need one",
        ".process(..., event_time='...')",
    ),
    "a window without the time": (
        lambda: rows_of().drop("ts").filter(name="x").window(hf.window.tumbling("1s")).agg(n=hf.count()),
        "'filter' has no event time",
        "keep the column",
    ),
    "a window without any time": (
        lambda: rows_of(event_time=None, time_unit=None).window(hf.window.tumbling("1s")).agg(n=hf.count()),
        "'in' has no event time",
        "on the source",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_with_what_to_write(mistake):
    make, problem, cure = MISTAKES[mistake]
    with pytest.raises(HoldfastError) as caught:
        make()
    assert problem in str(caught.value)
    assert cure in caught.value.cure


class Own(hf.source.Source):
    """A source as a user may write it; what it answers is given."""

    bounded = True

    def __init__(self, *, start=None, take=None, chunks=None, **schema) -> None:
        self._answers = (start, take, chunks)
        self.schema = schema.get("schema", {"n": pl.Int64, "s": pl.String})

    def start(self):
        return self._answers[0] or {"row": 0}

    def take(self, position, rows, pieces):
        return self._answers[1] or hf.source.Take((hf.source.Slice(0, 2, {}),), {"row": 2}, done=True)

    def read(self, piece):
        return self._answers[2]


GOOD = pl.DataFrame({"s": ["a", "b"], "n": [1, 2]})


def outcome_of(source: hf.source.Source) -> pl.DataFrame:
    made = pipeline()
    made.source("own", source).sink("out", hf.sink.collect())
    return run(made).sinks["out"]


def test_a_source_may_declare_a_dict_and_give_the_columns_in_any_order():
    assert outcome_of(Own(chunks=[hf.source.Chunk(GOOD)])).rows() == [(1, "a"), (2, "b")]


def chunk(**columns: pl.Expr) -> list[hf.source.Chunk]:
    return [hf.source.Chunk(GOOD.with_columns(**columns))]


ANSWERS = {
    "another type": ({"chunks": chunk(n=pl.col("n").cast(pl.Int32))}, "column 'n' as Int32", "declares Int64"),
    "a column too few": ({"chunks": [hf.source.Chunk(GOOD.drop("s"))]}, "without the column 's'", "String"),
    "a column too many": ({"chunks": chunk(x=pl.lit(1))}, "a column 'x'", "does not have"),
    "a frame": ({"chunks": [GOOD]}, "yielded a DataFrame", "hf.source.Chunk(frame)"),
    "None among chunks": ({"chunks": [None]}, "yielded None", "hf.source.Chunk(frame)"),
    "a chunk of a dict": ({"chunks": [hf.source.Chunk({"n": [1]})]}, "a Chunk of a dict", "hf.source.Chunk(frame)"),
    "no chunks": ({"chunks": None}, "read returned None", "hf.source.Chunk(frame)"),
    "a take that is a tuple": ({"take": ((), {})}, "take returned a tuple", "hf.source.Take"),
    "slices that are none": ({"take": hf.source.Take((1,), {})}, "not a tuple of Slice", "hf.source.Slice"),
    "a position with a tuple": ({"take": hf.source.Take((), {"at": (1, 2)}, True)}, "comes back from JSON", "lists"),
    "a position with numbers as keys": ({"start": {1: 2}}, "source's start gives", "text as keys"),
    "a position with a set": ({"start": {"at": {1}}}, "is not JSON", "lists"),
    "a position that is a number": ({"start": 3}, "is a int", "a dict"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_what_a_source_answers_is_held_against_its_contract(answer):
    given, problem, more = ANSWERS[answer]
    with pytest.raises(OperatorError) as caught:
        outcome_of(Own(**given))
    assert caught.value.operator == "own"
    assert problem in str(caught.value)
    assert more in str(caught.value)


def test_a_source_must_say_which_columns_it_has():
    with pytest.raises(DeclarationError, match="does not say which columns"):
        pipeline().source("own", Own(schema=None))
    with pytest.raises(DeclarationError, match="Own: the schema cannot be used"):
        pipeline().source("own", Own(schema=["n"]))


def test_a_schema_in_the_words_of_spark():
    said = hf.source.files("in", "csv", "at LONG, `user` string, t: timestamp").schema
    struct = StructType(
        [StructField("at", LongType()), StructField("user", StringType()), StructField("t", TimestampType())]
    )
    assert said == {"at": pl.Int64, "user": pl.String, "t": pl.Datetime("us", "UTC")}
    assert hf.source.files("in", "csv", struct).schema == said


def test_a_driver_sink_without_a_guarantee_is_explained():
    class Silent(hf.sink.DriverSink):
        def __init__(self) -> None: ...

        def after_commit(self, epoch, rows): ...

    rows = rows_of().sink("o", Silent())
    assert "guarantee: the sink declares none" in hf.explain(rows.pipeline)


def test_durations_are_written_alike_everywhere():
    assert hf.source.push({"a": pl.Int64}, http="127.0.0.1:0", idle="2 minutes").idle == 120
    assert hf.source.files("in", "csv", {"a": pl.Int64}, grow=True, settle="500 ms").arrivals.seconds == 0.5
    options = hf.RunOptions(latency="500ms", max_seconds="1 hour", detection=timedelta(seconds=4), trigger="10 seconds")
    assert (options.latency, options.max_seconds, options.detection) == (0.5, 3600, 4)
    assert options.trigger_seconds == 10


def test_a_store_that_is_a_file_is_refused(tmp_path):
    file = tmp_path / "store"
    file.touch()
    rows = rows_of()
    rows.sink("o", hf.sink.collect())
    for place, problem in ((file, "is a file"), (file / "inside", "its parent is a file")):
        with pytest.raises(HoldfastError, match=problem):
            hf.run(rows.pipeline, store=place)


def test_output_that_is_not_there_is_no_empty_output(tmp_path):
    with pytest.raises(HoldfastError, match="there is no directory"):
        hf.read_output(tmp_path / "noout", "parquet")


OWNERS = {
    "Stream": rows_of,
    "KeyedStream": lambda: rows_of().key_by("name"),
    "Pipeline": pipeline,
    "hf": lambda: hf,
    "hf.source": lambda: hf.source,
    "hf.sink": lambda: hf.sink,
    "hf.window": lambda: hf.window,
}


@pytest.mark.parametrize("owner", WORDS)
def test_a_word_of_others_is_answered_with_ours(owner):
    for name, word in WORDS[owner].items():
        with pytest.raises(AttributeError, match=re.escape(f"there is no {owner}.{name}: write {word}")):
            getattr(OWNERS[owner](), name)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        OWNERS[owner]().nonsense  # noqa: B018
