"""Lines that do not fit the schema: each kind, under each policy, however the file is cut."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from drain import drain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import BadRowError
from holdfast.source import DEAD_LETTER_SCHEMA, files

SCHEMA = pl.Schema({"k": pl.Int64, "t": pl.Datetime("us"), "n": pl.UInt8, "s": pl.String})
GOOD = {
    "csv": b"1,2024-01-01T00:00:00,7,good\n",
    "ndjson": b'{"k": 1, "t": "2024-01-01T00:00:00", "n": 7, "s": "good"}\n',
}
HEADER = {"csv": b"k,t,n,s\n", "ndjson": b""}
BAD = {
    ("csv", "text for int"): (b"x,2024-01-01T00:00:00,7,s\n", "'x' in column 'k' is not Int64"),
    ("csv", "float for int"): (b"1.5,2024-01-01T00:00:00,7,s\n", "'1.5' in column 'k'"),
    ("csv", "out of range"): (b"1,2024-01-01T00:00:00,300,s\n", "'300' in column 'n'"),
    ("csv", "bad time"): (b"1,yesterday,7,s\n", "'yesterday' in column 't'"),
    ("csv", "too few"): (b"1,2024-01-01T00:00:00,7\n", "expected 4 fields, found 3"),
    ("csv", "too many"): (b"1,2024-01-01T00:00:00,7,s,u\n", "expected 4 fields, found 5"),
    ("csv", "open quote"): (b'1,2024-01-01T00:00:00,7,"s\n', "a quote is not closed"),
    ("csv", "not utf-8"): (b"1,2024-01-01T00:00:00,7,\xff\xfe\n", "not UTF-8"),
    ("ndjson", "malformed"): (b'{"k": 1, \n', "malformed JSON"),
    ("ndjson", "no object"): (b"[1, 2]\n", "instead of an object"),
    ("ndjson", "float for int"): (b'{"k": 1.5}\n', "1.5 in column 'k' is not Int64"),
    ("ndjson", "text for int"): (b'{"k": "1"}\n', "\"1\" in column 'k'"),
    ("ndjson", "bool for int"): (b'{"k": true}\n', "true in column 'k'"),
    ("ndjson", "out of range"): (b'{"n": 300}\n', "300"),
    ("ndjson", "bad time"): (b'{"t": "yesterday"}\n', "yesterday"),
    ("ndjson", "two on a line"): (b'{"k": 1} {"k": 2}\n', "malformed JSON"),
    ("ndjson", "not utf-8"): (b'{"s": "\xff\xfe"}\n', "malformed JSON"),
}
KINDS = [pytest.param(*key, *value, id="-".join(key)) for key, value in BAD.items()]


def place_of(tmp_path: Path, format: str, lines: list[bytes]) -> Path:
    path = tmp_path / f"a.{format}"
    path.write_bytes(HEADER[format] + b"".join(lines))
    return path


@pytest.mark.parametrize(("format", "kind", "line", "reason"), KINDS)
def test_fail_names_file_line_and_reason(tmp_path: Path, format: str, kind: str, line: bytes, reason: str) -> None:
    path = place_of(tmp_path, format, [GOOD[format]] * 5 + [line] + [GOOD[format]] * 5)
    number = 7 if format == "csv" else 6
    with pytest.raises(BadRowError) as caught:
        drain(files(path, schema=SCHEMA))
    assert f"{path}, line {number} (byte " in str(caught.value)
    assert reason in str(caught.value)
    assert "bad_rows='skip'" in caught.value.cure


@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
@pytest.mark.parametrize(("format", "kind", "line", "reason"), KINDS)
def test_skip_and_dead_letter_keep_the_good_rows_and_report_the_bad_one(
    tmp_path: Path, format: str, kind: str, line: bytes, reason: str, policy: str
) -> None:
    path = place_of(tmp_path, format, [GOOD[format]] * 5 + [line] + [GOOD[format]] * 5)
    bad: list[pl.DataFrame] = []
    source = files(path, schema=SCHEMA, bad_rows=policy)  # type: ignore[arg-type]
    got, _ = drain(source, seen=lambda chunk: bad.append(chunk.bad) if chunk.bad is not None else None)
    assert got.height == 10
    assert got["s"].to_list() == ["good"] * 10
    (letter,) = pl.concat(bad).to_dicts()
    assert pl.concat(bad).schema == DEAD_LETTER_SCHEMA
    assert letter["source"] == source.describe()
    assert letter["place"] == f"{path}:byte {len(HEADER[format]) + 5 * len(GOOD[format])}"
    assert reason in letter["reason"]
    assert letter["row"] == line.rstrip(b"\n").decode(errors="replace")


@pytest.mark.parametrize("format", ["csv", "ndjson"])
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), rows=st.integers(1, 20), pieces=st.integers(1, 4))
def test_which_rows_are_bad_does_not_depend_on_the_cutting(
    tmp_path_factory: pytest.TempPathFactory, format: str, data: st.DataObject, rows: int, pieces: int
) -> None:
    kinds = [line for (of, _), (line, _) in BAD.items() if of == format]
    lines = data.draw(st.lists(st.one_of(st.just(GOOD[format]), st.just(b"\n"), st.sampled_from(kinds)), max_size=20))
    path = place_of(tmp_path_factory.mktemp("bad"), format, lines)
    bad: list[str] = []
    got, _ = drain(
        files(path, schema=SCHEMA, bad_rows="skip"),
        rows=rows,
        pieces=pieces,
        seen=lambda chunk: bad.extend(chunk.bad["row"].to_list()) if chunk.bad is not None else None,
    )
    assert got.height == lines.count(GOOD[format])
    assert bad == [line.rstrip(b"\n").decode(errors="replace") for line in lines if line in kinds]


def test_a_line_break_inside_quotes_makes_two_bad_rows(tmp_path: Path) -> None:
    path = place_of(tmp_path, "csv", [b'1,2024-01-01T00:00:00,7,"two\nlines"\n', GOOD["csv"]])
    bad: list[pl.DataFrame] = []
    source = files(path, schema=SCHEMA, bad_rows="skip")
    got, _ = drain(source, seen=lambda chunk: bad.append(chunk.bad) if chunk.bad is not None else None)
    assert got.height == 1
    assert pl.concat(bad).height == 2


def test_csv_columns_go_by_the_header_and_extra_ones_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfx,s,k\r\n9,"a,b",1\r\n9,NA,2\r\n\r\n9,,3')
    got, _ = drain(files(tmp_path, schema={"k": pl.Int64, "s": pl.String}, null_values=["NA"]), rows=1)
    assert got.rows() == [(1, "a,b"), (2, None), (3, None)]
    with pytest.raises(BadRowError, match="no column 'y'"):
        drain(files(tmp_path, schema={"y": pl.Int64}))


def test_csv_without_header_and_with_another_separator(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"1;x\n2;y\n")
    schema = {"k": pl.Int64, "s": pl.String}
    got, _ = drain(files(tmp_path, schema=schema, has_header=False, separator=";"), rows=1)
    assert got.rows() == [(1, "x"), (2, "y")]


def test_csv_times_in_two_notations_both_fit(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"t\n2024-01-01T00:00:00\n2024-01-02 00:00\n2024-01-03T00:00:00.5\n2024-01-04\n")
    got, _ = drain(files(tmp_path, schema={"t": pl.Datetime("us")}, bad_rows="skip"))
    alone, _ = drain(files(tmp_path, schema={"t": pl.Datetime("us")}, bad_rows="skip"), rows=1)
    assert got.equals(alone)


def test_ndjson_missing_fields_are_null_and_extra_ones_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_bytes(b'{"k": 1, "z": [1]}\n{"s": "x", "n": null}\n{}')
    got, _ = drain(files(tmp_path, schema={"k": pl.Int64, "s": pl.String, "n": pl.UInt8}), rows=1)
    assert got.rows() == [(1, None, None), (None, "x", None), (None, None, None)]
