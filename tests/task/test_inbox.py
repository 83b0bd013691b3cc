"""The input that a hot standby has received is what a replay reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

import holdfast as hf
from holdfast.epoch.plan import EpochPlan
from holdfast.plan.program import compile_program
from holdfast.task.inbox import Inbox

READ: list[int] = []


class Counted(hf.source.Source):
    schema = pl.Schema({"n": pl.Int64})

    def start(self) -> Any:
        return {}

    def take(self, position: Any, rows: int, pieces: int) -> hf.source.Take:
        return hf.source.Take((), position)

    def read(self, piece: hf.source.Slice) -> Iterator[hf.source.Chunk]:
        READ.append(piece.where["first"])
        yield hf.source.Chunk(pl.DataFrame({"n": [piece.where["first"]]}), shift=3, ordered=True)


def planned(*firsts: int) -> EpochPlan:
    """One slice for each task."""
    slices = tuple((hf.source.Slice(first, 1, {"first": first}),) for first in firsts)
    return EpochPlan({"in": slices}, {"in": {}}, {"in": False}, (len(firsts),), {})


def test_slices_are_read_once_and_given_back_whole(tmp_path: Path) -> None:
    pipeline = hf.Pipeline("p")
    pipeline.source("in", Counted()).sink("out", hf.sink.collect())
    program, inbox = compile_program(pipeline), Inbox(tmp_path / "inbox")
    plan = planned(5, 6)
    READ.clear()
    assert inbox.fill(program, 1, plan) > 0
    assert inbox.fill(program, 1, plan) == 0
    assert READ == [5, 6]
    found = inbox.chunks(1, "in", 1, 0)
    assert found is not None
    [chunk] = found
    assert (chunk.frame["n"].to_list(), chunk.shift, chunk.ordered) == ([6], 3, True)
    assert inbox.chunks(2, "in", 0, 0) is None
    inbox.forget(2)
    assert inbox.chunks(1, "in", 0, 0) is None


def test_input_of_a_plan_that_was_replaced_is_not_taken_for_that_of_the_new_one(tmp_path: Path) -> None:
    pipeline = hf.Pipeline("p")
    pipeline.source("in", Counted()).sink("out", hf.sink.collect())
    program, inbox = compile_program(pipeline), Inbox(tmp_path / "inbox")
    inbox.fill(program, 1, planned(5))
    assert inbox.chunks(1, "in", 0, 0, generation=1) is None
    inbox.fill(program, 1, replace(planned(6), generation=1))
    found = inbox.chunks(1, "in", 0, 0, generation=1)
    assert found is not None
    assert [chunk.frame["n"].to_list() for chunk in found] == [[6]]
    inbox.forget(2)
    assert inbox.chunks(1, "in", 0, 0, generation=1) is None
