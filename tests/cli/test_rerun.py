"""`holdfast rerun` and `holdfast why` on a real store."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from types import TracebackType

import polars as pl
import pytest
from click.testing import CliRunner, Result

from harness import Cut
from holdfast.cli import main
from holdfast.cli.pipeline_file import load_pipeline
from stored import run_stored

PROGRAM = """
import holdfast as hf
import polars as pl

COLUMNS = {"ts": pl.Int64, "page": pl.String, "price": pl.Float64}


def priced(rows: pl.DataFrame) -> pl.DataFrame:
    dearest = rows["price"].max()
    if dearest >= LIMIT:
        raise ValueError("too dear")
    return rows.with_columns(cents=(pl.col("price") * 100).cast(pl.Int64))


events = hf.source.files(INPUT, format="ndjson", schema=COLUMNS)
pipeline = hf.Pipeline("clicks")
windows = (
    pipeline.source("events", events, event_time="ts", time_unit="s")
    .map_batches(priced, schema={**COLUMNS, "cents": pl.Int64})
    .key_by("page")
    .window(hf.window.tumbling("10s"))
)
windows.agg(n=hf.count(), cents=hf.sum("cents")).named("counts").sink("results", hf.sink.collect())
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("clicks")
    (home / "in").mkdir()
    rows = [{"ts": i // 2, "page": ["/home", "/cart"][i % 2], "price": i / 4} for i in range(60)]
    (home / "in" / "a.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    program(home, "clicks.py", 100)
    run_stored(load_pipeline(str(home / "clicks.py")), home / "store", Cut(rows=20, partitions=2))
    return home


def program(home: Path, name: str, limit: float) -> Path:
    (home / name).write_text(PROGRAM.replace("LIMIT", str(limit)).replace("INPUT", repr(str(home / "in"))))
    return home / name


def call(*arguments: str | Path, given: str | None = None) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), input=given)


def test_it_says_what_the_epoch_did_and_that_it_is_equal(home: Path) -> None:
    told = call("rerun", home / "clicks.py", "2", "--store", home / "store")
    assert told.exit_code == 0, told.output
    assert "epoch 2 of 'clicks', run again from the state after epoch 1" in told.output
    assert "read: 20 rows of events" in told.output
    assert "equal to what was committed: numbers of rows, state of counts" in told.output
    assert "2 of 2 rows" in told.output


def test_programs_get_json_and_files(home: Path) -> None:
    told = call("rerun", home / "clicks.py", "2", "--store", home / "store", "--json", "--export", home / "again")
    found = json.loads(told.stdout)
    assert (found["epoch"], found["equal"], found["output"]) == (2, True, {"results": 2})
    assert pl.read_parquet(home / "again" / "output-results.parquet").height == 2
    assert {path.name for path in (home / "again").iterdir()} == {
        "output-results.parquet", "before-counts.parquet", "state-counts.parquet"
    }  # fmt: skip


def test_what_differs_ends_with_1(home: Path) -> None:
    changed = home / "changed.py"
    changed.write_text((home / "clicks.py").read_text().replace("* 100", "* 10"))
    told = call("rerun", changed, "2", "--store", home / "store", "--rows", "0")
    assert told.exit_code == 1
    assert "different from what was committed: state of counts" in told.output


def test_the_debugger_opens_where_the_error_was_raised(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dear = program(home, "dear.py", 6)
    looked_at: list[TracebackType] = []
    monkeypatch.setattr("pdb.post_mortem", looked_at.append)
    plain = call("rerun", dear, "2", "--store", home / "store")
    assert "operator 'map_batches', epoch 2: ValueError: too dear" in plain.output
    assert looked_at == []
    told = call("rerun", dear, "2", "--store", home / "store", "--pdb")
    assert told.exit_code == 1
    assert "ValueError: too dear" in told.output
    [frame] = [frame for frame, _ in traceback.walk_tb(looked_at[0])][-1:]
    assert (frame.f_code.co_name, frame.f_locals["dearest"]) == ("priced", 10.0)


def test_an_unknown_epoch_does_not_open_the_debugger(home: Path) -> None:
    told = call("rerun", home / "clicks.py", "9", "--store", home / "store", "--pdb")
    assert told.exit_code == 1
    assert "these can be run again: 1 to 3" in told.output


def test_why_shows_rows_state_and_slices(home: Path) -> None:
    where = ["--sink", "results", "--where", "page = '/home' and window_start = 10"]
    told = call("why", home / "clicks.py", "--store", home / "store", *where)
    assert told.exit_code == 0, told.output
    assert "input rows of events:" in told.output
    assert "10 of 10 rows" in told.output
    assert '"name": "a.ndjson"' in told.output
    assert "that is exact" in told.output
    found = json.loads(call("why", home / "clicks.py", "--store", home / "store", *where, "--json").stdout)
    assert len(found["tables"]["input rows of events"]) == 10
    assert found["notes"]
