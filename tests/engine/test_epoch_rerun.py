"""Epochs that are run again: the same output and state as then, whatever happened before, and a store that stays as it
is."""

from __future__ import annotations

import os
import shutil
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from msgspec import structs
from polars.testing import assert_frame_equal

import holdfast as hf
from harness import Cut, CutPace, Stepping, options, platform, run_in
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.fragment_runs import open_cuts
from holdfast.engine.loop import Loop
from holdfast.epoch.digest import digest_of
from holdfast.epoch.record import EpochRecord
from holdfast.epoch.record_change import records_of
from holdfast.epoch.transaction import committing
from holdfast.errors import DeclarationError, OperatorError, PipelineChangedError, UnknownStateError
from holdfast.meta import MetaStore, opened_meta
from holdfast.store import DirectoryStore
from stateful import EVENTS, KINDS
from stored import Killed, run_stored

CUT = Cut(tasks=2, partitions=3)
EPOCHS = 6
LONG = bool(os.environ.get("HOLDFAST_FUZZ"))
SIMILAR = ("process", "tumbling of all", "session of all", "count of all")
"""Kinds of operators that are like one of the others."""


def content(store: Path) -> dict[Path, tuple[int, bytes]]:
    """Every file of a store, with the time of its last change."""
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in store.rglob("*") if path.is_file()}


def epoch_by_epoch(build: Any, store: Path, cut: Cut = CUT) -> dict[int, pl.DataFrame]:
    """A run to its end, and what each epoch has put out."""
    stepping = Stepping(store, build(), cut)
    found: dict[int, pl.DataFrame] = {}
    before = 0
    with stepping.run.seated():
        while stepping.epoch():
            rows = stepping.outcome.sinks["out"]
            found[len(found) + 1], before = rows[before:], rows.height
    assert len(found) == EPOCHS
    return found


def same_rows(found: pl.DataFrame, expected: pl.DataFrame) -> None:
    assert Counter(map(repr, found.iter_rows())) == Counter(map(repr, expected.iter_rows()))


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.long) if kind in SIMILAR else kind for kind in KINDS]
)
def test_an_epoch_gives_the_output_and_the_state_that_it_gave(kind: str, tmp_path: Path) -> None:
    expected = epoch_by_epoch(KINDS[kind], tmp_path)
    before = content(tmp_path)
    for epoch in range(1, EPOCHS + 1) if LONG else (1, 4):
        again = hf.rerun(KINDS[kind](), epoch, store=tmp_path)
        assert again.equal, str(again)
        assert list(again.found) == ["numbers of rows", "state of op"]
        same_rows(again.output["out"], expected[epoch])
        assert again.put_out["op"].height == again.output["out"].height
        assert_frame_equal(again.state["op"], hf.state(tmp_path, "kinds", "op", epoch=epoch), check_row_order=False)
        assert again.read == {"in": 100}
    assert content(tmp_path) == before
    assert sum(rows.height for rows in expected.values()) > 0


@pytest.mark.parametrize("kind", ["process with timers", "join"])
def test_it_does_so_after_changes_of_scale_and_merges_of_state(kind: str, tmp_path: Path) -> None:
    cut = Cut(tasks=2, scales=(1, 3, 2), merges=(1, 2))
    run_stored(KINDS[kind](), tmp_path, cut)
    for epoch in (2, 5):
        again = hf.rerun(KINDS[kind](), epoch, store=tmp_path)
        assert again.equal, str(again)


def test_late_rows_are_late_again(tmp_path: Path) -> None:
    outcome = Stepping(tmp_path, KINDS["sessions"](), CUT, most_epochs=3).to_the_end()
    late = Counter[str]()
    for epoch in range(1, 4):
        again = hf.rerun(KINDS["sessions"](), epoch, store=tmp_path)
        assert again.equal, str(again)
        late.update(again.late)
    assert late == outcome.late
    assert late["op"] > 10


def test_an_epoch_that_a_crash_left_planned_can_be_run_before_and_after_its_recovery(tmp_path: Path) -> None:
    run_stored(KINDS["process"](), tmp_path, CUT, epochs=2)
    run_stored(KINDS["process"](), tmp_path, CUT, die="planned")
    planned = hf.rerun(KINDS["process"](), 3, store=tmp_path)
    assert planned.equal is None
    assert "nothing to compare with" in str(planned)
    run_stored(KINDS["process"](), tmp_path, CUT)
    recovered = hf.rerun(KINDS["process"](), 3, store=tmp_path)
    assert recovered.equal, str(recovered)
    same_rows(recovered.output["out"], planned.output["out"])
    assert planned.output["out"].height


def test_epochs_whose_state_is_gone_are_run_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = epoch_by_epoch(KINDS["process"], tmp_path)
    with opened_meta(tmp_path) as meta:
        records = records_of(meta.commits("kinds"))
    gone, found = (records[2].files() | records[3].files()) - records[1].files(), DirectoryStore.found
    monkeypatch.setattr(DirectoryStore, "found", lambda self, name: None if name in gone else found(self, name))
    again = hf.rerun(KINDS["process"](), 4, store=tmp_path)
    assert again.after == 1
    assert again.equal, str(again)
    same_rows(again.output["out"], expected[4])
    assert_frame_equal(
        again.before["op"], hf.rerun(KINDS["process"](), 3, store=tmp_path).state["op"], check_row_order=False
    )


def retaining(build: Any, store: Path, retain: int) -> None:
    """Runs of one epoch each, that retain so many: each start writes its record whole."""
    for epoch in range(1, EPOCHS + 1):
        chosen = options(store, CUT, retain=retain, max_epochs=epoch)
        FragmentRun(build(), platform(CUT, lambda loop: None), chosen, pace=CutPace(CUT), clock=lambda: 0.0).run()


def test_an_epoch_that_is_not_retained_is_refused_with_those_that_are(tmp_path: Path) -> None:
    retaining(KINDS["process"], tmp_path, 2)
    assert hf.rerun(KINDS["process"](), EPOCHS, store=tmp_path).equal
    with pytest.raises(UnknownStateError, match=f"epoch {EPOCHS + 1} of 'kinds' is not retained") as error:
        hf.rerun(KINDS["process"](), EPOCHS + 1, store=tmp_path)
    assert f"these can be run again: {EPOCHS - 1} to {EPOCHS}; `retain` of a run (--retain)" in error.value.cure
    with pytest.raises(UnknownStateError, match="not retained"):
        hf.rerun(KINDS["process"](), 3, store=tmp_path)


def test_state_that_was_in_memory_is_read_there_and_made_again_when_it_is_lost(tmp_path: Path) -> None:
    store, volatile = tmp_path / "store", tmp_path / "volatile"

    def die(loop: Loop) -> None:
        if loop.machine.committed == 3:
            raise Killed

    chosen = options(store, CUT, checkpoint="interval(100s)", volatile=volatile)
    run = FragmentRun(KINDS["sliding"](), platform(CUT, die), chosen, pace=CutPace(CUT), clock=lambda: 0.0)
    with pytest.raises(Killed):
        run.run()
    there = hf.rerun(KINDS["sliding"](), 3, store=store)
    assert (there.after, there.equal) == (2, True)
    assert "state of op" in there.found
    shutil.rmtree(volatile)
    lost = hf.rerun(KINDS["sliding"](), 3, store=store)
    assert (lost.after, lost.equal) == (0, True)
    assert list(lost.found) == ["numbers of rows"]
    same_rows(lost.output["out"], there.output["out"])


def test_a_pipeline_or_store_without_epochs_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownStateError, match="there is no store at"):
        hf.rerun(KINDS["process"](), 1, store=tmp_path)
    run_stored(KINDS["process"](), tmp_path, CUT, epochs=1)
    other = hf.Pipeline("other")
    other.source("in", hf.source.memory(EVENTS)).sink("out", hf.sink.collect())
    with pytest.raises(UnknownStateError, match="pipeline 'other' has no epoch in") as error:
        hf.rerun(other, 1, store=tmp_path)
    assert error.value.cure == "the store has: kinds"


def totals(factor: float) -> hf.Pipeline:
    def doubled(rows: pl.DataFrame) -> pl.DataFrame:
        if factor == 0:
            worst = rows["v"].max()
            raise ZeroDivisionError(f"no factor for {worst}")
        return rows.with_columns(pl.col("v") * factor)

    pipeline = hf.Pipeline("kinds")
    rows = pipeline.source("in", hf.source.memory([EVENTS[:300], EVENTS[300:]], epochs=True), event_time="ts",
                           time_unit="s", lateness="3s")  # fmt: skip
    windows = rows.map_batches(doubled, schema=EVENTS.schema).key_by("k").window(hf.window.tumbling("50s"))
    windows.agg(v=hf.sum("v")).named("op").sink("out", hf.sink.collect())
    return pipeline


def test_code_that_gives_something_else_is_told_with_what_differs(tmp_path: Path) -> None:
    run_stored(totals(2.0), tmp_path)
    assert hf.rerun(totals(2.0), 1, store=tmp_path).equal
    changed = hf.rerun(totals(3.0), 1, store=tmp_path)
    assert changed.equal is False
    assert list(changed.differences) == ["state of op"]
    assert "different from what was committed: state of op: column" in changed.verdict()


def test_code_that_would_misread_the_state_is_refused(tmp_path: Path) -> None:
    run_stored(KINDS["process"](), tmp_path, CUT, epochs=2)
    with pytest.raises(PipelineChangedError, match="kind of 'op' was KeyedProcess"):
        hf.rerun(KINDS["sliding"](), 2, store=tmp_path)


def test_an_error_has_the_frames_of_the_users_function(tmp_path: Path) -> None:
    run_stored(totals(2.0), tmp_path)
    with pytest.raises(OperatorError, match=r"no factor for 12\.0") as error:
        hf.rerun(totals(0), 2, store=tmp_path)
    cause = error.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    [frame] = [frame for frame, _ in traceback.walk_tb(cause.__traceback__) if frame.f_code.co_name == "doubled"]
    assert frame.f_locals["worst"] == 12.0


def test_functions_are_called_as_they_are_not_as_copies(tmp_path: Path) -> None:
    seen: list[int] = []

    def build(note: bool) -> hf.Pipeline:
        pipeline = hf.Pipeline("p")

        def look(rows: pl.DataFrame) -> pl.DataFrame:
            if note:
                seen.append(rows.height)
            return rows

        rows = pipeline.source("in", hf.source.memory(EVENTS)).map_batches(look, schema=EVENTS.schema)
        rows.sink("out", hf.sink.collect())
        return pipeline

    run_stored(build(False), tmp_path)
    assert hf.rerun(build(True), 1, store=tmp_path).equal
    assert seen == [EVENTS.height]


class Untouchable(hf.sink.DriverSink):
    """A sink that must not be called."""

    def before_commit(self, epoch: int, rows: pl.DataFrame) -> None:
        raise AssertionError("a sink was called")


def to_files(out: Path) -> hf.Pipeline:
    pipeline = hf.Pipeline("p")
    rows = pipeline.source("in", hf.source.memory([EVENTS[:300], EVENTS[300:]], epochs=True))
    rows.filter(pl.col("v") > 3).sink("out", hf.sink.parquet(out, every=0))
    return pipeline


def test_rows_are_compared_with_the_files_of_the_output(tmp_path: Path) -> None:
    run_stored(to_files(tmp_path / "out"), tmp_path / "store")
    published = content(tmp_path / "out")
    again = hf.rerun(to_files(tmp_path / "out"), 2, store=tmp_path / "store")
    assert again.equal
    assert list(again.found) == ["numbers of rows", "rows of out"]
    assert content(tmp_path / "out") == published
    [file] = (tmp_path / "out").glob("*=*2/*.parquet")
    pl.read_parquet(file).with_columns(v=pl.lit(1.0)).write_parquet(file)
    changed = hf.rerun(to_files(tmp_path / "out"), 2, store=tmp_path / "store")
    assert list(changed.differences) == ["rows of out"]
    file.unlink()
    gone = hf.rerun(to_files(tmp_path / "out"), 2, store=tmp_path / "store")
    assert list(gone.found) == ["numbers of rows", "number of rows of out"]
    assert gone.equal


def rewrite(store: Path, epoch: int, **changes: Any) -> EpochRecord:
    meta = MetaStore(store, sync=False)
    lease = meta.acquire("kinds", "a test", 0.0, 1.0)
    record = structs.replace(records_of(meta.commits("kinds"))[epoch], **changes)
    with committing(meta, lease, epoch) as transaction:
        transaction.record_again(record)
    meta.release(lease)
    meta.close()
    return record


def test_rows_are_compared_with_the_checksums_that_replicas_keep(tmp_path: Path) -> None:
    rows = epoch_by_epoch(KINDS["sliding"], tmp_path)[4]
    rewrite(tmp_path, 4, digest={"out": digest_of(rows.sort("k"))})
    again = hf.rerun(KINDS["sliding"](), 4, store=tmp_path)
    assert list(again.found) == ["numbers of rows", "rows of out", "state of op"]
    assert again.equal
    rewrite(tmp_path, 4, digest={"out": digest_of(rows.with_columns(pl.col("n") + 1))})
    assert list(hf.rerun(KINDS["sliding"](), 4, store=tmp_path).differences) == ["rows of out"]


def test_what_a_recovery_left_out_is_not_compared(tmp_path: Path) -> None:
    run_stored(KINDS["process"](), tmp_path, CUT, epochs=4)
    rewrite(tmp_path, 3, gap=2)
    again = hf.rerun(KINDS["process"](), 3, store=tmp_path)
    assert again.equal is None
    assert again.output["out"].height


def test_operators_that_were_renamed_are_found(tmp_path: Path) -> None:
    def named(name: str, was: str | None) -> hf.Pipeline:
        pipeline = hf.Pipeline("kinds")
        rows = pipeline.source("in", hf.source.memory([EVENTS[:300], EVENTS[300:]], epochs=True), event_time="ts",
                               time_unit="s", lateness="3s")  # fmt: skip
        counts = rows.key_by("k").window(hf.window.tumbling("50s"), name=name, was=was).agg(n=hf.count())
        counts.sink("out", hf.sink.collect())
        return pipeline

    run_stored(named("old", None), tmp_path, CUT)
    again = hf.rerun(named("new", "old"), 2, store=tmp_path)
    assert list(again.state) == ["new"]
    assert again.equal, str(again)


def fragments(home: Path) -> hf.Pipeline:
    pipeline = hf.Pipeline("p")
    source = hf.source.memory([EVENTS[at : at + 100] for at in range(0, 600, 100)], epochs=True)
    kept = pipeline.source("in", source, event_time="ts", time_unit="s", lateness="3s").persist("kept", push_up=False)
    kept.key_by("k").window(hf.window.tumbling("50s")).agg(n=hf.count()).named("op").sink("out", hf.sink.collect())
    return pipeline


def test_each_fragment_has_epochs_of_its_own(tmp_path: Path) -> None:
    meta = MetaStore(tmp_path, sync=False)
    made = open_cuts(fragments(tmp_path), meta)
    meta.close()
    writer, reader = (fragment for fragment in made.fragments)
    run_in(tmp_path, writer.pipeline, CUT)
    with pytest.raises(DeclarationError, match="p-streams cut 'p' into fragments") as error:
        hf.rerun(fragments(tmp_path), 2, store=tmp_path)
    assert "one of: kept, out" in error.value.cure
    again = hf.rerun(fragments(tmp_path), 2, store=tmp_path, fragment="kept")
    assert again.equal
    assert list(again.found) == ["numbers of rows", "rows of kept"]
    assert again.output["kept"].height == 100
    run_stored(reader.pipeline, tmp_path, Cut(rows=200, partitions=2), die="planned")
    planned = hf.rerun(fragments(tmp_path), 1, store=tmp_path, fragment="p.out")
    assert planned.read == {"kept": 200}
    run_in(tmp_path, reader.pipeline, Cut(rows=200, partitions=2))
    with pytest.raises(UnknownStateError, match=r"has read p-stream 'p.kept', which has released those rows"):
        hf.rerun(fragments(tmp_path), 1, store=tmp_path, fragment="out")
    later = hf.rerun(fragments(tmp_path), 2, store=tmp_path, fragment="kept")
    assert list(later.found) == ["numbers of rows"], "the rows are released"
