"""The order of files: one after the other, or none among those that were found together."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import holdfast as hf
from harness import Cut, run
from holdfast.connect.sources.files import FileSource
from holdfast.engine.epoch_input import take_input
from holdfast.errors import BadRowError, DeclarationError
from holdfast.plan.program import compile_program

SCHEMA = {"ts": pl.Int64, "writer": pl.String}


def write(directory: Path, name: str, times: list[int | None]) -> Path:
    """A file whose change time is later than that of every file before it."""
    newest = max((path.stat().st_ctime_ns for path in directory.iterdir()), default=0)
    while True:
        path = directory / name
        draft = directory / f".{name}"
        draft.write_text("".join(json.dumps({"ts": t, "writer": name[0]}) + "\n" for t in times))
        draft.rename(path)
        if path.stat().st_ctime_ns > newest:
            return path
        time.sleep(0.001)


def windows(source: FileSource, cut: Cut, lateness: str = "2s") -> tuple[list[tuple[int, int]], int]:
    pipeline = hf.Pipeline("test")
    rows = pipeline.source("in", source, event_time="ts", time_unit="s", lateness=lateness)
    rows.window(hf.window.tumbling("10s"), name="windows").agg(n=hf.count()).sink("out", hf.sink.collect())
    outcome = run(pipeline, cut)
    return sorted((start, n) for start, _, n in outcome.rows()), outcome.totals["late"]


@pytest.mark.parametrize(
    "cut", [Cut(), Cut(rows=7), Cut(rows=60, tasks=2), Cut(rows=25, tasks=3, partitions=2), Cut(rows=1_000, tasks=4)]
)
def test_files_of_two_writers_make_nothing_late_where_files_have_no_order(tmp_path, cut):
    for name in ("a-0", "a-1", "b-0", "b-1"):
        write(tmp_path, f"{name}.ndjson", list(range(60)) if name.endswith("0") else list(range(60, 80)))
    together = [(start, 20) for start in range(0, 80, 10)]
    assert windows(hf.source.files(tmp_path, schema=SCHEMA, order="arrival"), cut) == (together, 0)
    # One after the other, the second writer comes behind the end of the first one: only the last window is open.
    in_order = [(start, 10) for start in range(0, 70, 10)]
    assert windows(hf.source.files(tmp_path, schema=SCHEMA), cut) == ([*in_order, (70, 20)], 70)


def positions(source: FileSource, position: Any, rows: int) -> tuple[list[str], Any]:
    """The files of the next take, and the position behind it, as a store would keep it."""
    take = source.take(position, rows, 1)
    names = [part["name"] for piece in take.slices for part in piece.where["parts"]]
    return names, json.loads(json.dumps(take.position))


def test_a_growing_directory_is_read_in_groups_of_files_found_together(tmp_path):
    source = hf.source.files(tmp_path, format="ndjson", schema=SCHEMA, grow=True, order="arrival", settle=0)
    position = source.start()
    write(tmp_path, "m.ndjson", [1, 2])
    write(tmp_path, "n.ndjson", [1, 2])
    names, position = positions(source, position, 1)
    assert (names, source.settled(position)) == (["m.ndjson"], False)
    write(tmp_path, "a.ndjson", [5])
    write(tmp_path, "z.ndjson", [5])
    names, position = positions(source, position, 100)
    assert (names, source.settled(position)) == (["m.ndjson", "n.ndjson"], True)
    names, position = positions(source, position, 1)
    assert (names, source.settled(position)) == (["a.ndjson"], False)
    names, position = positions(source, position, 1)
    assert (names, source.settled(position)) == (["z.ndjson"], True)
    assert positions(source, position, 1)[0] == []


def test_a_group_does_not_wait_for_files_that_are_gone_or_have_no_rows(tmp_path):
    source = hf.source.files(tmp_path, format="ndjson", schema=SCHEMA, grow=True, order="arrival", settle=0)
    write(tmp_path, "a.ndjson", [1])
    write(tmp_path, "b.ndjson", [])
    names, position = positions(source, source.start(), 1)
    assert (names, source.settled(position)) == (["a.ndjson"], True)
    write(tmp_path, "c.ndjson", [1])
    gone = write(tmp_path, "d.ndjson", [1])
    names, position = positions(source, position, 1)
    assert (names, source.settled(position)) == (["c.ndjson"], False)
    os.remove(gone)
    assert positions(source, position, 1)[0] == []
    write(tmp_path, "e.ndjson", [2])
    names, position = positions(source, position, 1)
    assert (names, source.settled(position)) == (["e.ndjson"], True)


def test_an_order_that_there_is_not_is_refused(tmp_path):
    with pytest.raises(DeclarationError, match="order='name'"):
        hf.source.files(tmp_path, format="ndjson", schema=SCHEMA, order="name")


def test_a_null_time_in_a_file_is_a_bad_row_and_its_file_is_named(tmp_path):
    path = write(tmp_path, "a.ndjson", [1, None, 3])
    with pytest.raises(BadRowError, match=r"a\.ndjson: .*'ts' is null.*\"writer\": \"a\""):
        windows(hf.source.files(tmp_path, schema=SCHEMA), Cut())
    assert windows(hf.source.files(tmp_path, schema=SCHEMA, bad_rows="skip"), Cut()) == ([(0, 2)], 0)
    pipeline = hf.Pipeline("test")
    rows = pipeline.source(
        "in", hf.source.files(tmp_path, schema=SCHEMA, bad_rows="dead_letter"), event_time="ts", time_unit="s"
    )
    rows.sink("out", hf.sink.collect())
    rows.dead_letters.sink("dead", hf.sink.collect())
    outcome = run(pipeline)
    assert outcome.sinks["dead"].select("place", "row").rows() == [(str(path), '{"ts": null, "writer": "a"}')]


@pytest.mark.parametrize("gone", ["removed", "skipped"])
def test_the_watermark_moves_when_nothing_is_left_of_files_found_together(tmp_path, gone):
    source = hf.source.files(tmp_path, format="ndjson", schema=SCHEMA, grow=True, order="arrival", settle=0)
    pipeline = hf.Pipeline("test")
    rows = pipeline.source("in", source, event_time="ts", time_unit="s")
    rows.window(hf.window.tumbling("10s")).agg(n=hf.count()).sink("out", hf.sink.collect())
    program = compile_program(pipeline)
    write(tmp_path, "a.ndjson", [1, 20])
    last = write(tmp_path, "b.ndjson", [2])
    taken = take_input(program, {"in": source.start()}, {"in": False}, 2, 1, 1)
    assert taken is not None
    assert taken.open == {"in": True}
    position = taken.positions["in"]
    if gone == "removed":
        last.unlink()
        closing = take_input(program, {"in": position}, {"in": False}, 2, 1, 2)
        assert closing is not None
        assert closing.open == {"in": False}
    else:
        assert source.settled(source.without(position, "b.ndjson"))


def test_files_found_together_are_those_that_are_complete(tmp_path):
    now = time.time()
    source = hf.source.files(tmp_path, format="ndjson", schema=SCHEMA, grow=True, order="arrival", settle=5)
    source.arrivals.clock = lambda: now
    write(tmp_path, "a.ndjson", [1])
    (tmp_path / "b.ndjson").write_text(json.dumps({"ts": 2, "writer": "b"}) + "\n")  # somebody is still at it
    os.utime(tmp_path / "a.ndjson", (now - 100, now - 100))
    names, position = positions(source, source.start(), 100)
    assert (names, source.settled(position)) == (["a.ndjson"], True)
    now += 3
    assert positions(source, position, 100)[0] == []
    now += 3
    assert positions(source, position, 100)[0] == ["b.ndjson"]
