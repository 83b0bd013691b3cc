"""The work directory on a full disk: the error says so, and which epoch it was."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from holdfast.epoch.work import WorkDirectory
from holdfast.errors import StoreFullError


@pytest.fixture
def work(tmp_path: Path) -> WorkDirectory:
    return WorkDirectory(tmp_path, "run")


@pytest.mark.parametrize("method", ["write_bytes", "mkdir", "replace"])
def test_a_plan_or_handover_that_cannot_be_written(
    work: WorkDirectory, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, method, refuse)
    for write, name in ((work.write_plan, "plan"), (work.write_handover, "handover")):
        with pytest.raises(StoreFullError, match=rf"epoch 3: cannot write .*{name}\.json: no space left"):
            write(3, {})


def test_a_mark_that_cannot_be_made(work: WorkDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    work.write_plan(3, {})

    def refuse(*_: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(StoreFullError, match=r"epoch 3: cannot write .*read-0"):
        work.mark_fragment(3, 0)


def test_an_epoch_is_written_read_and_forgotten(work: WorkDirectory) -> None:
    work.write_plan(3, {"tasks": [1]})
    work.write_handover(3, {"state": {}})
    work.mark_fragment(3, 0)
    assert (work.read_plan(3), work.wait_handover(3), work.fragments_done(3)) == ({"tasks": [1]}, {"state": {}}, 1)
    work.forget(3)
    assert work.fragments_done(3) == 0
    assert not list((work.root / work.run).iterdir())
