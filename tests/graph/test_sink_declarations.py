"""Sinks that cannot keep what they are given are refused when they are declared."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import holdfast as hf
from holdfast.errors import DeclarationError


def rows(pipeline: hf.Pipeline, **columns: object) -> hf.Stream:
    return pipeline.source("in", hf.source.memory(pl.DataFrame({"v": [1], **columns})))


@pytest.mark.parametrize("make", [hf.sink.parquet, hf.sink.ndjson, hf.sink.arrow])
@pytest.mark.parametrize("name", ["epoch", "Epoch"])
def test_a_column_that_readers_would_get_the_number_of_the_epoch_for_is_refused(
    tmp_path: Path, make: type[hf.sink.Sink], name: str
) -> None:
    stream = rows(hf.Pipeline("p"), **{name: [1_700_000_000]})
    with pytest.raises(DeclarationError, match=f"operator 'out': column '{name}' would be lost") as caught:
        stream.sink("out", make(tmp_path / "out"))  # type: ignore[call-arg]
    assert f".alias('{name}_')" in caught.value.cure
    cured = stream.select(pl.exclude(name), pl.col(name).alias(f"{name}_"))
    cured.sink("out", make(tmp_path / "out"))  # type: ignore[call-arg]
    assert cured.schema.names() == ["v", f"{name}_"]
    stream.sink("seen", hf.sink.collect())


def test_two_sinks_on_one_path_are_refused_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "out")
    stream = rows(hf.Pipeline("p")).sink("one", hf.sink.parquet(tmp_path / "out"))
    for path in (tmp_path / "out", "out", "./other/../out", "link", "out/inside", tmp_path):
        with pytest.raises(DeclarationError, match="operator 'two': writes to the same place as sink 'one'"):
            stream.sink("two", hf.sink.ndjson(path))
    stream.sink("two", hf.sink.ndjson("out2"))


def test_what_two_sinks_would_keep_under_one_name_is_refused(tmp_path: Path) -> None:
    """The rows of the second would replace, or be taken for, those of the first."""
    url = f"sqlite:///{tmp_path / 'out.db'}"
    seen = hf.sink.collect()
    stream = rows(hf.Pipeline("p")).sink("one", seen).sink("a", hf.sink.database(url, "t", writer="w"))
    for name, sink in (("two", seen), ("b", hf.sink.database(url, "other", writer="w"))):
        with pytest.raises(DeclarationError, match="the same place"):
            stream.sink(name, sink)
    stream.sink("two", hf.sink.collect()).sink("b", hf.sink.database(url, "t", writer="x")).sink(
        "c", hf.sink.database(url, "t")
    )
