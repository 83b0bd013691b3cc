"""New code that follows a pipeline as its shadow: what is compared, the verdict, and what is refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest
from msgspec import structs

import holdfast as hf
from holdfast.cli.pipeline_file import load_pipeline
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions
from holdfast.errors import AlreadyRunningError, DeclarationError, HoldfastError, PipelineChangedError
from holdfast.meta import Commit, FollowerNeeds, MetaStore, PlannedEpoch, RunNotes
from holdfast.replica.deployment import deploy, deployment_of
from holdfast.replica.host import Host, HostSettings
from holdfast.replica.host_events import HostEvent
from holdfast.replica.keeper import Timing
from holdfast.replica.promotion import promote
from holdfast.replica.schemes.passive_replication import PASSIVE_REPLICATION
from holdfast.replica.seat_store import Agreement
from holdfast.replica.shadow import Shadow, ShadowSettings
from holdfast.replica.shadow_checks import check_alone, succession
from holdfast.replica.shadow_report import ShadowReport, kept_shadows
from holdfast.replica.shadow_rows import only_in, with_rows
from holdfast.watch.event_log import EventLog

CODE = """
import holdfast as hf
import polars as pl

pipeline = hf.Pipeline("shop")
schema = {"at": pl.Int64, "k": pl.Int64}
source = hf.source.files("<in>", format="ndjson", schema=schema, grow=True, settle=0)
rows = pipeline.source("rows", source, event_time="at", time_unit="s")
counts = rows.key_by("k").window(hf.window.tumbling("10s"), name="counts").agg(n=hf.count())
counts.sink("out", hf.sink.ndjson("<out>", every="0s"))
"""


class Hosted:
    """A host that runs `old.py` in this process, with rows that the test gives it."""

    def __init__(self, place: Path) -> None:
        self.place, self.store = place, place / "store"
        self.input, self.files = place / "in", 0
        self.input.mkdir()
        self.meta = MetaStore(self.store, sync=False)
        self.agreement = Agreement(self.meta, "test", time.time)
        old = self.code("old")
        options = RunOptions(store=self.store, least_rows=10, most_rows=10, tasks=1, partitions=2, durable=False,
                             retain="10 min")  # fmt: skip
        deployed = deployment_of(load_pipeline(old), old, options, self.meta, PASSIVE_REPLICATION, "delta", ("a",))
        deploy(deployed, self.agreement, self.meta)
        self.events = EventLog(self.store, "host-a")
        timing = Timing(beat=0.05, detection=30.0)
        settings = HostSettings(name="a", store=self.store, volatile=place / "a", timing=timing, sync=False)
        self.told: list[HostEvent] = []
        self.host = Host(settings, load_pipeline, self.told.append, events=self.events)

    def code(self, name: str, *changes: tuple[str, str]) -> str:
        """A file with the pipeline, changed; what names its pipeline."""
        text = CODE.replace("<in>", str(self.input)).replace("<out>", str(self.place / "out"))
        for before, after in changes:
            assert before in text
            text = text.replace(before, after)
        path = self.place / f"{name}.py"
        path.write_text(text)
        return f"{path}:pipeline"

    def feed(self, files: int = 1) -> None:
        for _ in range(files):
            begin = 10 * self.files
            made = pl.DataFrame({"at": range(begin, begin + 10), "k": [number % 3 for number in range(10)]})
            path = self.input / f"{self.files:04d}.ndjson"
            draft = path.with_suffix(".tmp")  # which no source looks at
            made.write_ndjson(draft)
            draft.rename(path)
            self.files += 1

    def commits(self, epochs: int) -> None:
        until(lambda: self.meta.last_epoch("shop") >= epochs, self)

    def shadow(self, code: str, epochs: int = 5, told: Callable[[ShadowReport], None] = lambda report: None) -> Shadow:
        found = succession(load_pipeline(code), code, self.meta, self.agreement, time.time())
        settings = ShadowSettings(store=self.store, epochs=epochs, volatile=self.place / "shadow")
        return Shadow(found, settings, InProcessPlatform(), self.agreement, FollowerNeeds(self.meta), told)

    def followed(self, code: str, epochs: int = 5) -> tuple[Shadow, ShadowReport]:
        """A shadow with its verdict, which gets enough rows for it."""
        known = self.meta.last_epoch("shop")
        began = threading.Event()
        made = self.shadow(code, epochs, lambda report: began.set())
        found: list[ShadowReport] = []
        thread = threading.Thread(target=lambda: found.append(made.follow()))
        thread.start()
        began.wait(30.0)
        for wanted in range(known + 1, known + 200):
            if not thread.is_alive():
                break
            self.feed()
            self.commits(wanted)
        thread.join()
        return made, found[0]

    def output(self) -> dict[tuple[int, int], int]:
        found = [
            row for path in (self.place / "out").glob("epoch=*/*.ndjson") for row in pl.read_ndjson(path).to_dicts()
        ]
        assert len(found) == len({(row["k"], row["window_start"]) for row in found}), "a row is there twice"
        return {(row["k"], row["window_start"]): row["n"] for row in found}


def until(condition: Callable[[], object], hosted: Hosted | None = None) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, hosted and [*map(str, hosted.told[-4:]), hosted.files]
        time.sleep(0.01)


@contextmanager
def hosting(place: Path) -> Iterator[Hosted]:
    made = Hosted(place)
    thread = threading.Thread(target=made.host.run, args=(InProcessPlatform(),), daemon=True)
    made.host.beat()
    thread.start()
    try:
        made.feed(3)
        made.commits(3)
        yield made
    finally:
        made.host.stop()
        thread.join(30.0)
        made.events.close()
        made.meta.close()


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[Hosted]:
    with hosting(tmp_path) as made:
        yield made


def test_new_code_that_puts_out_the_same_takes_the_seat_and_no_row_is_lost(hosted: Hosted) -> None:
    new = hosted.code("new", ("rows.key_by", 'rows.filter(pl.col("k") >= 0).key_by'))
    _, report = hosted.followed(new)
    assert (report.state, report.compared) == ("equal", {"shop": 5}), report.verdict
    assert report.sinks["out"] >= 4
    assert "equal for 5 epochs" in report.verdict
    assert kept_shadows(hosted.store)["shop"] == [report]
    assert RunNotes(hosted.meta).code("shop", "a") == hosted.code("old")
    promoted, deployment = promote(report, load_pipeline(new), hosted.meta, hosted.agreement, hosted.store, by="a test")
    hosted.feed(2)
    until(lambda: RunNotes(hosted.meta).code("shop", "a") == new, hosted)
    hosted.feed(2)
    assert deployment.target == new
    assert promoted.promoted is not None
    whole = {(k, 10 * window): len(range(k, 10, 3)) for window in range(hosted.files - 1) for k in range(3)}
    until(lambda: hosted.output() == whole, hosted)
    assert "shadow: new.py equal for 5 epochs" in "\n".join(hf.events(hosted.store, kind="shadow")["text"])
    with pytest.raises(DeclarationError, match="already"):
        promote(promoted, load_pipeline(new), hosted.meta, hosted.agreement, hosted.store, by="a test")


def test_new_code_that_puts_out_something_else_is_told_with_the_rows(hosted: Hosted) -> None:
    other = hosted.code("new", ("rows.key_by", 'rows.filter(pl.col("at") % 10 != 3).key_by'))
    made, report = hosted.followed(other)
    assert report.state == "differs"
    assert (report.fragment, list(report.differences)) == ("shop", ["out"])
    assert f"differs at epoch {report.epoch} of 'shop' in sink out" in report.verdict
    report = with_rows(report, made.differing, load_pipeline(hosted.code("old")), hosted.store, None)
    assert report.problem == ""
    [lost], [extra] = report.only_committed, report.only_shadow
    assert (lost.replace("n=4", "n=3"), "k=0" in lost) == (extra, True)
    with pytest.raises(DeclarationError, match="no verdict that its output is equal"):
        promote(report, load_pipeline(other), hosted.meta, hosted.agreement, hosted.store, by="a test")
    again, _ = promote(
        report, load_pipeline(other), hosted.meta, hosted.agreement, hosted.store, by="a test", differing=True
    )
    until(lambda: RunNotes(hosted.meta).code("shop", "a") == other, hosted)
    assert again.promoted is not None


def test_only_the_state_may_differ_and_that_is_told_too(hosted: Hosted) -> None:
    # The window that an epoch closes has the rows of before, which the old code has counted.
    state = hosted.code("new", ("rows.key_by", 'rows.filter(pl.col("at") % 10 != 3).key_by'))
    _, report = hosted.followed(state, epochs=1)
    assert (report.state, list(report.differences)) == ("differs", ["counts"]), report.verdict
    assert "state: " in report.verdict


def test_an_error_of_new_code_is_its_verdict_and_leaves_the_old_code_alone(hosted: Hosted) -> None:
    raising = "rows.map_batches(lambda batch: batch.select('nothing'), schema=schema).key_by"
    bad = hosted.code("new", ("rows.key_by", raising))
    _, report = hosted.followed(bad)
    assert report.state == "failed"
    assert "failed after 0 epochs with equal output" in report.verdict
    assert "nothing" in report.verdict
    hosted.feed()
    hosted.commits(hosted.meta.last_epoch("shop") + 1)
    assert not list((hosted.store / "shop" / "shadow").glob("**/*.arrow"))


def test_what_cannot_follow_is_refused_with_what_to_do(hosted: Hosted) -> None:
    def check(code: str, error: type[HoldfastError], match: str) -> None:
        with pytest.raises(error, match=match):
            succession(load_pipeline(code), code, hosted.meta, hosted.agreement, time.time())

    check(hosted.code("window", ("10s", "20s")), PipelineChangedError, "window of 'counts' was")
    check(hosted.code("key", ('"k")', '"at")')), PipelineChangedError, "keys of 'counts'")
    check(
        hosted.code("renamed", ('name="counts"', 'name="totals", was="counts"')), PipelineChangedError,
        "'counts' is called 'totals' now",
    )  # fmt: skip
    check(hosted.code("cut", ("rows.key_by", 'rows.persist("kept").key_by')), PipelineChangedError, "new is kept")
    check(hosted.code("other", ('"shop"', '"another"')), HoldfastError, "no hosts run 'another'")
    check(hosted.code("old"), DeclarationError, "put the new code into another file")
    _, report = hosted.followed(hosted.code("new"), epochs=2)
    assert report.state == "equal"
    check_alone({"shop": [report]}, "shop")
    with pytest.raises(AlreadyRunningError, match="already has a shadow"):
        check_alone({"shop": [structs.replace(report, state="follows")]}, "shop")
    hosted.code("new", ("10s", "10 s"))
    with pytest.raises(DeclarationError, match="has changed since its verdict"):
        promote(report, load_pipeline(report.code), hosted.meta, hosted.agreement, hosted.store, by="a test")


def test_a_shadow_has_state_of_its_own_after_it_was_merged(hosted: Hosted) -> None:
    made = hosted.shadow(hosted.code("new"), epochs=40)
    found: list[ShadowReport] = []
    thread = threading.Thread(target=lambda: found.append(made.follow()))
    thread.start()
    for wanted in range(hosted.meta.last_epoch("shop") + 1, hosted.meta.last_epoch("shop") + 80):
        hosted.feed()
        hosted.commits(wanted)
        if not thread.is_alive():
            break
    thread.join()
    assert found[0].state == "equal", found[0].verdict
    assert not any((hosted.place / "shadow").glob("**/*.arrow"))


def test_an_epoch_that_comes_between_two_looks_is_not_taken_to_be_gone(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up, waited = MetaStore.look_up, list[int]()

    def late(meta: MetaStore, pipeline: str, epoch: int) -> Commit | PlannedEpoch | None:
        found = look_up(meta, pipeline, epoch)
        if found is None and threading.current_thread().name.startswith("shadow-"):
            hosted.feed()
            hosted.commits(epoch)
            waited.append(epoch)
        return found

    monkeypatch.setattr(MetaStore, "look_up", late)
    report = hosted.shadow(hosted.code("new"), epochs=6).follow()
    assert (report.state, waited[:6]) == ("equal", [4, 5, 6, 7, 8, 9]), report.verdict


def test_a_shadow_that_is_far_behind_is_waited_for_with_the_epochs_that_it_has_yet_to_run(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up, behind = MetaStore.look_up, list[int]()

    def late(meta: MetaStore, pipeline: str, epoch: int) -> Commit | PlannedEpoch | None:
        if threading.current_thread().name.startswith("shadow-") and not behind:
            behind.append(epoch)
            for number in range(60):  # many more than are retained
                hosted.feed()
                hosted.commits(epoch + number)
        return look_up(meta, pipeline, epoch)

    monkeypatch.setattr(MetaStore, "look_up", late)
    report = hosted.shadow(hosted.code("new"), epochs=60).follow()
    assert (report.state, behind) == ("equal", [4]), report.verdict
    hosted.feed(2)
    until(lambda: len(hosted.meta.commits("shop")) < 60, hosted)  # nobody follows any more


def test_rows_that_only_one_side_has() -> None:
    committed = pl.DataFrame({"k": [1, 1, 2], "x": [0.1 + 0.2, 1.0, 2.0]})
    shadow = pl.DataFrame({"k": [1, 2, 2], "x": [0.3, 2.0, 2.0]})
    assert only_in(committed, shadow) == (("k=1, x=1",), ("k=2, x=2",))
    assert only_in(committed, committed) == ((), ())
