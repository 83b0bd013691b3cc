"""What executors must share with the driver is tried before the first epoch."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa

import holdfast as hf
from holdfast.plan.program import compile_program
from holdfast.spark.reach import SharedPlace, _Look, shared_places
from holdfast.store import Tiers


def look(places: list[SharedPlace], token: str = "token") -> dict[str, str | None]:
    [batch] = list(_Look(token, tuple(places), 0.0)(iter([pa.RecordBatch.from_pydict({"id": [1]})])))
    rows = batch.to_pylist()
    assert all(row["host"] for row in rows)
    return {row["path"]: row["problem"] for row in rows}


def test_a_task_answers_where_it_finds_the_token_and_nowhere_else(tmp_path: Path) -> None:
    shared, private, gone = tmp_path / "shared", tmp_path / "private", tmp_path / "gone"
    for place in (shared, private):
        place.mkdir()
    (shared / ".probe-token").write_text("token")
    seen = look([SharedPlace(shared, "the store"), SharedPlace(private, "a sink"), SharedPlace(gone, "a sink")])
    assert seen[str(shared)] is None
    assert "No such file" in str(seen[str(private)])
    assert "No such file" in str(seen[str(gone)])
    [answer] = [file for file in shared.iterdir() if file.name != ".probe-token"]
    assert answer.name.startswith(".probe-token-")
    assert list(private.iterdir()) == []


def test_another_directory_of_the_same_name_is_noticed(tmp_path: Path) -> None:
    (tmp_path / ".probe-token").write_text("of another run")
    assert look([SharedPlace(tmp_path, "the store")]) == {str(tmp_path): "it is another directory there"}


def test_input_must_be_there_and_as_long(tmp_path: Path) -> None:
    file = tmp_path / "a.ndjson"
    file.write_text("{}\n")
    seen = look([SharedPlace(file, "input", "events", 3), SharedPlace(tmp_path / "b.ndjson", "input", "events", 3)])
    assert seen[str(file)] is None
    assert "No such file" in str(seen[str(tmp_path / "b.ndjson")])
    assert look([SharedPlace(file, "input", "events", 30)])[str(file)] == "it has 3 bytes there, and 30 here"


def test_store_input_staging_and_backups_must_be_shared_and_a_volatile_tier_that_was_named(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.ndjson").write_text('{"t": 1}\n')
    pipeline = hf.Pipeline("p")
    source = pipeline.source("events", hf.source.files(folder, format="ndjson", schema={"t": pl.Int64}))
    source.sink("out", hf.sink.parquet(tmp_path / "out"))
    tiers = Tiers(tmp_path / "state", tmp_path / "memory", (tmp_path / "copy",))
    program = compile_program(pipeline)
    places = {place.path.name: place for place in shared_places(program, tmp_path / "store", tiers, None)}
    assert places.keys() == {"store", "copy", "a.ndjson", ".out.staging"}
    assert places["a.ndjson"].size == 9
    assert places[".out.staging"].operator == "out"
    named = shared_places(program, tmp_path / "store", tiers, tmp_path / "memory")
    assert tmp_path / "memory" in {place.path for place in named}
