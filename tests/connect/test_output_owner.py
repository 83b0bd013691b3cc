"""An output directory has one owner, and a place that can be written."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from file_sinks import OWN, attached, made, prepared, rows, staged

from holdfast.connect.sinks.file_sink import FileSink, published_epochs, read_output
from holdfast.errors import (
    DeclarationError,
    OutputConflictError,
    OutputUnwritableError,
    UnknownVersionError,
    WrongTypeError,
)
from holdfast.sink import Owner, Receipt, parquet
from power_loss import steps


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
    with pytest.raises(OutputConflictError, match="already exists"):
        sink.publish(1, receipts)
    shutil.rmtree(strange.parent)
    sink.publish(1, receipts)
    assert read_output(tmp_path / "out", "parquet").height == 3


def test_a_marker_that_is_gone_stops_the_sink(tmp_path: Path) -> None:
    sink = made(parquet, tmp_path / "out")
    receipts = prepared(sink, 1)
    (tmp_path / ".out.staging" / "owner.json").unlink()
    with pytest.raises(OutputConflictError, match="is missing"):
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
        assert "choose another path" in caught.value.cure
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
