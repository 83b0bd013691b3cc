"""How many rows the first epoch takes: what files say of their rows, within what the latency allows."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import holdfast as hf
from holdfast.engine.first_epoch import first_rows


def test_rows_are_bounded_by_their_number_by_their_bytes_and_by_the_options() -> None:
    assert first_rows([10.0], 1.0, 20_000, 10**9) == 2_000_000
    assert first_rows([10.0], 1.0, 20_000, 100) == 100
    assert first_rows([10.0], 0.02, 20_000, 10**9) == 40_000
    assert first_rows([10_000.0], 1.0, 20_000, 10**9) == (256 << 20) // 10_000
    assert first_rows([10.0, 20_000.0], 1.0, 20_000, 10**9) == int((256 << 20) / 10_005)
    assert first_rows([10.0], 1.0, 20_000, 50_000) == 50_000
    assert first_rows([10.0], 0.001, 20_000, 10**9) == 20_000


def test_where_a_source_does_not_know_its_rows_the_first_epoch_is_small() -> None:
    assert first_rows([None], 1.0, 20_000, 10**9) == 20_000
    assert first_rows([10.0, None], 1.0, 20_000, 10**9) == 20_000


@pytest.mark.parametrize("format", ["parquet", "arrow", "csv", "ndjson"])
def test_files_know_about_how_many_bytes_a_row_has(tmp_path: Path, format: str) -> None:
    frame = pl.DataFrame({"n": range(1_000), "text": [f"{n:020}" for n in range(1_000)]})
    path = tmp_path / f"a.{format}"
    {
        "parquet": frame.write_parquet, "arrow": frame.write_ipc, "csv": frame.write_csv, "ndjson": frame.write_ndjson
    }[format](path)  # fmt: skip
    (tmp_path / f"0.{format}").write_bytes(b"" if format in ("csv", "ndjson") else path.read_bytes())
    found = hf.source.files(tmp_path, schema=frame.schema, format=format).row_bytes()
    assert found is not None
    assert 1 < found < 2 * path.stat().st_size / 1_000
    assert hf.source.files(tmp_path / "nothing", schema=frame.schema, format=format).row_bytes() is None
