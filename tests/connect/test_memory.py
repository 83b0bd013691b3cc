"""Rows in memory, and faults as items of the input."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import polars as pl
import pytest
from drain import drain
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.connect.sources.memory import InjectedFaultError
from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.source import Crash, Fail, Position, memory


def frame(*keys: int) -> pl.DataFrame:
    return pl.DataFrame({"k": keys}, schema={"k": pl.Int64})


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 20), st.integers(1, 4))
def test_any_cutting_gives_the_same_rows(sizes: list[int], rows: int, pieces: int) -> None:
    frames = [frame(*range(i * 100, i * 100 + size)) for i, size in enumerate(sizes)]
    got, position = drain(memory(frames), rows=rows, pieces=pieces)
    assert got.equals(pl.concat(frames))
    assert memory(frames).lag(position) == 0


def test_with_epochs_each_frame_is_one_take_even_an_empty_one() -> None:
    source = memory([frame(1, 2, 3), frame(), frame(4)], epochs=True)
    position: Position = source.start()
    sizes = []
    for _ in range(3):
        take = source.take(position, 1, 2)
        assert take.slices
        sizes.append(sum(piece.rows for piece in take.slices))
        position = take.position
    assert sizes == [3, 0, 1]
    assert take.done


def test_a_crash_kills_the_planning_process_once_and_after_the_rows_before_it(tmp_path: Path) -> None:
    marker = tmp_path / "crashed"
    source = memory([frame(1), Crash(marker), frame(2)], epochs=True)
    first = source.take(source.start(), 10, 1)
    assert not marker.exists()
    child = os.fork()
    if child == 0:
        source.take(first.position, 10, 1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert marker.exists()
    second = source.take(first.position, 10, 1)
    assert second.done
    assert next(source.read(second.slices[0])).frame["k"].to_list() == [2]


@pytest.mark.parametrize("epochs", [True, False])
def test_a_failure_strikes_the_first_read_of_the_rows_behind_it(tmp_path: Path, epochs: bool) -> None:
    source = memory([frame(1), Fail(tmp_path / "failed"), frame(2)], epochs=epochs)
    first = source.take(source.start(), 10, 1)
    assert next(source.read(first.slices[0])).frame["k"].to_list() == [1]
    second = source.take(first.position, 10, 1)
    with pytest.raises(InjectedFaultError):
        list(source.read(second.slices[0]))
    assert next(source.read(second.slices[0])).frame["k"].to_list() == [2]


def test_frames_must_agree_and_there_must_be_one() -> None:
    with pytest.raises(WrongTypeError, match="frame 1"):
        memory([frame(1), pl.DataFrame({"k": ["x"]})])
    with pytest.raises(DeclarationError):
        memory([])
