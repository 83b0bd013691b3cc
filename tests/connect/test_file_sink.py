"""File sinks: whole epochs, exactly once, whatever is interrupted."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow.dataset as ds
import pytest

from holdfast.connect.sinks import part_files
from holdfast.connect.sinks.file_sink import FileSink, published_epochs, read_output
from holdfast.errors import (
    CorruptFileError,
    DeclarationError,
    OutputConflictError,
    OutputUnwritableError,
    StoreFullError,
    UnknownVersionError,
    WrongTypeError,
)
from holdfast.sink import Owner, Receipt, arrow, ndjson, parquet
from holdfast.source import files
from holdfast.store import Private
from power_loss import steps

OWNER = Owner("store", "pipeline", "out")
OWN = Private("a directory of the test")


def attached(make: Callable[[Path], FileSink], path: Path, owner: Owner = OWNER) -> FileSink:
    sink = make(path)
    sink.attach(owner)
    return sink


def made(make: Callable[[Path], FileSink], path: Path) -> FileSink:
    """A sink whose run has begun."""
    sink = attached(make, path)
    sink.check(0, {})
    return sink


SINKS: list[Callable[[Path], FileSink]] = [parquet, ndjson, arrow]


def rows(*keys: int) -> pl.DataFrame:
    return pl.DataFrame({"k": keys, "s": [f"text {k}" for k in keys]}, schema={"k": pl.Int64, "s": pl.String})


def prepared(sink: FileSink, epoch: int) -> list[Receipt]:
    return [
        sink.prepare(rows(epoch * 10, epoch * 10 + 1), epoch=epoch, part="0", attempt="a"),
        sink.prepare(rows(), epoch=epoch, part="1", attempt="a"),
        sink.prepare(rows(epoch * 10 + 2), epoch=epoch, part="2", attempt="a"),
    ]


def staged(sink: FileSink) -> list[str]:
    """All files of the sink that readers are not to see."""
    return sorted(str(file.relative_to(sink.staging.root)) for file in sink.staging.root.rglob("*") if file.is_file())


def parts(place: Path) -> int:
    return len([file for file in place.rglob("part-*") if file.is_file()])


@pytest.mark.parametrize("make", SINKS)
def test_prepared_rows_are_invisible_until_published(tmp_path: Path, make: Callable[[Path], FileSink]) -> None:
    sink = made(make, tmp_path / "out")
    receipts = prepared(sink, 3)
    lost = sink.prepare(rows(666), epoch=3, part="0", attempt="b")
    assert lost["file"] != receipts[0]["file"]
    assert [receipt["rows"] for receipt in receipts] == [2, 0, 1]
    assert published_epochs(tmp_path / "out") == []
    assert read_output(tmp_path / "out", sink.format, rows().schema).equals(rows())
    sink.publish(3, receipts)
    sink.publish(3, receipts)
    assert published_epochs(tmp_path / "out") == [3]
    assert read_output(tmp_path / "out", sink.format).equals(rows(30, 31, 32))
    sink.forget(3, receipts, OWN)
    sink.sweep(4, OWN)
    assert staged(sink) == []
    assert read_output(tmp_path / "out", sink.format).equals(rows(30, 31, 32))


def test_what_a_sink_writes_a_source_reads_and_so_do_others(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = made(parquet, out)
    for epoch in (1, 2, 10):
        sink.publish(epoch, prepared(sink, epoch))
    sink.prepare(rows(666), epoch=11, part="0", attempt="a")
    expected = [k for e in (1, 2, 10) for k in (e * 10, e * 10 + 1, e * 10 + 2)]
    assert read_output(out, "parquet")["k"].to_list() == expected
    assert ds.dataset(out, format="parquet", partitioning="hive").to_table()["k"].to_pylist() == expected
    source = files(f"{out}/epoch=*/*.parquet")
    take = source.take(source.start(), 100, 1)
    assert [k for c in source.read(take.slices[0]) for k in c.frame["k"].to_list()] == expected
    assert pl.read_parquet(f"{out}/*/*.parquet", hive_partitioning=False)["k"].to_list() == expected
    assert pl.read_parquet(out).drop("epoch")["k"].to_list() == expected


def test_an_epoch_without_rows_leaves_nothing(tmp_path: Path) -> None:
    sink = made(parquet, tmp_path / "out")
    sink.publish(1, [sink.prepare(rows(), epoch=1, part="0", attempt="a")])
    sink.publish(2, [])
    sink.sweep(5, OWN)
    assert os.listdir(tmp_path / "out") == []
    assert staged(sink) == []


@pytest.mark.parametrize("moves", [False, True], ids=["read in place", "moved away"])
def test_a_publication_interrupted_at_any_step_is_seen_whole_and_once(tmp_path: Path, moves: bool) -> None:
    """Also by a reader that moves each epoch elsewhere as soon as it sees it."""
    interruptions = 0
    for dies_at in range(200):
        place, taken = tmp_path / str(dies_at), tmp_path / f"taken-{dies_at}"
        taken.mkdir()
        sink = made(parquet, place)
        receipts = [*prepared(sink, 6), *prepared(sink, 7)]

        def look(place: Path = place, taken: Path = taken) -> None:
            found = read_output(place, "parquet", rows().schema)
            assert found.height in (0, 6), "a part of the epochs is visible"
            if moves and found.height:
                shutil.move(place / "epoch=000000000007", taken / f"{len(os.listdir(taken))}")

        with steps(dies_at) as counted:
            sink.publish(7, receipts)
        look()
        interruptions += counted.dead
        sink.publish(7, receipts)
        look()
        sink.publish(7, receipts)
        with steps(dies_at) as forgetting:
            sink.forget(7, receipts, OWN)
        sink.forget(7, receipts, OWN)
        sink.sweep(8, OWN)
        assert staged(sink) == []
        if moves:
            assert len(os.listdir(taken)) == 1
            os.rename(taken / "0", place / "epoch=000000000007")
        assert read_output(place, "parquet")["k"].to_list() == [60, 61, 62, 70, 71, 72]
        if not counted.dead and not forgetting.dead:
            break
    assert interruptions >= 10


@pytest.mark.parametrize("make", SINKS)
def test_epochs_that_are_published_together_are_few_files(tmp_path: Path, make: Callable[[Path], FileSink]) -> None:
    sink = made(make, tmp_path / "out")
    receipts = [receipt for epoch in range(1, 61) for receipt in prepared(sink, epoch)]
    sink.publish(60, receipts)
    assert published_epochs(tmp_path / "out") == [60]
    assert parts(tmp_path / "out") == 1
    expected = [epoch * 10 + n for epoch in range(1, 61) for n in range(3)]
    assert read_output(tmp_path / "out", sink.format)["k"].to_list() == expected


def test_large_files_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_files, "_SMALL", 2_000)
    monkeypatch.setattr(part_files, "_LARGE", 3_000)
    sink = made(parquet, tmp_path / "out")
    heights = [1, 1, 5_000, 1, 1, 1, 1, 1]
    receipts = [
        sink.prepare(rows(*range(epoch * 10_000, epoch * 10_000 + height)), epoch=epoch, part="0", attempt="a")
        for epoch, height in enumerate(heights)
    ]
    sizes = [receipt["bytes"] for receipt in receipts]
    assert sizes[2] > 2_000 > sizes[0] > 3_000 / 4, "what the limits are chosen for"
    sink.publish(7, receipts)
    assert parts(tmp_path / "out") == 4, "two, the large one, three, two"
    large = sink.staging.path(receipts[2]["file"])
    assert any(file.samefile(large) for file in (tmp_path / "out").rglob("part-*"))
    expected = [epoch * 10_000 + n for epoch, height in enumerate(heights) for n in range(height)]
    assert read_output(tmp_path / "out", "parquet")["k"].to_list() == expected


def test_epochs_with_other_columns_are_published_beside_each_other(tmp_path: Path) -> None:
    """The pipeline was changed while they were gathered."""
    sink = made(parquet, tmp_path / "out")
    before = sink.prepare(rows(1), epoch=1, part="0", attempt="a")
    after = sink.prepare(rows(2).with_columns(more=pl.lit(1)), epoch=2, part="0", attempt="a")
    sink.publish(2, [before, after])
    found = [pl.read_parquet(file) for file in sorted((tmp_path / "out" / "epoch=000000000002").iterdir())]
    assert [frame.columns for frame in found] == [["k", "s"], ["k", "s", "more"]]


def test_plain_polars_reads_what_is_published_and_nothing_else(tmp_path: Path) -> None:
    sink = made(parquet, tmp_path / "out")
    sink.publish(1, prepared(sink, 1))
    prepared(sink, 2)
    found = pl.read_parquet(tmp_path / "out")
    assert found.drop("epoch").sort(found.columns[0]).equals(rows(10, 11, 12).sort(rows().columns[0]))


def test_a_second_host_that_publishes_at_the_same_time_does_no_harm(tmp_path: Path) -> None:
    """At every step of the one the other comes between; a reader moves away what it sees."""
    for between in range(200):
        place, taken = tmp_path / str(between), tmp_path / f"taken-{between}"
        taken.mkdir()
        sink, other = (made(parquet, place) for _ in range(2))
        receipts = prepared(sink, 1)
        count = 0

        def meanwhile(
            between: int = between, other: FileSink = other, receipts: list[Receipt] = receipts, taken: Path = taken
        ) -> None:
            nonlocal count
            count += 1
            if count == between + 1:
                other.publish(1, receipts)
                os.rename(other.path / "epoch=000000000001", taken / "first")
                if between % 2:
                    other.forget(1, receipts, OWN)

        with steps(None, meanwhile):
            try:
                sink.publish(1, receipts)
            except CorruptFileError:
                assert between % 2, "the other one has told the store, and forgotten"
        found = [*taken.iterdir(), *place.glob("epoch=*")]
        assert len(found) == 1
        assert pl.read_parquet(found[0], hive_partitioning=False)["k"].to_list() == [10, 11, 12]
        if count <= between:
            break
    assert between > 8


def test_a_prepared_file_that_is_gone_is_named(tmp_path: Path) -> None:
    sink = made(parquet, tmp_path / "out")
    receipts = prepared(sink, 1)
    sink.staging.path(receipts[0]["file"]).unlink()
    with pytest.raises(CorruptFileError, match="epoch 1: a file prepared for"):
        sink.publish(1, receipts)


@pytest.mark.parametrize("make", SINKS)
def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, make: Callable[[Path], FileSink]) -> None:
    sink = made(make, tmp_path / "out")
    # A limit on the size of files stands for the end of the disk: the kernel refuses the write, not a mock.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(StoreFullError, match="no space left") as caught:
            sink.prepare(rows(1), epoch=5, part="0", attempt="a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.cure
    assert staged(sink) == []


def test_sweep_leaves_later_epochs_and_strangers_alone(tmp_path: Path) -> None:
    sink = made(parquet, tmp_path / "out")
    prepared(sink, 1)
    prepared(sink, 2)
    (sink.staging.root / "notes").mkdir()
    sink.sweep(2, OWN)
    assert sorted(os.listdir(sink.staging.root)) == ["2", "notes"]


def test_parts_with_odd_names_stay_inside_the_epoch(tmp_path: Path) -> None:
    sink = made(parquet, tmp_path / "out")
    receipts = [sink.prepare(rows(1), epoch=1, part="../op/0", attempt="x/y")]
    sink.publish(1, receipts)
    assert read_output(tmp_path / "out", "parquet").equals(rows(1))
    assert os.listdir(tmp_path / "out") == ["epoch=000000000001"]


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError):
        read_output(tmp_path, "xml")  # type: ignore[arg-type]


# whose it is


def test_the_output_of_another_pipeline_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    mine = attached(parquet, tmp_path / "out")
    mine.check(0, {})
    for owner in (Owner("store", "other", "out"), Owner("store", "pipeline", "late"), Owner("anew", "pipeline", "out")):
        other = attached(parquet, tmp_path / "out", owner)
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(OutputConflictError, match="is the output of sink 'out' of pipeline 'pipeline'") as caught:
            other.check(5, {})
        assert str(tmp_path / ".out.staging") in caught.value.cure
        assert sorted(tmp_path.rglob("*")) == before
    mine.check(0, {})


def test_of_two_that_come_at_once_one_gets_it(tmp_path: Path) -> None:
    for between in range(30):
        mine = attached(parquet, tmp_path / f"{between}")
        other = attached(parquet, tmp_path / f"{between}", Owner("store", "other", "out"))
        count, refused = 0, []

        def claim(sink: FileSink, refused: list[FileSink] = refused) -> None:
            try:
                sink.check(0, {})
            except OutputConflictError:
                refused.append(sink)

        def meanwhile(between: int = between, other: FileSink = other) -> None:
            nonlocal count
            count += 1
            if count == between + 1:
                claim(other)

        with steps(None, meanwhile):
            claim(mine)
        if count <= between:
            break
        assert len(refused) == 1
    assert between > 3


def test_an_output_that_was_removed_belongs_to_nobody(tmp_path: Path) -> None:
    first = attached(parquet, tmp_path / "out")
    first.check(0, {})
    first.publish(1, prepared(first, 1))
    shutil.rmtree(tmp_path / "out")
    anew = attached(parquet, tmp_path / "out", Owner("anew", "pipeline", "out"))
    anew.check(0, {})
    receipts = prepared(anew, 1)
    anew.publish(1, receipts)
    assert read_output(tmp_path / "out", "parquet").height == 3, "what the first one had staged is no concern of its"
    with pytest.raises(OutputConflictError, match="in store anew; this is"):
        first.publish(2, prepared(first, 2))


def test_a_reader_may_take_the_whole_directory(tmp_path: Path) -> None:
    sink = attached(parquet, tmp_path / "out")
    sink.check(0, {})
    sink.publish(1, prepared(sink, 1))
    os.rename(tmp_path / "out", tmp_path / "taken")
    sink.publish(2, prepared(sink, 2))
    sink.check(2, {})
    assert published_epochs(tmp_path / "out") == [2]


def test_what_is_in_the_way_of_an_epoch_is_named_and_stays(tmp_path: Path) -> None:
    sink = made(parquet, tmp_path / "out")
    receipts = prepared(sink, 1)
    strange = tmp_path / "out" / "epoch=000000000001" / "strange"
    strange.mkdir(parents=True)
    with pytest.raises(OutputConflictError, match="is there already"):
        sink.publish(1, receipts)
    shutil.rmtree(strange.parent)
    sink.publish(1, receipts)
    assert read_output(tmp_path / "out", "parquet").height == 3


def test_a_marker_that_is_gone_stops_the_sink(tmp_path: Path) -> None:
    sink = made(parquet, tmp_path / "out")
    receipts = prepared(sink, 1)
    (tmp_path / ".out.staging" / "owner.json").unlink()
    with pytest.raises(OutputConflictError, match="is gone"):
        sink.publish(1, receipts)
    sink.check(1, {})
    sink.publish(1, receipts)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', "\0", '{"version": 2, "store": "s"}'])
def test_a_marker_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    sink = attached(parquet, tmp_path / "out")
    (tmp_path / ".out.staging").mkdir()
    (tmp_path / ".out.staging" / "owner.json").write_text(text)
    with pytest.raises((OutputConflictError, UnknownVersionError), match=r"owner\.json"):
        sink.check(0, {})


# what version 0.1 has left


def published_by_0_1(sink: FileSink, epoch: int) -> list[Receipt]:
    """An epoch as version 0.1 has left it, with what it has noted of it."""
    place = sink.path / f"epoch={epoch:012d}"
    place.mkdir(parents=True)
    rows(epoch * 10).write_parquet(place / "part-0-0.parquet")
    size = (place / "part-0-0.parquet").stat().st_size
    return [{"part": "0-0", "file": "0-0-a.parquet", "rows": 1, "bytes": size}]


def test_output_without_a_marker_is_adopted_by_the_pipeline_that_has_written_it(tmp_path: Path) -> None:
    sink = attached(parquet, tmp_path / "out")
    known = {epoch: published_by_0_1(sink, epoch) for epoch in (1, 2)}
    sink.check(2, known)
    with pytest.raises(OutputConflictError, match="is the output of"):
        attached(parquet, tmp_path / "out", Owner("other", "pipeline", "out")).check(2, known)
    sink.publish(2, known[2])
    assert read_output(tmp_path / "out", "parquet")["k"].to_list() == [10, 20], "it was published already"


def test_output_without_a_marker_that_another_has_written_is_refused(tmp_path: Path) -> None:
    sink = attached(parquet, tmp_path / "out")
    known = {epoch: published_by_0_1(sink, epoch) for epoch in (1, 2)}
    with pytest.raises(OutputConflictError, match="holds epoch 2, and the store knows of 1"):
        sink.check(1, known)
    with pytest.raises(OutputConflictError, match="is not what this pipeline has committed"):
        sink.check(3, {2: [{**known[2][0], "bytes": 17}]})


@pytest.mark.parametrize("where", ["staging", "ready", "inside"])
def test_what_version_0_1_has_staged_and_not_published_is_published(tmp_path: Path, where: str) -> None:
    sink = attached(parquet, tmp_path / "out")
    receipts = published_by_0_1(sink, 1)
    staging = tmp_path / "out" / "_staging" if where == "inside" else tmp_path / ".out.staging"
    file = staging / "1" / ("ready/part-0-0.parquet" if where == "ready" else "0-0-a.parquet")
    file.parent.mkdir(parents=True)
    os.rename(tmp_path / "out" / "epoch=000000000001" / "part-0-0.parquet", file)
    (tmp_path / "out" / "epoch=000000000001").rmdir()
    sink.check(1, {1: receipts})
    for _ in range(2):
        sink.publish(1, receipts)
        assert read_output(tmp_path / "out", "parquet")["k"].to_list() == [10]
    sink.forget(1, receipts, OWN)
    sink.sweep(2, OWN)
    assert os.listdir(tmp_path / ".out.staging") == ["owner.json"] or staged(sink) == []
    assert not (tmp_path / ".out.staging" / "1").exists()


# where it cannot write


def test_a_path_that_cannot_be_written_is_named_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "out", Path("/proc/holdfast/out")):
        with pytest.raises(OutputUnwritableError, match=f"cannot write to {path}") as caught:
            attached(parquet, path).check(0, {})
        assert "write elsewhere" in caught.value.cure
        if path.name == "out":
            with pytest.raises(OutputUnwritableError, match=f"cannot write to {path}"):
                attached(parquet, path).prepare(rows(1), epoch=1, part="0", attempt="a")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_this_user_may_not_write_is_named(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir(mode=0o555)
    with pytest.raises(OutputUnwritableError, match="Permission denied"):
        attached(parquet, tmp_path / "kept" / "out").check(0, {})


def test_an_output_behind_a_link_to_another_file_system_is_staged_there(tmp_path: Path) -> None:
    """The rename that publishes does not leave a file system."""
    if not os.access("/dev/shm", os.W_OK) or os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("there is no other file system to try it with")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        (tmp_path / "out").symlink_to(Path(elsewhere) / "real")
        sink = attached(parquet, tmp_path / "out")
        sink.check(0, {})
        sink.publish(1, prepared(sink, 1))
        assert read_output(Path(elsewhere) / "real", "parquet")["k"].to_list() == [10, 11, 12]
        assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@pytest.mark.parametrize("path", ["x" * 247, "a/" + "ü" * 124, "/", "a/..", "a\0b"])
def test_a_path_that_no_directory_can_have_is_refused_at_declaration(path: str) -> None:
    with pytest.raises(DeclarationError, match=r"does not name a directory|NUL byte"):
        parquet(path)


def test_a_rhythm_that_makes_no_sense_is_refused_at_declaration(tmp_path: Path) -> None:
    for options in ({"every": "soon"}, {"every": -1}, {"bytes": "much"}, {"bytes": 0}):
        with pytest.raises(WrongTypeError):
            parquet(tmp_path, **options)  # type: ignore[arg-type]


def test_a_directory_has_one_owner_by_whatever_name_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for name, pipeline in (("out", "p"), ("link", "q")):
        sink = parquet(tmp_path / name)
        sink.attach(Owner("store", pipeline, "results"))
        if pipeline == "p":
            sink.check(0, {})
        else:
            with pytest.raises(OutputConflictError, match="'p'"):
                sink.check(0, {})
