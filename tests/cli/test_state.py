"""`holdfast state` on a real store: keys, differences, files."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner, Result

import holdfast as hf
from harness import Cut
from holdfast.cli import main
from stored import run_stored

EVENTS = pl.DataFrame(
    {
        "i": range(60),
        "who": [f"user-{i % 5}" for i in range(60)],
        "ok": [i % 2 == 0 for i in range(60)],
        "day": [dt.date(2024, 1, 1 + i % 3) for i in range(60)],
        "at": [dt.datetime(2024, 1, 1, i % 3) for i in range(60)],
        "x": [float(i % 3) for i in range(60)],
    }
)


def seen(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    keys = [name for name in state.columns if name != "n"]
    fresh = rows.select(*keys, pl.lit(1, pl.Int64).alias("n"))
    return hf.Step(upserts=pl.concat([state, fresh]).group_by(keys).agg(pl.col("n").sum()))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    pipeline = hf.Pipeline("p")
    rows = pipeline.source("in", hf.source.memory([EVENTS[:30], EVENTS[30:]], epochs=True))
    for name in ("who", "ok", "day", "at", "x", "i"):
        keyed = rows.key_by(*(["who", "ok"] if name == "ok" else [name]))
        process = keyed.process(
            seen, state={"n": pl.Int64}, output={"n": pl.Int64}, keep_forever=True, name=f"by-{name}"
        )
        process.sink(f"out-{name}", hf.sink.collect())
    run_stored(pipeline, tmp_path / "store", Cut(rows=30, partitions=2))
    return tmp_path / "store"


def call(store: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["state", "p", *arguments, "--store", str(store)])


@pytest.mark.parametrize(
    ("operator", "keys", "n"),
    [
        ("by-who", ["who=user-3"], 12),
        ("by-ok", ["who=user-3", "ok=true"], 6),
        ("by-day", ["day=2024-01-02"], 20),
        ("by-at", ["at=2024-01-01 02:00:00"], 20),
        ("by-x", ["x=1"], 20),
        ("by-i", ["i=59"], 1),
    ],
)
def test_a_key_is_given_as_text(store: Path, operator: str, keys: list[str], n: int) -> None:
    told = call(store, operator, *(part for key in keys for part in ("--key", key)), "--json")
    assert told.exit_code == 0, told.output
    [row] = json.loads(told.output)
    assert row["n"] == n


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("by-who", "--key", "x=1"), 1, "the key has the columns who, not x"),
        (("by-i", "--key", "i=one"), 2, "'one' is not of type Int64"),
        (("by-ok", "--key", "ok=yes"), 2, "'yes' is not of type Boolean"),
        (("by-i", "--key", "i=1", "--key", "i=2"), 2, "twice"),
        (("by-i", "--export", "a.parquet", "--import", "b.parquet"), 2, "choose one"),
        (("by-i", "--diff", "1", "2", "--epoch", "1"), 2, "--epoch and --at cannot be used with"),
        (("by-i", "--diff", "1", "9"), 1, "epoch 9 is not retained"),
        (("by-i", "--export", "a.csv"), 1, "neither a Parquet nor an Arrow"),
    ],
)
def test_what_cannot_be_done_is_said(store: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    told = call(store, *arguments)
    assert told.exit_code == code, told.output
    assert said in " ".join(told.output.split())


def test_a_difference_is_a_table(store: Path) -> None:
    told = call(store, "by-who", "--diff", "1", "2", "--json")
    assert [(row["change"], row["n_before"], row["n_after"]) for row in json.loads(told.output)] == [
        ("changed", 6, 12)
    ] * 5


def test_state_goes_to_a_file_and_comes_back(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "early.parquet"
    assert "5 rows written" in call(store, "by-who", "--export", str(file), "--epoch", "1").output
    told = call(store, "by-who", "--import", str(file))
    assert told.exit_code == 0, told.output
    assert "the state of by-who has 5 rows now" in told.output
    assert hf.state(store, "p", "by-who")["n"].to_list() == [6] * 5
    assert pl.read_parquet(file).columns == ["who", "n"]
