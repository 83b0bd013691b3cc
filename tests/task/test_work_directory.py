"""The work directory on a full disk: the error says so, and which epoch it was."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from holdfast.connect.base import Slice
from holdfast.epoch.handover import HandOver
from holdfast.epoch.plan import EpochPlan, TaskSettings
from holdfast.errors import StoreFullError
from holdfast.operators.footprint_messages import FootprintOrder, OlderBatch
from holdfast.pstream import PUnit
from holdfast.state.manifest import Manifest
from holdfast.state.routing import Routing
from holdfast.task.work_directory import WorkDirectory

PLAN = EpochPlan(
    slices={"in": ((Slice(0, 5, {"at": 1}),), ())},
    positions={"in": {"at": 6}},
    done={"in": False},
    tasks=(2, 3),
    routing={"w": Routing.even(3)},
)
HAND_OVER = HandOver(
    greatest={"in": None},
    done_before={"in": False},
    done={"in": False},
    pending={},
    open={},
    routing={"w": Routing.even(1)},
    state={"w": (Manifest(),)},
    footprints={"w": FootprintOrder("root", "stream", True, older=(OlderBatch(1, PUnit("a", 1, 2, "x"), {0: 3}),))},
)


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
    with pytest.raises(StoreFullError, match=r"epoch 3: cannot write .*plan\.json: no space left"):
        work.write_plan(3, PLAN)
    with pytest.raises(StoreFullError, match=r"epoch 3: cannot write .*handover\.json: no space left"):
        work.write_handover(3, HAND_OVER)


def test_a_mark_that_cannot_be_made(work: WorkDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    work.write_plan(3, PLAN)

    def refuse(*_: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(StoreFullError, match=r"epoch 3: cannot write .*read-0"):
        work.mark_fragment(3, 0)


def test_an_epoch_is_written_read_and_forgotten(work: WorkDirectory) -> None:
    settings = TaskSettings(silent=True, inbox="received")
    work.write_plan(3, PLAN, settings)
    work.write_handover(3, HAND_OVER)
    work.mark_fragment(3, 0)
    assert work.read_plan(3) == (PLAN, settings)
    assert (work.wait_handover(3), work.fragments_done(3)) == (HAND_OVER, 1)
    work.forget(3)
    assert work.fragments_done(3) == 0
    assert not list((work.root / work.run).iterdir())
