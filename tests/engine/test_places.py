"""A source does not read what the same run writes: such a run is refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import holdfast as hf
from holdfast.engine import fragment_run
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions
from holdfast.engine.place_checks import check_places
from holdfast.errors import DeclarationError

SCHEMA = {"k": pl.Int64}


def reading(where: str, out: str, home: Path) -> hf.Pipeline:
    pipeline = hf.Pipeline("p")
    source = hf.source.files(home / where, format="ndjson", schema=SCHEMA, grow=True)
    pipeline.source("in", source).sink("out", hf.sink.ndjson(home / out))
    return pipeline


@pytest.mark.parametrize("where", ["store", "store/deep", "store/*.json", "**/*", "*/*.json", "sto*/p/*", "link"])
def test_files_of_the_store_are_not_read(tmp_path: Path, where: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "store")
    with pytest.raises(DeclarationError, match=r"operator 'in'.*: files of the store .* would be read as input"):
        check_places(reading(where, "out", tmp_path), tmp_path / "store")


@pytest.mark.parametrize("where", ["out", "out/epoch=1", "out/*/*.ndjson"])
def test_the_output_of_the_pipeline_is_not_read(tmp_path: Path, where: str) -> None:
    with pytest.raises(DeclarationError, match="sink 'out' writes there"):
        check_places(reading(where, "out", tmp_path), tmp_path / "store")


@pytest.mark.parametrize("where", ["in", "*.json", ".", "in/**/*", "in*/deep/*"])
def test_what_is_beside_is_read(tmp_path: Path, where: str) -> None:
    check_places(reading(where, "out", tmp_path), tmp_path / "store")


def test_a_store_that_is_hidden_may_lie_among_the_input(tmp_path: Path) -> None:
    check_places(reading("**/*.json", "out", tmp_path), tmp_path / ".holdfast")


def test_a_run_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="would be read as input"):
        FragmentRun(reading("store", "out", tmp_path), InProcessPlatform(), RunOptions(store=tmp_path / "store"))
    assert list(tmp_path.iterdir()) == []


def test_the_directory_of_a_fragment_has_a_name_that_lasts_whoever_has_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(fragment_run, "sync_directory", synced.append)
    (tmp_path / "store" / "p").mkdir(parents=True)  # e.g. for the journal of its epochs
    pipeline = hf.Pipeline("p")
    pipeline.source("rows", hf.source.memory(pl.DataFrame({"n": [1]}))).sink("out", hf.sink.collect())
    FragmentRun(pipeline, InProcessPlatform(), RunOptions(store=tmp_path / "store")).close()
    assert synced == [tmp_path / "store", tmp_path]
