"""What files give, against a reader that knows nothing of blocks, row groups, columns left out or filters: whatever is
in them, however they are cut, wherever reading begins again."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drain import drain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.connect.formats import columnar, lines
from holdfast.connect.source_need import SourceNeed
from holdfast.connect.sources.files import FileSource, files
from holdfast.connect.time_range import TimeRange
from holdfast.source import Chunk

SCHEMA = pl.Schema({"at": pl.Int64(), "n": pl.Int8(), "text": pl.String(), "x": pl.Float64()})
Row = tuple[int | None, int | None, str | None, float | None]
MANY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

texts = st.text(st.sampled_from("aé漢🙂 ,;\"'\\\t{}[]:"), min_size=1, max_size=6)
rows = st.tuples(
    st.none() | st.integers(-(2**40), 2**40),
    st.none() | st.integers(-128, 127),
    st.none() | texts,
    st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32),
)
columns = st.lists(st.sampled_from(SCHEMA.names()), min_size=1, unique=True).map(
    lambda chosen: tuple(name for name in SCHEMA if name in chosen)
)
cuts = st.tuples(st.integers(1, 30), st.integers(1, 4), st.integers(1, 200))
"""Rows of a take, its pieces, and bytes of a block, or rows of a chunk."""


def frame_of(found: list[Row], names: tuple[str, ...]) -> pl.DataFrame:
    return pl.DataFrame(found, schema=SCHEMA, orient="row").select(names)


def csv_line(row: Row) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(["" if value is None else value for value in row])
    return out.getvalue()


def json_line(row: Row, *, leave_out: bool) -> str:
    fields = dict(zip(SCHEMA, row, strict=True))
    return json.dumps({name: value for name, value in fields.items() if value is not None or not leave_out})


def read_all(source: FileSource, cut: tuple[int, int, int]) -> tuple[pl.DataFrame, list[Chunk]]:
    seen: list[Chunk] = []
    found, _ = drain(source, rows=cut[0], pieces=cut[1], seen=seen.append)
    return found, seen


def places(seen: list[Chunk]) -> list[tuple[str, str]]:
    letters = [chunk.bad for chunk in seen if chunk.bad is not None]
    return [(place.rpartition("/")[2], row) for bad in letters for _, place, _, row in bad.iter_rows()]


# Lines are good rows, or what is no row of the schema whichever columns are read: `bad` is what makes it so.
# The last two of CSV, one behind the other, are a field with a line break.
BAD_CSV = ["1", "1,2", "1,2,a,1.0,5", "1,2,a,1.0,", "1,2,a,1.0,5,6,7", ",,", '1,2,"a', 'b",1.0']
BAD_JSON = ["{", "[1]", "7", '{"at": 1,}', '{"at": 1} x', "nothing", '{"at" 1}', '{"text": "a']


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("format", ["csv", "ndjson"])
@MANY
@given(
    content=st.lists(st.lists(rows | st.integers(0, 7) | st.just("blank"), max_size=12), min_size=1, max_size=3),
    wanted=columns,
    cut=cuts,
    last_line_ends=st.booleans(),
    leave_out=st.booleans(),
)
def test_lines_give_every_good_row_and_report_every_bad_one_with_its_place(
    tmp_path_factory: pytest.TempPathFactory,
    format: str,
    ending: str,
    content: list[list[Row | int | str]],
    wanted: tuple[str, ...],
    cut: tuple[int, int, int],
    last_line_ends: bool,
    leave_out: bool,
) -> None:
    place = tmp_path_factory.mktemp("lines")
    bad_lines = BAD_CSV if format == "csv" else BAD_JSON
    good: list[Row] = []
    expected_bad = []
    for number, entries in enumerate(content):
        name = f"{number}.{format}"
        text = "at,n,text,x" + ending if format == "csv" else ""
        for at, entry in enumerate(entries):
            line = entry_line(entry, format, bad_lines, leave_out)
            if isinstance(entry, tuple):
                good.append(entry)
            elif isinstance(entry, int):
                expected_bad.append((f"{name}:byte {len(text.encode())}", line))
            text += line + (ending if last_line_ends or at + 1 < len(entries) else "")
        (place / name).write_bytes(text.encode())
    source = files(place, format, SCHEMA, bad_rows="dead_letter").narrowed(SourceNeed(wanted))  # type: ignore[arg-type]
    before = lines.BLOCK_BYTES
    lines.BLOCK_BYTES = cut[2]
    try:
        found, seen = read_all(source, cut)
    finally:
        lines.BLOCK_BYTES = before
    assert found.equals(frame_of(good, wanted)), (found, good)
    assert sorted(places(seen)) == sorted(expected_bad)


def entry_line(entry: Row | int | str, format: str, bad: list[str], leave_out: bool) -> str:
    if isinstance(entry, tuple):
        return csv_line(entry) if format == "csv" else json_line(entry, leave_out=leave_out)
    return bad[entry] if isinstance(entry, int) else ""


@MANY
@given(found=st.lists(rows, min_size=1, max_size=20), cut=cuts, wrong=st.sampled_from(["at", "n", "x"]), data=st.data())
def test_a_value_that_does_not_fit_makes_a_row_bad_only_where_its_column_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    found: list[Row],
    cut: tuple[int, int, int],
    wrong: str,
    data: st.DataObject,
) -> None:
    place = tmp_path_factory.mktemp("values")
    at = data.draw(st.integers(0, len(found) - 1))
    broken: list[Any] = list(found[at])
    broken[SCHEMA.names().index(wrong)] = "none of it"
    for format, write in formats().items():
        (place / format).mkdir()
        text = [write(tuple(broken) if number == at else row) for number, row in enumerate(found)]  # type: ignore[arg-type]
        header = ["at,n,text,x"] if format == "csv" else []
        (place / format / f"a.{format}").write_text("".join(f"{line}\n" for line in [*header, *text]), encoding="utf-8")
        for wanted in (("text",), (wrong,), ("text", wrong)):
            names = tuple(name for name in SCHEMA if name in wanted)
            source = files(place / format, format, SCHEMA, bad_rows="skip").narrowed(SourceNeed(names))  # type: ignore[arg-type]
            result, _ = read_all(source, cut)
            good = [row for number, row in enumerate(found) if wrong not in wanted or number != at]
            assert result.equals(frame_of(good, names))


def formats() -> dict[str, Callable[[Row], str]]:
    return {"csv": csv_line, "ndjson": lambda row: json_line(row, leave_out=False)}


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@MANY
@given(
    content=st.lists(st.lists(st.lists(rows, max_size=8), max_size=4), min_size=1, max_size=3), wanted=columns, cut=cuts
)
def test_columns_of_row_groups_are_the_same_however_they_are_cut(
    tmp_path_factory: pytest.TempPathFactory,
    format: str,
    content: list[list[list[Row]]],
    wanted: tuple[str, ...],
    cut: tuple[int, int, int],
) -> None:
    place = tmp_path_factory.mktemp("groups")
    for number, groups in enumerate(content):
        write_groups(place / f"{number}.{format}", [frame_of(group, tuple(SCHEMA)) for group in groups])
    source = files(place, format, SCHEMA).narrowed(SourceNeed(wanted))  # type: ignore[arg-type]
    before = columnar.CHUNK_ROWS
    columnar.CHUNK_ROWS = cut[2]
    try:
        found, _ = read_all(source, cut)
    finally:
        columnar.CHUNK_ROWS = before
    assert found.equals(frame_of([row for groups in content for group in groups for row in group], wanted))


def write_groups(path: Path, groups: list[pl.DataFrame]) -> None:
    """A file with these groups, empty ones among them."""
    tables = [group.to_arrow(compat_level=pl.CompatLevel.oldest()) for group in groups]
    schema = pl.DataFrame(schema=SCHEMA).to_arrow(compat_level=pl.CompatLevel.oldest()).schema
    if path.suffix == ".parquet":
        with pq.ParquetWriter(path, schema) as writer:
            for table in tables:
                writer.write_table(table)
        return
    with pa.ipc.new_file(str(path), schema) as writer:
        for table in tables:
            writer.write_table(table)


FILTERS: dict[str, Callable[[Row], bool]] = {
    "none": lambda row: False,
    "n": lambda row: row[1] is not None and row[1] > 20,
    "at": lambda row: row[0] is not None and 100 <= row[0] < 200,
    "text": lambda row: row[2] is not None and row[2].startswith("a"),
}
EXPRESSIONS = {
    "none": pl.col("n") > 127,
    "n": pl.col("n") > 20,
    "at": pl.col("at").is_between(100, 200, closed="left"),
    "text": pl.col("text").str.starts_with("a"),
}


@MANY
@given(
    content=st.lists(st.lists(rows, max_size=8), max_size=6),
    in_order=st.booleans(),
    chosen=st.sampled_from(sorted(FILTERS)),
    cut=cuts,
)
def test_rows_are_left_out_by_the_filter_and_still_counted_with_their_times(
    tmp_path_factory: pytest.TempPathFactory,
    content: list[list[Row]],
    in_order: bool,
    chosen: str,
    cut: tuple[int, int, int],
) -> None:
    place = tmp_path_factory.mktemp("filtered")
    times = sorted(row[0] or 0 for group in content for row in group)
    if in_order:
        coming = iter(times)
        content = [[(next(coming) % 400, *row[1:]) for row in group] for group in content]
        content = [sorted(group, key=lambda row: row[0] or 0) for group in content]
    write_groups(place / "a.parquet", [frame_of(group, tuple(SCHEMA)) for group in content])
    need = SourceNeed(tuple(SCHEMA), EXPRESSIONS[chosen], TimeRange("at"))
    before = columnar.CHUNK_ROWS
    columnar.CHUNK_ROWS = cut[2]
    try:
        _, seen = read_all(files(place, "parquet", SCHEMA).narrowed(need), cut)
    finally:
        columnar.CHUNK_ROWS = before
    everything = [row for group in content for row in group]
    assert sum(chunk.rows for chunk in seen) == len(everything)
    passed = [row for chunk in seen for row in chunk.frame.filter(EXPRESSIONS[chosen]).iter_rows()]
    assert passed == [row for row in frame_of(everything, tuple(SCHEMA)).iter_rows() if FILTERS[chosen](row)]
    at = 0
    for chunk in seen:
        mine = [row[0] for row in everything[at : at + chunk.rows]]
        at += chunk.rows
        if chunk.sifted is not None:
            known = [time for time in mine if time is not None]
            assert known == mine == sorted(known), "only rows whose times are there and in order are left out"
            assert (chunk.sifted.least, chunk.sifted.greatest) == (known[0], known[-1])
            assert all(FILTERS[chosen](row) for row in chunk.frame.iter_rows())
        else:
            assert chunk.frame.height == len(mine)


@pytest.mark.parametrize("format", ["parquet", "arrow", "csv", "ndjson"])
@MANY
@given(found=st.lists(rows, min_size=1, max_size=40), first=st.integers(1, 40), cut=cuts)
def test_reading_goes_on_from_any_position(
    tmp_path_factory: pytest.TempPathFactory, format: str, found: list[Row], first: int, cut: tuple[int, int, int]
) -> None:
    place = tmp_path_factory.mktemp("positions")
    middle = len(found) // 2
    for number, part in enumerate((found[:middle], found[middle:])):
        path = place / f"{number}.{format}"
        if format in ("parquet", "arrow"):
            write_groups(path, [frame_of(part[at : at + 3], tuple(SCHEMA)) for at in range(0, len(part), 3)])
        else:
            header = ["at,n,text,x"] if format == "csv" else []
            text = [formats()[format](row) for row in part]
            path.write_text("".join(f"{line}\n" for line in [*header, *text]), encoding="utf-8")
    source = files(place, format, SCHEMA)  # type: ignore[arg-type]
    take = source.take(source.start(), first, 1)
    begun = [chunk.frame for piece in take.slices for chunk in source.read(piece)]
    rest = [] if take.done else [drain(source, rows=cut[0], pieces=cut[1], position=take.position)[0]]
    assert pl.concat([pl.DataFrame(schema=SCHEMA), *begun, *rest]).equals(frame_of(found, tuple(SCHEMA)))
