"""A file sink in an object store: nothing is lost, nothing comes twice, whoever dies at whichever step."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from buckets import TestBucket
from file_sinks import OWN, OWNER, prepared, rows

import holdfast as hf
from harness import Cut, run_in
from holdfast.connect.object_store.bucket import Bucket
from holdfast.connect.sinks.object_sink import ObjectSink
from holdfast.engine.place_checks import check_places
from holdfast.errors import (
    CorruptFileError,
    DeclarationError,
    HoldfastError,
    InputError,
    LeaseLostError,
    OutputConflictError,
    OutputUnwritableError,
)
from holdfast.sink import Owner, Receipt, arrow, ndjson, parquet
from holdfast.store import Right
from holdfast_lab.chaos.s3_server import S3Fault

LONG = bool(os.environ.get("HOLDFAST_FUZZ"))
MAKERS: list[Callable[..., Any]] = [parquet, ndjson, arrow]


def made(
    bucket: TestBucket, make: Callable[..., Any] = parquet, owner: Owner = OWNER, key: str = "a/out"
) -> ObjectSink:
    sink = make(bucket.url(key), storage_options=bucket.options)
    assert isinstance(sink, ObjectSink)
    sink.attach(owner)
    return sink


def begun(bucket: TestBucket, make: Callable[..., Any] = parquet) -> ObjectSink:
    sink = made(bucket, make)
    sink.check(0, {})
    return sink


def output(bucket: TestBucket, form: Any = "parquet", key: str = "a/out") -> pl.DataFrame:
    return hf.read_output(bucket.url(key), form, storage_options=bucket.options)


def keys(frame: pl.DataFrame) -> list[int]:
    return frame["k"].to_list()


def beside(bucket: TestBucket, kind: str) -> list[str]:
    return [key for key in bucket.keys("") if f".out.holdfast/{kind}" in key]


@pytest.mark.parametrize("make", MAKERS)
def test_rows_are_seen_when_they_are_published(bucket: TestBucket, make: Callable[..., Any]) -> None:
    sink = begun(bucket, make)
    receipts = prepared(sink, 1)
    assert output(bucket, sink.format).height == 0
    assert bucket.keys("a/out") == []
    sink.publish(1, receipts)
    assert keys(output(bucket, sink.format)) == [10, 11, 12]
    sink.forget(1, receipts, OWN)
    assert beside(bucket, "staged") == []
    assert bucket.keys("a/out") == [f"a/out/epoch=000000000001/part-0000{n}.{sink.format}" for n in (0, 1)]
    assert "test-secret" not in repr(sink.__dict__) + sink.describe()


def test_anybody_reads_plain_files_and_the_manifests_tell_which_are_complete(bucket: TestBucket) -> None:
    sink = begun(bucket)
    for epoch in (1, 2):
        sink.publish(epoch, prepared(sink, epoch))
    prepared(sink, 3)  # committed by nobody
    s3 = {
        "aws_endpoint_url": bucket.server.endpoint,
        "aws_access_key_id": "x",
        "aws_secret_access_key": "y",
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }
    for place in ("a/out/", "a/out/**/*.parquet"):
        found = pl.read_parquet(bucket.url(place), storage_options=s3, credential_provider=None)
        assert sorted(keys(found)) == [10, 11, 12, 20, 21, 22]
    manifests = [json.loads(bucket.bucket.get(key) or b"") for key in beside(bucket, "manifests")]
    assert [(manifest["epoch"], manifest["rows"], len(manifest["files"])) for manifest in manifests] == [
        (1, 3, 2),
        (2, 3, 2),
    ]


def test_small_files_of_several_epochs_become_one(bucket: TestBucket) -> None:
    sink = begun(bucket)
    receipts = [receipt for epoch in (1, 2, 3) for receipt in prepared(sink, epoch)]
    sink.publish(3, receipts)
    assert bucket.keys("a/out") == ["a/out/epoch=000000000003/part-00000.parquet"]
    assert keys(output(bucket)) == [10, 11, 12, 20, 21, 22, 30, 31, 32]


def test_epochs_with_other_columns_stay_apart(bucket: TestBucket) -> None:
    sink = begun(bucket)
    old = sink.prepare(rows(1), epoch=1, part="0", attempt="a")
    new = sink.prepare(rows(2).with_columns(more=pl.lit(1.5)), epoch=2, part="0", attempt="a")
    sink.publish(2, [old, new])
    assert len(bucket.keys("a/out")) == 2


def test_a_publication_that_comes_again_changes_nothing(bucket: TestBucket) -> None:
    """Also when readers have removed its files, or its own leftovers are gone."""
    sink, late = begun(bucket), made(bucket)
    receipts = prepared(sink, 1)
    sink.publish(1, receipts)
    before = {key: bucket.bucket.head(key) for key in bucket.keys("")}
    late.publish(1, receipts)
    assert {key: bucket.bucket.head(key) for key in bucket.keys("")} == before
    bucket.bucket.delete(bucket.keys("a/out"), OWN)
    late.publish(1, receipts)
    assert bucket.keys("a/out") == []
    sink.forget(1, receipts, OWN)
    late.publish(1, receipts)
    assert bucket.keys("a/out") == []
    with pytest.raises(CorruptFileError, match="its manifest is still there"):
        output(bucket)


def test_a_zombie_cannot_publish_another_attempt(bucket: TestBucket) -> None:
    """Both have run the epoch; the attempt of one was committed. The other one's late put is of no consequence."""
    leader, zombie = begun(bucket), made(bucket)
    lost = [zombie.prepare(rows(10, 11), epoch=1, part="0", attempt="zombie")]
    won = [leader.prepare(rows(10, 11), epoch=1, part="0", attempt="leader")]
    leader.publish(1, won)
    leader.forget(1, won, OWN)
    with pytest.raises(OutputConflictError, match=r"another history.*\n.*cure"):
        zombie.publish(1, lost)
    assert keys(output(bucket)) == [10, 11]
    leader.sweep(2, OWN)
    assert beside(bucket, "staged") == []


def test_a_zombie_without_a_right_removes_nothing(bucket: TestBucket) -> None:
    class Lost(Right):
        def check(self) -> None:
            raise LeaseLostError("lost", cure="none")

    sink = begun(bucket)
    prepared(sink, 1)
    staged = beside(bucket, "staged")
    with pytest.raises(LeaseLostError):
        sink.sweep(9, Lost())
    assert beside(bucket, "staged") == staged != []


def test_what_lost_attempts_prepared_is_swept(bucket: TestBucket) -> None:
    sink, other = begun(bucket), made(bucket, owner=Owner("store", "other", "out"))
    for epoch in (1, 2, 11):
        prepared(sink, epoch)
    other.prepare(rows(1), epoch=1, part="0", attempt="a")
    sink.sweep(11, OWN)
    assert sorted(key.rsplit("/", 2)[1] for key in beside(bucket, "staged")) == ["1", "11", "11"]
    sink.discard(11, prepared(sink, 11), OWN)
    assert len(beside(bucket, "staged")) == 1


class TestOwner:
    def test_another_pipeline_is_refused(self, bucket: TestBucket) -> None:
        begun(bucket)
        with pytest.raises(OutputConflictError, match=r"is the output of sink 'out'.*\n.*cure: write elsewhere"):
            made(bucket, owner=Owner("another", "pipeline", "out")).check(0, {})

    def test_who_lost_the_output_cannot_publish(self, bucket: TestBucket) -> None:
        sink = begun(bucket)
        receipts = prepared(sink, 1)
        bucket.bucket.delete(bucket.keys("a/.out.holdfast"), OWN)
        made(bucket, owner=Owner("another", "pipeline", "out")).check(0, {})
        with pytest.raises(OutputConflictError, match="is the output of"):
            sink.publish(1, receipts)
        assert bucket.keys("a/out") == []

    def test_files_that_nobody_owns_are_left_alone(self, bucket: TestBucket) -> None:
        bucket.put("a/out/mine.parquet", b"")
        with pytest.raises(OutputConflictError, match="no owner file"):
            made(bucket).check(0, {})

    def test_two_who_claim_at_once_are_told_apart(self, bucket: TestBucket) -> None:
        """The other one's claim comes between the look and the put."""
        sink = made(bucket)
        claim = Bucket.put_new
        with pytest.MonkeyPatch.context() as patch:

            def late(self: Bucket, key: str, content: bytes) -> bool:
                patch.undo()
                made(bucket, owner=Owner("another", "pipeline", "out")).check(0, {})
                return claim(self, key, content)

            patch.setattr(Bucket, "put_new", late)
            with pytest.raises(OutputConflictError, match="is the output of"):
                sink.check(0, {})

    def test_a_store_that_ignores_conditions_is_refused(self, bucket: TestBucket) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Bucket, "put_new", lambda self, key, content: self.put(key, content) is None)
            with pytest.raises(OutputUnwritableError, match="If-None-Match"):
                made(bucket).check(0, {})


@pytest.mark.parametrize("kind", ["503", "lost", "412"])
def test_what_a_server_refuses_for_the_moment_is_done_once(bucket: TestBucket, kind: Any) -> None:
    """A put that was carried out without an answer is told that the object is there: it is its own."""
    sink = begun(bucket)
    receipts = prepared(sink, 1)
    if kind == "412":  # another host was faster by a moment
        made(bucket).publish(1, receipts)
        bucket.server.faults.append(S3Fault("412", "PUT", "manifests"))
    else:
        bucket.server.faults += [
            S3Fault(kind, method, f"{bucket.name}.*{what}")
            for method, what in (("PUT", "manifests"), ("PUT", "epoch="), ("GET", "owner"), ("GET", "manifests"))
        ]
    sink.publish(1, receipts)
    sink.forget(1, receipts, OWN)
    bucket.server.faults.clear()
    assert keys(output(bucket)) == [10, 11, 12]
    assert len(beside(bucket, "manifests")) == 1
    assert beside(bucket, "staged") == []


def test_an_epoch_whose_rows_were_removed_by_hand_is_told(bucket: TestBucket) -> None:
    sink = begun(bucket)
    receipts = prepared(sink, 1)
    bucket.bucket.delete(beside(bucket, "staged"), OWN)
    with pytest.raises(CorruptFileError, match=r"is missing\n.*cure: the epoch is committed"):
        sink.publish(1, receipts)


def test_what_is_no_output_is_no_output(bucket: TestBucket) -> None:
    with pytest.raises(InputError, match="not the output of a file sink"):
        output(bucket)
    with pytest.raises(DeclarationError, match="whole bucket"):
        parquet(f"s3://{bucket.name}")
    with pytest.raises(DeclarationError, match="column 'epoch' would be lost"):
        made(bucket).accept(pl.Schema({"epoch": pl.Int64}))


# crashes


class Crash(BaseException):
    """The process has died."""


@contextmanager
def dying(step: int, *, after: bool) -> Iterator[list[str]]:
    """Die at a request to the store, before it is carried out or `after`; gives what was asked for."""
    asked: list[str] = []
    ask = Bucket._ask

    def counted(self: Bucket, doing: str, call: Callable[..., Any]) -> Any:
        asked.append(doing)
        if len(asked) > step and not after:
            raise Crash(doing)
        found = ask(self, doing, call)
        if len(asked) > step:
            raise Crash(doing)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bucket, "_ask", counted)
        yield asked


def life(bucket: TestBucket, key: str, committed: dict[int, list[Receipt]], told: set[int]) -> None:
    """What the engine does, in its order: epochs are committed, published, told to the store, and cleaned up."""
    sink = made(bucket, key=key)
    sink.check(len(committed), {})
    for epoch in [epoch for epoch in sorted(committed) if epoch not in told]:
        sink.publish(epoch, committed[epoch])
        told.add(epoch)
    sink.sweep(len(committed) + 1, OWN)
    for epoch in range(len(committed) + 1, 4):
        receipts = prepared(sink, epoch)
        committed[epoch] = receipts
        sink.publish(epoch, receipts)
        told.add(epoch)
        sink.forget(epoch, receipts, OWN)
    sink.sweep(4, OWN)


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_step_loses_nothing_and_repeats_nothing(bucket: TestBucket, after: bool) -> None:
    expected = [10, 11, 12, 20, 21, 22, 30, 31, 32]
    for step in itertools.count(0, 1 if LONG else 8):
        key = f"run-{step}/out"
        committed: dict[int, list[Receipt]] = {}
        told: set[int] = set()
        try:
            with dying(step, after=after):
                life(bucket, key, committed, told)
            break
        except Crash:
            life(bucket, key, committed, told)
        assert sorted(keys(output(bucket, key=key))) == expected, step
        plain = [stored for stored in bucket.keys(key) if stored.endswith(".parquet")]
        assert len(plain) == 6, step
        assert [name for name in bucket.keys(f"run-{step}/.out.holdfast") if "staged" in name] == [], step
    assert step > 20


def pipeline(bucket: TestBucket, key: str) -> hf.Pipeline:
    made = hf.Pipeline("counts")
    source = hf.source.files(bucket.url("in"), storage_options=bucket.options)
    events = made.source("events", source, event_time="at", time_unit="ms")
    counts = events.key_by("k").window(hf.window.tumbling("10 s")).agg(n=hf.count())
    counts.sink("out", hf.sink.parquet(bucket.url(key), every=0, storage_options=bucket.options))
    return made


def put_events(bucket: TestBucket) -> None:
    for part in range(2):
        at = range(part * 30_000, (part + 1) * 30_000, 250)
        bucket.put_parquet(f"in/{part}.parquet", pl.DataFrame({"at": at, "k": [time // 250 % 3 for time in at]}))


def counted(bucket: TestBucket, key: str) -> list[tuple[Any, ...]]:
    found = output(bucket, key=key)
    return sorted(found.select("k", "window_end", "n").rows())


def test_a_run_from_bucket_to_bucket_that_dies_anywhere_has_the_output_of_one_that_does_not(
    bucket: TestBucket, tmp_path: Path
) -> None:
    put_events(bucket)
    cut = Cut(rows=80, tasks=2, partitions=2)
    with dying(1_000_000, after=False) as asked:
        run_in(tmp_path / "whole", pipeline(bucket, "whole"), cut)
    expected = counted(bucket, "whole")
    assert sum(n for _, _, n in expected) == 240
    steps = range(len(asked)) if LONG else range(7, len(asked), len(asked) // 3)
    for step in steps:
        store, key = tmp_path / str(step), f"out-{step}"
        try:
            with dying(step, after=step % 2 == 0):
                run_in(store, pipeline(bucket, key), cut)
        except (Crash, HoldfastError):
            pass
        run_in(store, pipeline(bucket, key), cut)
        assert counted(bucket, key) == expected, step


def test_a_run_in_a_storm_has_the_output_of_one_in_calm_weather(bucket: TestBucket, tmp_path: Path) -> None:
    put_events(bucket)
    cut = Cut(rows=80, tasks=2, partitions=2)
    run_in(tmp_path / "calm", pipeline(bucket, "calm"), cut)
    stormy = pipeline(bucket, "stormy")
    bucket.server.storm = 0.15
    run_in(tmp_path / "stormy", stormy, cut)
    bucket.server.storm = 0.0
    assert counted(bucket, "stormy") == counted(bucket, "calm")


def test_a_source_does_not_read_what_a_sink_of_the_same_run_writes(bucket: TestBucket, tmp_path: Path) -> None:
    def loop(pattern: str) -> hf.Pipeline:
        made = hf.Pipeline("loop")
        source = hf.source.files(
            bucket.url(pattern), "parquet", {"k": pl.Int64}, grow=True, storage_options=bucket.options
        )
        made.source("events", source).sink("out", hf.sink.parquet(bucket.url("a/out"), storage_options=bucket.options))
        return made

    for pattern in ("a/**/*.parquet", "**/*", "a/out/*/*"):
        with pytest.raises(DeclarationError, match="sink 'out' writes there"):
            run_in(tmp_path, loop(pattern))
    for pattern in ("a/*", "a/in/**/*.parquet", "a/**/*.ndjson.gz"):
        check_places(loop(pattern), tmp_path)


def test_errors_name_the_operator(bucket: TestBucket, tmp_path: Path) -> None:
    put_events(bucket)
    made = hf.Pipeline("lost")
    events = made.source("events", hf.source.files(bucket.url("in"), storage_options=bucket.options))
    events.sink("out", hf.sink.parquet("s3://nowhere/out", storage_options=bucket.options))
    with pytest.raises(HoldfastError, match="no bucket 'nowhere'") as caught:
        run_in(tmp_path, made)
    assert caught.value.operator == "out"
    gone = hf.Pipeline("gone")
    source = hf.source.files("s3://nowhere/in", format="csv", schema={"k": pl.Int64}, storage_options=bucket.options)
    gone.source("events", source).sink("out", hf.sink.collect())
    with pytest.raises(HoldfastError, match="no bucket 'nowhere'") as caught:
        run_in(tmp_path / "gone", gone)
    assert caught.value.operator == "events"
