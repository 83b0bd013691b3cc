"""Immutable files: written whole or not at all."""

from __future__ import annotations

import errno
import os
import resource
import signal

import pytest

from holdfast.errors import CorruptPUnitError, StoreFullError
from holdfast.store import DirectoryStore, Private, durable_write


@pytest.fixture
def store(tmp_path):
    return DirectoryStore(tmp_path / "store")


def test_what_is_written_can_be_found(store):
    store.write("a/b/one", b"1")
    store.write("a/two", memoryview(b"22"))
    assert store.existing("a/b/one").read_bytes() == b"1"
    assert sorted(store.names()) == ["a/b/one", "a/two"]


def test_a_name_is_never_used_twice(store):
    store.write("one", b"first")
    with pytest.raises(FileExistsError):
        store.write("one", b"second")
    assert store.existing("one").read_bytes() == b"first"


def test_removing_what_is_gone_is_no_error(store):
    store.write("one", b"1")
    store.remove(["one", "one", "never/there"], Private("the test's own"))
    assert list(store.names()) == []


def test_a_missing_file_is_named(store):
    with pytest.raises(CorruptPUnitError, match="nowhere is missing") as caught:
        store.existing("nowhere")
    assert caught.value.cure


def test_a_full_disk_leaves_no_file(store):
    """The limit on the size of files stands for the end of the disk."""
    store.write("small", b"x")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(StoreFullError) as caught:
            store.write("large", b"y" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.cure
    assert list(store.names()) == ["small"]


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOSPC, StoreFullError), (errno.EDQUOT, StoreFullError), (errno.EIO, OSError)]
)
def test_a_write_that_cannot_be_synced_leaves_no_file(store, monkeypatch, code, kind):
    def fail(_handle):
        raise OSError(code, os.strerror(code))

    store.write("small", b"x")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind):
        store.write("other", b"y")
    monkeypatch.undo()
    assert list(store.names()) == ["small"]


def test_files_and_their_directory_are_synced(tmp_path, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: (synced.append(os.readlink(f"/proc/self/fd/{handle}")), real(handle))
    )
    durable_write(tmp_path / "file", b"1")
    assert synced == [str(tmp_path / "file"), str(tmp_path)]
    durable_write(tmp_path / "other", b"1", sync=False)
    assert len(synced) == 2


def test_new_directories_are_durable_too(tmp_path, monkeypatch):
    """A file in a directory whose own name was never synced is lost with it."""
    synced = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: (synced.append(os.readlink(f"/proc/self/fd/{handle}")), real(handle))
    )
    durable_write(tmp_path / "new" / "deep" / "file", b"1")
    assert {
        str(tmp_path / "new" / "deep" / "file"),
        str(tmp_path / "new" / "deep"),
        str(tmp_path / "new"),
        str(tmp_path),
    } <= set(synced)
