"""An address of something else, and what no file can be called, are refused wherever a path is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

import holdfast as hf
from holdfast.cli import main
from holdfast.engine.options import RunOptions
from holdfast.errors import DeclarationError
from holdfast.store.location import local_path

ADDRESS = "s3://bucket/events"
ROWS = pl.DataFrame({"t": [1, 2]})

TAKERS: dict[str, Callable[[str], object]] = {
    "files": lambda where: hf.source.files(where, format="ndjson", schema={"t": pl.Int64}),
    "files, growing": lambda where: hf.source.files(where, format="ndjson", schema={"t": pl.Int64}, grow=True),
    "a list of files": lambda where: hf.source.files([where], format="ndjson", schema={"t": pl.Int64}),
    "replay": lambda where: hf.source.replay(ROWS, time="t", directory=where),
    "parquet": hf.sink.parquet,
    "ndjson": hf.sink.ndjson,
    "arrow": hf.sink.arrow,
    "read_output": lambda where: hf.read_output(where, "parquet"),
    "store": lambda where: RunOptions(store=where),  # type: ignore[arg-type]
    "volatile": lambda where: RunOptions(volatile=where),  # type: ignore[arg-type]
    "backups": lambda where: RunOptions(backups=(where,)),  # type: ignore[arg-type]
    "export": lambda where: hf.export_state("store", "p", "o", f"{where}.parquet"),
    "import": lambda where: hf.import_state("store", "p", "o", f"{where}.parquet"),
    "state": lambda where: hf.state(where, "p", "o"),
    "state_diff": lambda where: hf.state_diff(where, "p", "o", 1, 2),
}


OF_BUCKETS = {"files", "files, growing", "a list of files", "parquet", "ndjson", "arrow", "read_output"}
"""What also takes the address of an object store."""


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("address", [ADDRESS, "hdfs://host:9000/x", "gs:/collapsed", "file://elsewhere/x"])
def test_an_address_is_refused(taker: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if taker in OF_BUCKETS and address.startswith(("s3:", "gs:")):
        pytest.skip("an object store")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DeclarationError, match=r"is a URL.*\n.*cure: .*mount it"):
        TAKERS[taker](address)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize(
    ("path", "why"), [("in\0put/a", "NUL byte"), ("x" * 256 + "/a", "too long"), ("x/" * 2_500 + "a", "too long")]
)
def test_what_no_file_can_be_called_is_refused(
    taker: str, path: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DeclarationError, match=why):
        TAKERS[taker](path)
    assert list(tmp_path.iterdir()) == []


def test_the_home_directory_is_put_for_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert local_path("~/out", "x") == local_path(Path("~/out"), "x") == tmp_path / "out"
    assert local_path("./~/out", "x") == Path("~/out")
    assert local_path("out~", "x") == Path("out~")
    assert hf.sink.parquet("~/out").place == str(tmp_path / "out")
    assert RunOptions(store=Path("~/store")).store == tmp_path / "store"
    assert hf.source.files("~/in", format="ndjson", schema={"t": pl.Int64}, grow=True).files.root == str(
        tmp_path / "in"
    )


@pytest.mark.parametrize(
    "options",
    [
        ["status", "--store", ADDRESS],
        ["run", "x.py", "--store", ADDRESS],
        ["run", "x.py", "--volatile", ADDRESS],
        ["run", "x.py", "--backup", ADDRESS],
        ["host", "a", "--store", ADDRESS],
        ["up", "x.py", "--store", ADDRESS],
        ["state", "p", "o", "--export", ADDRESS],
    ],
)
def test_commands_refuse_an_address_as_wrong_usage(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 2
    assert "is a URL" in " ".join(result.output.split())
    assert list(tmp_path.iterdir()) == []


def test_paths_and_file_addresses_are_taken_as_they_are() -> None:
    assert local_path("out/a:b", "x") == Path("out/a:b")
    assert local_path("./s3:/really", "x") == Path("s3:/really")
    assert local_path("file:///data/with%20space", "x") == Path("/data/with space")
    assert local_path(Path("/data"), "x") == Path("/data")
