"""State goes out to a file and comes back, and the run goes on as if nothing had happened."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from msgspec import structs
from polars.testing import assert_frame_equal

import holdfast as hf
from harness import Cut
from holdfast.engine.lease import LeaseKeeper
from holdfast.epoch.record_change import record_of
from holdfast.errors import AlreadyRunningError, HoldfastError, UnknownColumnError, UnknownStateError, WrongTypeError
from holdfast.hidden_columns import DELETED, POSITION
from holdfast.meta import MetaStore, opened_meta
from holdfast.state import tables
from holdfast.state.inspection import open_operator
from holdfast.state.manifest import read_piece
from stateful import KINDS, lasting_process, timed_process
from stored import run_stored
from stored_texts import record_again, text

CUT = Cut(rows=100, tasks=2, partitions=3)


def _files(store: Path) -> list[Path]:
    return sorted(path for path in (store / "kinds" / "state").rglob("*") if path.is_file())


@pytest.mark.parametrize("ending", [pytest.param("parquet", marks=pytest.mark.long), "arrow"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_its_state_exported_and_imported_gives_the_same(kind: str, ending: str, tmp_path: Path) -> None:
    whole = run_stored(KINDS[kind](), tmp_path / "whole", CUT)["out"]
    store, file = tmp_path / "store", tmp_path / f"state.{ending}"
    first = run_stored(KINDS[kind](), store, CUT, epochs=3)["out"]
    before = hf.state(store, "kinds", "op")
    assert hf.export_state(store, "kinds", "op", file) == before.height > 0
    wipe(store)
    assert hf.import_state(store, "kinds", "op", file) >= before.height
    assert_frame_equal(hf.state(store, "kinds", "op"), before, check_row_order=False)
    rest = run_stored(KINDS[kind](), store, CUT)["out"]
    assert rest.height
    assert_frame_equal(pl.concat([first, rest]), whole, check_row_order=False)


def wipe(store: Path) -> None:
    """Leave no state behind, so that what the run goes on with is what was imported."""
    meta = MetaStore(store)
    with LeaseKeeper(meta, "kinds", time.time) as keeper:
        last = meta.last_commit("kinds")
        assert last is not None
        record = record_of(last)
        empty = tuple(replace(part, pieces=()) for part in record.state["op"])
        record_again(meta, keeper.lease, last.epoch, structs.replace(record, state={"op": empty}).encode())
    meta.close()


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_name_the_tables_as_the_steps_write_them(kind: str, tmp_path: Path) -> None:
    run_stored(KINDS[kind](), tmp_path, CUT, epochs=3)
    with opened_meta(tmp_path) as meta:
        found = open_operator(meta, tmp_path, "kinds", "op")
    seen = set()
    for part in found.parts:
        for piece in part.pieces:
            [table] = [known for known in found.layout.tables if known.name == piece.table]
            hidden = {DELETED: pl.Boolean()} if table.keyed else {}
            written = read_piece(found.files, piece).schema
            assert list(written.items()) == list({POSITION: pl.UInt64(), **table.schema, **hidden}.items())
            seen.add(table.name)
    assert seen == {table.name for table in found.layout.tables}


def test_another_number_of_partitions_is_no_matter(tmp_path: Path) -> None:
    run_stored(lasting_process(), tmp_path / "one", Cut(rows=100), epochs=3)
    run_stored(lasting_process(), tmp_path / "many", Cut(rows=100, partitions=4), epochs=3)
    wipe(tmp_path / "many")
    hf.export_state(tmp_path / "one", "kinds", "op", tmp_path / "f.parquet")
    hf.import_state(tmp_path / "many", "kinds", "op", tmp_path / "f.parquet")
    one, many = (hf.state(tmp_path / name, "kinds", "op") for name in ("one", "many"))
    assert_frame_equal(one, many, check_row_order=False)


def test_state_that_a_program_made_can_be_imported(tmp_path: Path) -> None:
    run_stored(lasting_process(), tmp_path, CUT, epochs=1)
    made = pl.DataFrame({"k": [1, 2, None], "total": [1.0, 2.0, 3.0], "touched": [0, 0, 0]})
    made.write_parquet(tmp_path / "made.parquet")
    hf.import_state(tmp_path, "kinds", "op", tmp_path / "made.parquet")
    assert_frame_equal(hf.state(tmp_path, "kinds", "op"), made, check_row_order=False)


@pytest.mark.parametrize(
    ("frame", "kind", "said"),
    [
        (pl.DataFrame({"k": [1], "total": [1.0]}), UnknownColumnError, "lacks the column 'touched'"),
        (pl.DataFrame({"k": [1], "total": [1.0], "touched": [1], "x": [1]}), UnknownColumnError, "a column 'x'"),
        (pl.DataFrame({"k": [1], "total": [1], "touched": [1]}), WrongTypeError, "'total' of the file is Int64"),
        (
            pl.DataFrame({"k": [1, 1], "total": [1.0, 2.0], "touched": [1, 1]}),
            WrongTypeError,
            r"key \(1,\) occurs twice",
        ),
        (
            pl.DataFrame({"k": [1], "total": [1.0], "touched": [None]}, schema_overrides={"touched": pl.Int64}),
            WrongTypeError,
            "'touched' is null",
        ),
    ],
    ids=["missing", "strange", "type", "twice", "null"],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(
    frame: pl.DataFrame, kind: type[HoldfastError], said: str, tmp_path: Path
) -> None:
    run_stored(lasting_process(), tmp_path, CUT, epochs=2)
    before, files = hf.state(tmp_path, "kinds", "op"), _files(tmp_path)
    frame.write_parquet(tmp_path / "made.parquet")
    with pytest.raises(kind, match=said) as caught:
        hf.import_state(tmp_path, "kinds", "op", tmp_path / "made.parquet")
    assert caught.value.operator == "op"
    assert_frame_equal(hf.state(tmp_path, "kinds", "op"), before)
    assert _files(tmp_path) == files


def test_state_of_another_kind_of_operator_is_refused(tmp_path: Path) -> None:
    run_stored(KINDS["sliding"](), tmp_path / "sliding", CUT, epochs=2)
    hf.export_state(tmp_path / "sliding", "kinds", "op", tmp_path / "f.arrow")
    run_stored(timed_process(), tmp_path / "process", CUT, epochs=2)
    with pytest.raises(WrongTypeError, match="kind of the exported operator 'op' is WindowAggregate"):
        hf.import_state(tmp_path / "process", "kinds", "op", tmp_path / "f.arrow")


def test_sessions_without_a_timer_are_refused(tmp_path: Path) -> None:
    run_stored(KINDS["sessions"](), tmp_path, CUT, epochs=2)
    state = hf.state(tmp_path, "kinds", "op").filter(pl.col("table") == "sessions")
    state.write_parquet(tmp_path / "f.parquet")
    with pytest.raises(WrongTypeError, match="no row in the table 'timers'"):
        hf.import_state(tmp_path, "kinds", "op", tmp_path / "f.parquet")


def test_an_import_into_a_running_pipeline_is_refused(tmp_path: Path) -> None:
    run_stored(lasting_process(), tmp_path, CUT, epochs=2)
    hf.export_state(tmp_path, "kinds", "op", tmp_path / "f.parquet")
    meta = MetaStore(tmp_path)
    with LeaseKeeper(meta, "kinds", time.time), pytest.raises(AlreadyRunningError, match="is being run by"):
        hf.import_state(tmp_path, "kinds", "op", tmp_path / "f.parquet")
    meta.close()
    hf.import_state(tmp_path, "kinds", "op", tmp_path / "f.parquet")


def test_a_pipeline_without_a_commit_has_nothing_to_import_into(tmp_path: Path) -> None:
    run_stored(lasting_process(), tmp_path, CUT, die="planned")
    with pytest.raises(UnknownStateError, match="no committed epoch"):
        hf.import_state(tmp_path, "kinds", "op", tmp_path / "f.parquet")


def test_a_write_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_stored(lasting_process(), tmp_path, CUT, epochs=2)
    hf.export_state(tmp_path, "kinds", "op", tmp_path / "f.parquet")
    files = _files(tmp_path)

    real, calls = tables.write_punit, []

    def failing(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError("the disk is gone")
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(tables, "write_punit", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        hf.import_state(tmp_path, "kinds", "op", tmp_path / "f.parquet")
    assert _files(tmp_path) == files


def test_only_a_committed_epoch_is_replaced(tmp_path: Path) -> None:
    run_stored(lasting_process(), tmp_path, CUT, epochs=2)
    run_stored(lasting_process(), tmp_path, CUT, die="planned")
    meta = MetaStore(tmp_path)
    wrong = pytest.raises(HoldfastError, match="epoch 3 was not committed")
    with LeaseKeeper(meta, "kinds", time.time) as keeper, wrong:
        record_again(meta, keeper.lease, 3, text({}))
    meta.close()


@pytest.mark.parametrize(
    ("name", "said"), [("f.csv", "neither a Parquet nor an Arrow"), ("g.parquet", "does not exist")]
)
def test_files_that_are_not_state_are_named(name: str, said: str, tmp_path: Path) -> None:
    run_stored(lasting_process(), tmp_path, CUT, epochs=1)
    with pytest.raises(HoldfastError, match=said):
        hf.import_state(tmp_path, "kinds", "op", tmp_path / name)
    (tmp_path / "bad.arrow").write_bytes(b"ARROW1 but not really")
    with pytest.raises(HoldfastError, match="cannot be read"):
        hf.import_state(tmp_path, "kinds", "op", tmp_path / "bad.arrow")
