"""Segments: what is appended is there as it was written, and durable after one sync."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import StoreFullError
from holdfast.store import (
    LARGE_SEGMENT,
    DirectoryStore,
    SegmentWriter,
    last_epoch,
    made_before,
    segment_of,
    start_in,
    with_segments,
)


def piece(root: Path, name: str, size: int) -> bytes:
    path = DirectoryStore(root).existing(name)
    start = start_in(path, name)
    assert start is not None
    return path.read_bytes()[start : start + size]


def files(root: Path) -> list[str]:
    return sorted(DirectoryStore(root).names())


def append(writer: SegmentWriter, epoch: int, *contents: bytes) -> list[str]:
    return [writer.append(epoch, memoryview(content)) for content in contents]


def test_pieces_of_many_epochs_lie_in_one_file(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, sync=False, epochs=3)
    contents = {epoch: [bytes([epoch]) * (epoch + 1), b"x" * 100] for epoch in (5, 6, 7)}
    names = {epoch: append(writer, epoch, *pieces) for epoch, pieces in contents.items()}
    assert files(tmp_path) == [segment_of(names[5][0])]
    for epoch, pieces in contents.items():
        for name, content in zip(names[epoch], pieces, strict=True):
            assert piece(tmp_path, name, len(content)) == content, "it can be read before it is synced"
            assert int(name.rpartition("@")[2]) % 64 == 0


def test_a_segment_gets_nothing_for_epochs_that_its_name_does_not_say(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, sync=False, epochs=3)
    segments = {segment_of(append(writer, epoch, b"x")[0]): epoch for epoch in range(1, 10)}
    assert {last_epoch(str(name)): epoch for name, epoch in segments.items()} == {3: 3, 6: 6, 9: 9}


def test_a_segment_that_is_large_gets_no_more(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, sync=False, epochs=100)
    [first], [second] = append(writer, 1, bytes(LARGE_SEGMENT)), append(writer, 1, b"x")
    assert segment_of(first) != segment_of(second)


def synced(monkeypatch: pytest.MonkeyPatch, call: str) -> list[str]:
    found: list[str] = []
    real: Callable[[int], None] = getattr(os, call)

    def noted(handle: int) -> None:
        found.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))
        real(handle)

    monkeypatch.setattr(os, call, noted)
    return found


def test_one_sync_is_for_all_pieces_and_the_directory_is_synced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, names = synced(monkeypatch, "fdatasync"), synced(monkeypatch, "fsync")
    writer = SegmentWriter(tmp_path / "store", sync=True, epochs=50)
    for epoch in range(1, 11):
        append(writer, epoch, b"one", b"two", b"three")
        writer.sync()
        writer.sync()
    assert len(data) == 10
    assert len(set(data)) == 1
    assert names.count("segments") == 1


def test_what_is_in_a_segment_is_synced_before_the_next_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = synced(monkeypatch, "fdatasync")
    writer = SegmentWriter(tmp_path, sync=True, epochs=1)
    names = append(writer, 1, b"one") + append(writer, 2, b"two")
    writer.sync()
    assert [f"segments/{name}" for name in data] == [segment_of(name) for name in names]


def test_nothing_is_appended_behind_a_write_that_failed(tmp_path: Path) -> None:
    """The limit on the size of files stands for the end of the disk."""
    writer = SegmentWriter(tmp_path, sync=False, epochs=10)
    [whole] = append(writer, 1, b"whole")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(StoreFullError):
            append(writer, 1, b"y" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    [next_one] = append(writer, 1, b"again")
    assert segment_of(next_one) != segment_of(whole)
    assert (piece(tmp_path, whole, 5), piece(tmp_path, next_one, 5)) == (b"whole", b"again")


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, StoreFullError), (errno.EIO, OSError)])
def test_nothing_is_appended_behind_a_sync_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    def fail(_handle: int) -> None:
        raise OSError(code, os.strerror(code))

    writer = SegmentWriter(tmp_path, sync=True, epochs=10)
    [lost] = append(writer, 1, b"lost")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(kind):
            writer.sync()
    [next_one] = append(writer, 1, b"again")
    assert segment_of(next_one) != segment_of(lost)


def test_a_segment_is_as_old_as_the_last_epoch_it_may_be_written_for() -> None:
    segment = "segments/000000000005-000000000008-00ff-3.segment"
    for name in (segment, f"{segment}@64", "segments/.000000000005-000000000008-00ff-3.segment@64.f00d"):
        assert [made_before(name, epoch) for epoch in (5, 6, 8, 9, None)] == [False, False, False, True, True]
    assert made_before("op/t/000000000005-8-00ff-0.arrow", 6), "a file for one epoch, and a task of number 8"


def test_a_piece_is_found_in_its_segment_and_as_a_file_of_its_own(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path / "home", sync=False)
    [name] = append(writer, 1, b"first")
    [second] = append(writer, 1, b"second")
    store = DirectoryStore(tmp_path / "home", other_places=(tmp_path / "copies",))
    DirectoryStore(tmp_path / "copies").write(second, b"second")
    segment = segment_of(name)
    assert segment is not None
    assert store.copies(name) == [tmp_path / "home" / segment]
    assert store.copies(second) == [tmp_path / "home" / segment, tmp_path / "copies" / second]
    assert start_in(store.copies(second)[1], second) is None
    assert with_segments([name, second, "op/own.arrow"]) == {name, second, segment, "op/own.arrow"}
