"""A directory that grows: nothing is lost, nothing is read twice, and the position stays small."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from drain import drain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.connect.sources import file_set as _listing
from holdfast.connect.sources.file_set import FileId, Memory
from holdfast.source import files

SCHEMA = pl.Schema({"k": pl.Int64})


def put(place: Path, name: str, *keys: int) -> None:
    pl.DataFrame({"k": keys}, schema=SCHEMA).write_csv(place / ".draft")
    (place / ".draft").rename(place / name)


def test_new_files_are_picked_up_and_the_source_never_ends(tmp_path: Path) -> None:
    source = files(tmp_path, format="csv", schema=SCHEMA, grow=True, settle=0)
    assert not source.bounded
    got, position = drain(source)
    assert got.height == 0
    assert position == source.start()
    put(tmp_path, "b.csv", 1, 2)
    got, position = drain(source, position=position)
    assert got["k"].to_list() == [1, 2]
    put(tmp_path, "c.csv", 3)
    got, position = drain(source, position=position)
    assert got["k"].to_list() == [3]
    take = source.take(position, 10, 2)
    assert take.slices == ()
    assert take.position == position
    assert not take.done


def test_a_late_file_with_a_smaller_name_is_not_lost(tmp_path: Path) -> None:
    source = files(tmp_path, format="csv", schema=SCHEMA, grow=True, settle=0)
    put(tmp_path, "m.csv", 1)
    _, position = drain(source)
    put(tmp_path, "a.csv", 2)
    put(tmp_path, "z.csv", 3)
    got, position = drain(source, position=position)
    assert got["k"].to_list() == [2, 3]
    assert drain(source, position=position)[0].height == 0


def test_a_damaged_file_that_waits_makes_the_lag_unknown_and_no_error(tmp_path: Path) -> None:
    source = files(tmp_path, format="parquet", schema=SCHEMA, grow=True)
    good = pl.DataFrame({"k": range(100)}, schema=SCHEMA)
    good.write_parquet(tmp_path / "a.parquet")
    take = source.take(source.start(), 40, 1)
    assert source.lag(take.position) == 60
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-40])
    assert source.lag(take.position) is None
    (tmp_path / "b.parquet").unlink()
    assert source.lag(take.position) == 60
    (tmp_path / "a.parquet").unlink()
    assert source.lag(take.position) is None


def test_a_file_that_vanishes_while_the_lag_is_counted_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = files(tmp_path, format="csv", schema=SCHEMA, grow=True, settle=0)
    put(tmp_path, "a.csv", 1)
    listed = source.files.present()
    (tmp_path / "a.csv").unlink()
    monkeypatch.setattr(_listing.FileSet, "present", lambda self, memory=None: listed)
    assert source.lag(source.start()) is None


def test_incomplete_names_are_left_alone(tmp_path: Path) -> None:
    source = files(tmp_path, format="csv", schema=SCHEMA, grow=True, settle=0)
    for name in ("_a.csv", ".b.csv", "c.csv.tmp"):
        put(tmp_path, name, 1)
    put(tmp_path, "d.csv", 2)
    assert drain(source)[0]["k"].to_list() == [2]


def test_a_fixed_set_does_not_look_back(tmp_path: Path) -> None:
    put(tmp_path, "m.csv", 1)
    source = files(tmp_path)
    take = source.take(source.start(), 10, 1)
    assert take.done
    put(tmp_path, "a.csv", 2)
    assert source.take(take.position, 10, 1).slices == ()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    arrivals=st.lists(st.lists(st.integers(0, 99), max_size=6), max_size=6),
    rows=st.integers(1, 5),
    keep=st.integers(0, 5),
)
def test_every_arrival_is_read_once_whatever_its_name(
    tmp_path_factory: pytest.TempPathFactory, arrivals: list[list[int]], rows: int, keep: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_listing, "_KEEP", keep)
        place = tmp_path_factory.mktemp("grow")
        source = files(place, format="csv", schema=SCHEMA, grow=True, settle=0)
        position = source.start()
        expected: set[int] = set()
        got: list[int] = []
        for batch in arrivals:
            for number in set(batch) - expected:
                put(place, f"{number:02}.csv", number, number)
            expected |= set(batch)
            # Planning may be behind: only some of what is there is taken before more arrives.
            take = source.take(position, rows, 2)
            got += [k for piece in take.slices for c in source.read(piece) for k in c.frame["k"].to_list()]
            position = json.loads(json.dumps(take.position))
        rest, _ = drain(source, rows=rows, position=position)
        assert sorted(got + rest["k"].to_list()) == sorted([*expected, *expected])


def test_the_memory_of_a_long_run_stays_small_and_right() -> None:
    second = 1_000_000_000
    memory = Memory(recent={})
    for i in range(5000):
        file = FileId(f"{i:08}", 1, i * second, i * second)
        assert memory.is_new(file)
        memory = memory.after([file], [], grows=True)
        assert not memory.is_new(file)
    assert len(memory.as_position()["recent"]) <= 1_001
    assert not memory.is_new(FileId("00000007", 1, 7 * second, 7 * second))
    assert memory.is_new(FileId("00000007-late", 1, 5 * second, 5000 * second))


def test_the_floor_never_passes_a_file_that_waits() -> None:
    second = 1_000_000_000
    memory = Memory(last="z", recent={})
    waits = FileId("b", 1, 0, 50 * second)
    for i in range(1100):
        memory = memory.after([FileId(f"a{i:05}", 1, 0, (100 + i) * second)], [waits], grows=True)
    assert memory.is_new(waits)
