"""What a new stateless operator takes: one module. `null_drop.py` goes all the way with that. Nobody else asks which
stateless operator it has before it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from null_drop import drop_nulls

import holdfast as hf
from harness import Cut, run
from holdfast.graph.stateless.stateless_operator import Stateless
from holdfast.plan.column_needs import columns_read, first_filters
from holdfast.plan.places import by_rule, cuts_of, lossy_at, places_of
from holdfast.plan.program import compile_program, keeps_time
from strategies import examples

ROOT = Path(hf.__file__).parent
Row = tuple[int, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubled(Stateless):
    """An operator that says of itself only what it must."""

    def apply(self, frames: Sequence[pl.LazyFrame]) -> pl.LazyFrame:
        return frames[0].with_columns(pl.col("v") * 2)

    def explain(self) -> list[str]:
        return ["twice v"]


def doubled(stream: hf.Stream) -> hf.Stream:
    return stream.pipeline.add(Doubled(name="doubled", inputs=(stream.name,), schema=stream.schema, time=stream.time))


def source(pipeline: hf.Pipeline, rows: Sequence[Row] = ()) -> hf.Stream:
    schema = {"ts": pl.Int64, "v": pl.Int64}
    frame = pl.DataFrame(rows, schema=schema, orient="row").with_columns(blob=pl.lit("x"), price=pl.lit(0.5))
    return pipeline.source("in", hf.source.memory(frame), event_time="ts", time_unit="s")


def declare(rows: Sequence[Row] = ()) -> hf.Pipeline:
    """Between two joins and a window the operator gets rows with their hidden bounds, too."""
    pipeline = hf.Pipeline("p")
    clean = drop_nulls(source(pipeline, rows), "v")
    sums = doubled(clean).window(hf.window.tumbling("4s"), name="window").agg(s=hf.sum("v"), n=hf.count())
    drop_nulls(sums, "s", name="sums").with_columns(half=pl.col("s") // 2).select("window_start", "half", "n").sink(
        "out", hf.sink.collect()
    )
    return pipeline


cuts = st.builds(Cut, rows=st.integers(1, 9), tasks=st.integers(1, 3))


@examples(20)
@given(st.lists(st.none() | st.integers(-5, 5), max_size=30), cuts)
def test_it_runs_however_the_input_is_cut(values: list[int | None], cut: Cut) -> None:
    windows: dict[int, list[int]] = {}
    for at, value in enumerate(values):
        if value is not None:
            windows.setdefault(at // 4 * 4, []).append(value)
    expected = [(start, sum(found), len(found)) for start, found in windows.items()]
    assert sorted(run(declare(list(enumerate(values))), cut).rows()) == sorted(expected)


def test_it_is_explained() -> None:
    text = hf.explain(declare())
    assert "drop_nulls: rows without nulls in v" in text
    assert "doubled: twice v" in text


def test_what_it_says_of_itself_is_used_by_planning() -> None:
    pipeline = hf.Pipeline("p")
    rows = source(pipeline)
    drop_nulls(rows, "v").select("ts", "price").sink("out", hf.sink.collect())
    program = compile_program(pipeline)
    [node] = program.sources
    assert columns_read(program.nodes, node) == ("ts", "v", "price")
    assert [str(expr) for expr in first_filters(program.nodes, "in")] == [
        str(pl.all_horizontal([pl.col("v").is_not_null()]))
    ]
    assert keeps_time(program, node, "drop_nulls")


def test_a_p_stream_is_cut_after_it_if_it_makes_the_rows_fewer() -> None:
    pipeline = hf.Pipeline("p")
    kept = source(pipeline).persist("kept", lossy={"price": 0.1})
    doubled(drop_nulls(kept, "v")).sink("out", hf.sink.collect())
    nodes = pipeline.nodes
    [cut] = cuts_of(nodes)
    places = places_of(nodes, cut)
    assert list(dict.fromkeys(place.after for place in places)) == ["in", "drop_nulls", "doubled"]
    chosen = by_rule(nodes, places)
    assert chosen.after == "drop_nulls"
    assert [lossy.column for lossy in lossy_at(nodes, cut, chosen)] == ["price"]


def test_what_it_does_not_say_is_not_promised() -> None:
    pipeline = hf.Pipeline("p")
    kept = source(pipeline).persist("kept", lossy={"price": 0.1})
    doubled(kept).select("v", "price", "ts").sink("out", hf.sink.collect())
    nodes = pipeline.nodes
    assert columns_read(nodes, nodes["in"]) == ("ts", "v", "blob", "price")
    [cut] = cuts_of(nodes)
    assert by_rule(nodes, places_of(nodes, cut)).after == "in"
    [moved] = [place for place in places_of(nodes, cut) if place.after == "doubled"][:1]
    assert lossy_at(nodes, cut, moved) == ()

    pipeline = hf.Pipeline("q")
    doubled(source(pipeline)).sink("out", hf.sink.collect())
    program = compile_program(pipeline)
    assert not keeps_time(program, program.sources[0], "doubled")


# Nobody asks which stateless operator it has before it.


def _concrete() -> set[str]:
    """The classes of stateless operators in the product."""
    found: set[str] = set()
    trees = [ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = {node.name: {ast.unparse(base).partition("[")[0] for base in node.bases} for node in classes}
    while new := {name for name, above in bases.items() if above & ({"Stateless"} | found)} - found:
        found |= new
    return found


def _asked(tree: ast.AST, classes: set[str]) -> Iterator[str]:
    """The classes that a module imports from elsewhere: without the name, it cannot ask for them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (name.name for name in node.names if name.name in classes)
        elif isinstance(node, ast.Attribute) and node.attr in classes and ast.unparse(node.value) not in ("pl", "sa"):
            yield node.attr


def test_no_module_asks_for_a_stateless_operator_by_its_class() -> None:
    classes = _concrete()
    assert {
        "Filter",
        "Select",
        "WithColumns",
        "MapBatches",
        "Explode",
        "Union",
        "JoinTable",
        "RefreshedJoin",
    } <= classes
    places = [*ROOT.rglob("*.py"), *Path(__file__).parents[2].glob("lab/src/**/*.py")]
    found = {str(path): list(_asked(ast.parse(path.read_text()), classes)) for path in places}
    assert {path: asked for path, asked in found.items() if asked} == {}


@pytest.mark.parametrize(
    "text",
    [
        "from holdfast.graph.stateless.row_filter import Filter\nisinstance(node, Filter)",
        "from holdfast.graph.stateless.row_filter import Filter as Kept",
        "import holdfast.graph.stateless.row_filter as rows\nmatch node:\n    case rows.Filter(): ...",
    ],
)
def test_a_module_that_asks_is_found(text: str) -> None:
    assert list(_asked(ast.parse(text), {"Filter"})) == ["Filter"]
