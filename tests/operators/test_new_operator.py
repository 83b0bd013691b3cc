"""What a new stateful operator takes: one module and a line in the list. `distinct.py` goes all the way with that."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from distinct import Distinct, Distincts, distinct
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from harness import Cut, run
from holdfast.durability.empty_replay import forgets
from holdfast.errors import DeclarationError, PipelineChangedError
from holdfast.hidden_columns import POSITION
from holdfast.operators import registry
from holdfast.operators.step import Batch, StepContext, StepInput
from holdfast.plan.footprint_streams import check_eventual
from holdfast.plan.program import compile_program
from holdfast.plan.shape import check_shape, shape_of_program
from holdfast.state.inspection import OperatorTables
from holdfast.state.layout import layout_of
from holdfast.state.manifest import FULL_INTERVAL, Manifest
from holdfast.state.position import key_positions
from holdfast.state.tables import Writer
from holdfast.store import DirectoryStore
from strategies import examples


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "OPERATORS", [*registry.OPERATORS, Distincts])


def declare(keys: list[int | None], *, by: str = "k") -> hf.Pipeline:
    frame = pl.DataFrame({"k": pl.Series(keys, dtype=pl.Int64)}).with_row_index("i")
    pipeline = hf.Pipeline("p")
    rows = pipeline.source("in", hf.source.memory(frame)).filter(pl.col("i") >= 0)
    distinct(rows, by).with_columns(twice=pl.col("i") * 2).sink("out", hf.sink.collect())
    return pipeline


cuts = st.builds(
    Cut,
    rows=st.integers(1, 9),
    tasks=st.integers(1, 3),
    scales=st.sampled_from([(), (1, 3), (2,)]),
    merges=st.sampled_from([(), (1,), (0, 2)]),
)


@examples(25)
@given(st.lists(st.none() | st.integers(0, 12), max_size=40), cuts)
def test_it_runs_however_the_input_is_cut_scaled_and_merged(keys: list[int | None], cut: Cut) -> None:
    seen: dict[int | None, int] = {}
    for number, key in enumerate(keys):
        seen.setdefault(key, number)
    expected = [(number, key, 2 * number) for key, number in seen.items()]
    assert sorted(run(declare(keys), cut).rows()) == sorted(expected)


def test_it_is_explained() -> None:
    text = hf.explain(declare([1, 2]))
    assert "distinct: the first row by k; keys are kept for ever" in text
    assert "shuffle to distinct: rows (i, k)" in text


def test_people_see_its_state(tmp_path: Path) -> None:
    program = compile_program(declare([1]))
    node = program.nodes["distinct"]
    assert isinstance(node, Distinct)
    store = DirectoryStore(tmp_path, sync=False)
    rows = pl.DataFrame({"i": [0, 1, 2], "k": [5, 7, 5]}, schema={"i": pl.UInt32, "k": pl.Int64})
    rows = rows.insert_column(0, pl.Series(POSITION, key_positions([rows["k"]], 3)))
    context = StepContext(1, None, None, Writer(store, "distinct", "one"))
    made = registry.assemble(node, StepInput([[Batch(rows)]]), context, Manifest(FULL_INTERVAL))
    shape = shape_of_program(program).operators["distinct"]
    layout = layout_of("distinct", shape, {})
    state = OperatorTables(layout, (made.manifest,), store)
    assert sorted(state.shown().rows()) == [(5,), (7,)]
    assert state.shown(pl.DataFrame({"k": [7, 8]})).rows() == [(7,)]


def test_a_start_with_another_meaning_of_its_state_is_refused() -> None:
    before = shape_of_program(compile_program(declare([1])))
    check_shape("p", before, before)
    with pytest.raises(PipelineChangedError, match="keys of 'distinct' was"):
        check_shape("p", before, shape_of_program(compile_program(declare([1], by="i"))))


def test_what_it_does_not_say_is_not_promised() -> None:
    """It need not know of footprints or replays: then policies that need them are not for it."""
    program = compile_program(declare([1]))
    assert not forgets(program)
    with pytest.raises(DeclarationError, match="it leaves no footprints: its state is not made of windows"):
        check_eventual(program)


def test_an_operator_that_is_not_listed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "OPERATORS", registry.OPERATORS[:-1])
    with pytest.raises(DeclarationError, match="nothing runs a Distinct") as caught:
        compile_program(declare([1]))
    assert caught.value.operator == "distinct"
    assert "operators/registry.py" in caught.value.cure
