"""A growing directory: what is still being written is waited for, and what is odd about the input is said."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from drain import drain

from holdfast.connect.sources.files import FileOrder, FileSource
from holdfast.connect.sources.settled_files import SettlingFiles
from holdfast.errors import CorruptFileError, DeclarationError
from holdfast.source import files

SCHEMA = pl.Schema({"k": pl.Int64})
SETTLE = 5.0


class Clock:
    """Stands still until it is told."""

    def __init__(self, path: Path) -> None:
        self.now = path.stat().st_mtime  # the clock of the file system

    def __call__(self) -> float:
        return self.now


def growing(place: Path, clock: Clock, format: Any = "ndjson", order: FileOrder = "file") -> FileSource:
    source = files(place, format=format, schema=SCHEMA, grow=True, settle=SETTLE, order=order)
    source.arrivals = SettlingFiles(SETTLE, clock)
    return source


def lines(*keys: int) -> str:
    return "".join(json.dumps({"k": key}) + "\n" for key in keys)


def taken(source: FileSource, position: Any = None, rows: int = 100) -> tuple[list[int], Any]:
    take = source.take(source.start() if position is None else position, rows, 1)
    keys = [k for piece in take.slices for chunk in source.read(piece) for k in chunk.frame["k"].to_list()]
    return keys, json.loads(json.dumps(take.position))


def test_a_file_that_is_written_in_place_is_taken_when_it_has_stood_still(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    source = growing(tmp_path, clock)
    (tmp_path / "a").write_text(lines(1, 2)[:-3])
    assert taken(source) == ([], source.start())
    assert source.awaits(source.start())
    clock.now += SETTLE - 1
    with (tmp_path / "a").open("a") as file:
        file.write(lines(1, 2)[-3:] + lines(3))
    assert taken(source)[0] == []
    clock.now += SETTLE - 1
    assert taken(source)[0] == []
    clock.now += 1
    keys, position = taken(source)
    assert keys == [1, 2, 3]
    assert not source.awaits(position)


def test_files_behind_one_that_is_not_complete_wait_for_it_and_come_in_order(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    source = growing(tmp_path, clock)
    (tmp_path / "a").write_text(lines(1))
    renamed(tmp_path, "b", lines(2))
    keys, position = taken(source)
    assert keys == []
    assert source.awaits(position)
    clock.now += SETTLE
    assert taken(source, position)[0] == [1, 2]


def test_files_without_an_order_do_not_wait_for_one_that_is_not_complete_and_that_one_is_not_lost(
    tmp_path: Path,
) -> None:
    clock = Clock(tmp_path)
    source = growing(tmp_path, clock, order="arrival")
    (tmp_path / "a").write_text(lines(1))
    renamed(tmp_path, "b", lines(2))
    keys, position = taken(source)
    assert keys == [2]
    clock.now += SETTLE
    assert taken(source, position)[0] == [1]


def test_files_that_wait_for_another_stand_still_meanwhile(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    source = growing(tmp_path, clock)
    for key, name in enumerate("abc"):
        (tmp_path / name).write_text(lines(key))
    taken(source)
    clock.now += SETTLE
    assert taken(source)[0] == [0, 1, 2]


def test_a_file_that_keeps_others_waiting_for_long_is_reported(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    source = growing(tmp_path, clock)
    (tmp_path / "a").write_text("")
    renamed(tmp_path, "b", lines(2))
    for _ in range(10):
        with (tmp_path / "a").open("a") as file:
            file.write(lines(1))
        os.utime(tmp_path / "a", (clock.now, clock.now + 1))  # later than its change: it was not renamed
        assert taken(source)[0] == []
        assert source.notices(source.start()) == ()
        clock.now += 3
    [notice] = source.notices(source.start())
    assert f"{tmp_path / 'a'} is still being written" in notice


def test_a_file_that_is_half_a_minute_old_waits_for_a_second_look_only(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    source = growing(tmp_path, clock)
    (tmp_path / "a").write_text(lines(1))
    (tmp_path / "b").write_text(lines(2))
    clock.now += 30
    assert taken(source)[0] == []
    clock.now += 0.5
    with (tmp_path / "b").open("a") as file:
        file.write(lines(3))
    keys, position = taken(source)
    assert keys == [1]
    clock.now += 0.5
    assert taken(source, position)[0] == [2, 3]


def test_a_file_that_only_looks_older_than_settle_by_a_clock_that_differs_is_waited_for(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    source = growing(tmp_path, clock)
    (tmp_path / "a").write_text(lines(1))
    clock.now += SETTLE + 9
    assert taken(source)[0] == []
    clock.now += 0.5
    assert taken(source)[0] == []
    clock.now += SETTLE
    assert taken(source)[0] == [1]


def test_a_file_that_has_stood_still_does_not_wait_again_when_there_was_no_room_for_it(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    source = growing(tmp_path, clock)
    for name in "ab":
        (tmp_path / name).write_text(lines(*range(50)))
    taken(source)
    clock.now += SETTLE
    keys, position = taken(source, rows=10)
    while position["file"] is not None:
        more, position = taken(source, position, rows=10)
        keys += more
    assert taken(source, position, rows=10)[0][0] == 0


def renamed(place: Path, name: str, text: str) -> None:
    (place / ".draft").write_text(text)
    long_ago = (place / ".draft").stat().st_mtime - 1  # further apart than the file system can tell
    os.utime(place / ".draft", (long_ago, long_ago))
    (place / ".draft").rename(place / name)


def test_a_file_that_was_renamed_into_place_is_taken_at_once(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    source = growing(tmp_path, clock)
    renamed(tmp_path, "a", lines(1))
    assert taken(source)[0] == [1]


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_a_file_with_a_footer_is_taken_as_soon_as_that_is_written(tmp_path: Path, format: str) -> None:
    clock = Clock(tmp_path)
    source = growing(tmp_path, clock, format)
    frame = pl.DataFrame({"k": [1, 2]}, schema=SCHEMA)
    write = frame.write_parquet if format == "parquet" else frame.write_ipc
    write(tmp_path / ".whole")
    content = (tmp_path / ".whole").read_bytes()
    (tmp_path / "a").write_bytes(content[:-9])
    assert taken(source)[0] == []
    with (tmp_path / "a").open("ab") as file:
        file.write(content[-9:])
    assert taken(source)[0] == [1, 2]


def test_a_file_that_never_gets_its_footer_is_an_error_in_the_end_that_names_it(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    source = growing(tmp_path, clock, "parquet")
    (tmp_path / "a").write_bytes(b"PAR1 and then nothing")
    assert taken(source)[0] == []
    clock.now += SETTLE
    with pytest.raises(CorruptFileError) as damaged:
        taken(source)
    assert damaged.value.file == str(tmp_path / "a")


def test_rows_that_are_appended_to_a_file_that_was_read_are_reported(tmp_path: Path) -> None:
    source = files(tmp_path, format="ndjson", schema=SCHEMA, grow=True, settle=0)
    (tmp_path / "a").write_text(lines(1))
    tomorrow = (tmp_path / "a").stat().st_mtime + 86_400
    os.utime(tmp_path / "a", (tomorrow, tomorrow))
    _, position = drain(source)
    assert source.notices(position) == ()
    taken_at = (tmp_path / "a").stat().st_ctime_ns
    while (tmp_path / "a").stat().st_ctime_ns == taken_at:  # until the clock of the file system has moved on
        (tmp_path / "a").chmod(0o600)
    today = tomorrow - 86_400
    os.utime(tmp_path / "a", (today, today))
    assert source.notices(position) == ()
    with (tmp_path / "a").open("a") as file:
        file.write(lines(2))
    [notice] = source.notices(position)
    assert str(tmp_path / "a") in notice
    assert "changed after it was read" in notice
    assert drain(source, position=position)[0].height == 0


def test_a_directory_that_is_not_there_or_empty_is_reported(tmp_path: Path) -> None:
    source = files(tmp_path / "mistyped", format="ndjson", schema=SCHEMA, grow=True)
    assert "does not exist" in source.notices(source.start())[0]
    (tmp_path / "mistyped").mkdir()
    assert "no file" in source.notices(source.start())[0]
    (tmp_path / "mistyped" / "a").write_text(lines(1))
    assert source.notices(source.start()) == ()
    pattern = files(tmp_path / "mistyped" / "*.json", schema=SCHEMA, grow=True)
    assert "*.json" in pattern.notices(pattern.start())[0]


def test_a_fixed_set_whose_directory_is_not_there_is_an_error(tmp_path: Path) -> None:
    source = files(tmp_path / "mistyped", format="ndjson", schema=SCHEMA)
    with pytest.raises(CorruptFileError, match="mistyped does not exist"):
        source.take(source.start(), 10, 1)


def test_a_pattern_of_a_fixed_set_must_match_something_when_it_is_begun(tmp_path: Path) -> None:
    source = files(tmp_path / "*.json", schema=SCHEMA)
    with pytest.raises(CorruptFileError, match="no input file matches"):
        source.take(source.start(), 10, 1)
    (tmp_path / "a.json").write_text(lines(1))
    _, position = taken(source)
    (tmp_path / "a.json").unlink()
    assert taken(source, position) == ([], position)


def test_a_negative_settling_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="settle"):
        files(tmp_path, format="ndjson", schema=SCHEMA, grow=True, settle=-1)


def test_a_file_of_lines_that_changed_behind_what_was_read_is_gone_on_with(tmp_path: Path) -> None:
    source = files(tmp_path, format="ndjson", schema=SCHEMA, grow=True, settle=0)
    (tmp_path / "a").write_text(lines(*range(10)) + "{broken\n")
    keys, position = taken(source, rows=5)
    assert source.resumed(position) == position
    (tmp_path / "a").write_text(lines(*range(10), 99, 100))
    with pytest.raises(CorruptFileError, match="changed after it was planned"):
        taken(source, position)
    again = source.resumed(position)
    rest, end = drain(source, position=again)
    assert keys + rest["k"].to_list() == [*range(10), 99, 100]
    assert source.notices(end) == ()
    assert drain(source, position=end)[0].height == 0


@pytest.mark.parametrize("format", ["ndjson", "parquet"])
def test_a_file_of_which_what_was_read_is_gone_is_not_gone_on_with(tmp_path: Path, format: Any) -> None:
    def write(keys: range) -> None:
        frame = pl.DataFrame({"k": keys}, schema=SCHEMA)
        (frame.write_ndjson if format == "ndjson" else frame.write_parquet)(tmp_path / "a")

    source = files(tmp_path, format=format, schema=SCHEMA)
    write(range(10))
    _, position = taken(source, rows=5)
    write(range(100, 120))
    with pytest.raises(CorruptFileError, match="that part has changed") as changed:
        source.resumed(position)
    assert "skip the file" in changed.value.cure
    (tmp_path / "a").unlink()
    with pytest.raises(CorruptFileError):
        source.resumed(position)


@pytest.mark.parametrize("grow", [True, False])
def test_nothing_more_is_read_of_a_file_that_is_left_out(tmp_path: Path, grow: bool) -> None:
    for name, key in (("a", 0), ("b", 10), ("c", 20)):
        (tmp_path / name).write_text(lines(*range(key, key + 10)))
    source = files(tmp_path, format="ndjson", schema=SCHEMA, grow=grow, settle=0)
    keys, position = taken(source, rows=5)
    assert source.named(str(tmp_path / "a")) == source.named("a") == "a"
    assert source.named("/elsewhere/a") is None
    begun = source.without(position, "a")
    waiting = source.without(begun, "b")
    assert source.without(waiting, "b") == waiting
    rest, end = drain(source, position=waiting)
    assert rest["k"].to_list() == list(range(20, 30))
    assert source.without(end, "c") == end
    (tmp_path / "b").write_text(lines(*range(10, 20)))
    assert drain(source, position=end)[0].height == 0
    assert len(keys) < 10


def test_a_listed_file_that_is_gone_can_be_left_out_and_one_that_was_read_may_go(tmp_path: Path) -> None:
    for name, key in (("a", 0), ("b", 10), ("c", 20)):
        (tmp_path / name).write_text(lines(key))
    source = files([tmp_path / name for name in "abc"], format="ndjson", schema=SCHEMA)
    keys, position = taken(source, rows=1)
    (tmp_path / "a").unlink()
    (tmp_path / "b").unlink()
    with pytest.raises(CorruptFileError, match="b does not exist"):
        taken(source, position)
    name = source.named(str(tmp_path / "b"))
    assert name is not None
    assert keys + drain(source, position=source.without(position, name))[0]["k"].to_list() == [0, 20]


def test_only_a_path_of_the_set_is_one_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in "xy":
        (tmp_path / f"{name}.csv").write_text("k\n")
    listed = files([tmp_path / "x.csv", tmp_path / "y.csv"], schema=SCHEMA)
    assert listed.named(str(tmp_path / "x.csv")) is not None
    assert listed.named(str(tmp_path / "z.csv")) is None
    pattern = files(tmp_path / "*" / "*.csv", schema=SCHEMA)
    assert pattern.named(str(tmp_path / "deep" / "x.csv")) == "deep/x.csv"
    assert pattern.named(str(tmp_path / "deep" / "x.json")) is None
    whole = files(tmp_path, format="csv", schema=SCHEMA)
    assert whole.named(str(tmp_path / "deep" / "x.csv")) is None


@pytest.mark.parametrize("grow", [True, False])
def test_a_declared_column_that_no_row_has_is_reported_with_the_nearest_field(tmp_path: Path, grow: bool) -> None:
    schema = {"key": pl.Int64, "amount": pl.Int64}
    source = files(tmp_path, format="ndjson", schema=schema, grow=grow, settle=0)
    (tmp_path / "a").write_text('{"key": 1, "amuont": 2}\n{"key": 2}\n')
    told = f"column 'amount' occurs in no row of {tmp_path / 'a'}, so it is null there: did you mean 'amuont'?"
    assert source.notices(source.start()) == (told,)
    _, position = drain(source)
    assert source.notices(position) == (told,)
    (tmp_path / "b").write_text('{"key": 1, "amount": 2}\n')
    assert source.notices(position) == ()


def test_a_column_that_was_there_may_be_missing_in_other_files_and_null_is_as_good_as_a_value(tmp_path: Path) -> None:
    source = files(tmp_path, format="ndjson", schema={"key": pl.Int64, "note": pl.String}, grow=True, settle=0)
    (tmp_path / "a").write_text('{"key": 1, "note": null}\n')
    assert source.notices(source.start()) == ()
    _, position = drain(source)
    (tmp_path / "b").write_text('{"key": 1}\n')
    assert source.notices(position) == ()


def test_of_a_large_file_the_first_rows_are_looked_at(tmp_path: Path) -> None:
    source = files(tmp_path, format="ndjson", schema={"k": pl.Int64, "x": pl.Int64})
    (tmp_path / "a").write_text(lines(*range(1_001)))
    assert "column 'x' occurs in none of the first 1,000 rows of" in source.notices(source.start())[0]
