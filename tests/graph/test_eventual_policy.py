"""The policy `eventual` as people write and read it: what is understood, what is refused, and in which words."""

from __future__ import annotations

import re

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import DeclarationError
from holdfast.graph.policies import DELTA, NONE, OPEN_ONLY, CheckpointPolicy, EventualPolicy, IntervalPolicy, as_policy
from holdfast.plan.cuts import cut_pipeline
from holdfast.plan.footprint_streams import check_eventual, log_name, output_stream
from holdfast.plan.fragment_facts import ProgramFacts
from holdfast.plan.places import cuts_of, places_of
from holdfast.plan.program import compile_program
from holdfast.pstream.description import Placement
from holdfast.state.goals import FootprintRules
from strategies import examples

# as text

amounts = st.none() | st.integers(1, 10**9)
seconds = st.sampled_from([0.01, 0.05, 0.2, 1, 2, 5.5, 60, 3600])


@st.composite
def eventual_policies(draw: st.DrawFn) -> CheckpointPolicy:
    period = draw(seconds)
    spend = round(period * draw(st.sampled_from([1, 0.5, 0.25, 0.05])), 6)
    records, rows = draw(amounts), draw(amounts)
    recovery = draw(seconds) if records is None and rows is None else None
    return EventualPolicy(
        FootprintRules(most_records=records, most_rows=rows, spend=spend, period=period, recovery=recovery)
    )


@examples(60)
@given(
    policy=eventual_policies()
    | st.sampled_from([DELTA, NONE, OPEN_ONLY])
    | seconds.map(lambda interval: IntervalPolicy(interval))
)
def test_what_is_printed_can_be_read(policy: CheckpointPolicy) -> None:
    assert as_policy(str(policy)) == policy


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("eventual", hf.checkpoint.eventual()),
        ("eventual()", hf.checkpoint.eventual()),
        (" eventual(2s) ", hf.checkpoint.eventual("2s")),
        ("eventual(500ms)", hf.checkpoint.eventual("500ms")),
        ("eventual(recovery=1s, CI=10ms, CP=100ms)", hf.checkpoint.eventual("1s", CI="10ms", CP="100ms")),
        ("eventual(Q=200_000)", hf.checkpoint.eventual(Q=200_000)),
        ("eventual(Q=10,U=20)", hf.checkpoint.eventual(Q=10, U=20)),
        ("eventual(U=20, CI=1s, CP=1s)", hf.checkpoint.eventual(U=20, CI="1s", CP="1s")),
        ("eventual(open)", OPEN_ONLY),
    ],
)
def test_policies_are_understood(text: str, policy: CheckpointPolicy) -> None:
    assert as_policy(text) == policy


@pytest.mark.parametrize(
    "text",
    [
        "eventual(Q=)", "eventual(Q=many)", "eventual(W=3)", "eventual(2)", "eventual(1s, 2s, 3s, 4s)", "eventual(",
        "eventual 2s", "eventually", "eventual(CI=)", "eventual(Q=1.5)", "eventual(open, Q=1)", "eventual(Q=1, Q=2)",
    ],
)  # fmt: skip
def test_what_is_no_policy_is_told_how_to_be_one(text: str) -> None:
    with pytest.raises(DeclarationError) as told:
        as_policy(text)
    assert "eventual(" in told.value.cure


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("eventual(Q=0)", "Q is 0"),
        ("eventual(U=-5)", "U is -5"),
        ("eventual(CI=2s, CP=1s)", "2 s out of every 1 s"),
        ("eventual(0s)", "within 0 s"),
        ("eventual(1s, Q=5)", "both a recovery time and sizes"),
    ],
)
def test_figures_that_make_no_sense_are_refused(text: str, problem: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(problem)):
        as_policy(text)


# on operators

ROWS = pl.DataFrame(schema={"ts": pl.Int64, "k": pl.Int64, "v": pl.Int64})


def rows(pipeline: hf.Pipeline, name: str = "in") -> hf.Stream:
    return pipeline.source(name, hf.source.memory(ROWS), event_time="ts", time_unit="s")


def count(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    return hf.Step()


def processed() -> hf.Pipeline:
    pipeline = hf.Pipeline("p")
    made = rows(pipeline).key_by("k").process(
        count, state={"n": pl.Int64}, output={"n": pl.Int64}, keep_forever=True, name="op"
    )  # fmt: skip
    made.sink("out", hf.sink.collect())
    return pipeline


def sessions() -> hf.Pipeline:
    pipeline = hf.Pipeline("p")
    rows(pipeline).key_by("k").window(hf.window.session("5s"), name="op").agg(n=hf.count()).sink(
        "out", hf.sink.collect()
    )
    return pipeline


def two(persisted: bool = False) -> hf.Pipeline:
    pipeline = hf.Pipeline("p")
    first = rows(pipeline).key_by("k").window(hf.window.tumbling("5s"), name="first").agg(n=hf.count())
    first = first.persist("between", push_up=False) if persisted else first
    second = first.filter(pl.col("n") > 1).key_by("k").window(hf.window.count(3), name="op").agg(n=hf.sum("n"))
    second.sink("out", hf.sink.collect())
    return pipeline


@pytest.mark.parametrize(
    ("build", "reason"), [(processed, "a keyed process is not made of windows"), (sessions, "sessions merge")]
)
def test_operators_without_windows_to_trace_are_refused(build, reason) -> None:
    program = compile_program(build())
    with pytest.raises(DeclarationError, match=f"it leaves no footprints: .*{reason}") as told:
        check_eventual(program)
    assert told.value.operator == "op"
    assert "delta" in told.value.cure
    assert EventualPolicy.trial(ProgramFacts(program), 2.0) is None


def test_two_operators_need_a_p_stream_between_them() -> None:
    with pytest.raises(DeclarationError, match="replays 'first' only in part") as told:
        check_eventual(compile_program(two()))
    assert told.value.operator == "op"
    assert ".persist(...) after 'first'" in told.value.cure
    pipeline = two(persisted=True)
    [cut] = cuts_of(pipeline.nodes)
    made = cut_pipeline(pipeline, {"between": Placement(places_of(pipeline.nodes, cut)[0], "test")})
    writer, reader = (compile_program(fragment.pipeline) for fragment in made.fragments)
    for program in (writer, reader):
        check_eventual(program)
        assert EventualPolicy.trial(ProgramFacts(program), 2.0) == hf.checkpoint.eventual("2s")
    assert log_name(writer, "first") == "p.between", "beside the results"
    assert output_stream(reader, "op") is None
    assert log_name(reader, "op") == f"{reader.name}.op.footprints", "one of its own"


def test_a_pipeline_without_state_needs_no_footprints() -> None:
    pipeline = hf.Pipeline("p")
    rows(pipeline).sink("out", hf.sink.collect())
    program = compile_program(pipeline)
    check_eventual(program)
    assert EventualPolicy.trial(ProgramFacts(program), 2.0) is None
