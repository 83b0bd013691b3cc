"""Sinks on the driver: console, collect, for_each_epoch."""

from __future__ import annotations

import polars as pl
import pytest

from holdfast.errors import DeclarationError, OperatorError
from holdfast.sink import collect, console, for_each_epoch


def rows(*keys: int) -> pl.DataFrame:
    return pl.DataFrame({"k": keys}, schema={"k": pl.Int64})


def test_console_prints_committed_epochs_up_to_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    sink = console(limit=2)
    sink.before_commit(4, rows(1, 2, 3))
    sink.after_commit(3, rows())
    assert capsys.readouterr().out == ""
    sink.after_commit(4, rows(11, 22, 33))
    out = capsys.readouterr().out
    assert out.startswith("epoch 4, 3 rows\n")
    assert "22" in out
    assert "33" not in out
    assert "and 1 more row\n" in out
    assert "at most once" in sink.guarantee
    with pytest.raises(DeclarationError):
        console(limit=0)


def test_collect_keeps_epochs_in_order_and_once() -> None:
    sink = collect()
    assert sink.frame().height == 0
    sink.bind(rows().schema)
    assert sink.frame().equals(rows())
    sink.after_commit(2, rows(3))
    sink.after_commit(1, rows(1, 2))
    sink.after_commit(2, rows(3))
    assert sink.frame().equals(rows(1, 2, 3))
    assert sorted(sink.epochs) == [1, 2]


def test_for_each_epoch_is_called_before_the_commit_with_number_and_rows() -> None:
    calls: dict[int, pl.DataFrame] = {}
    sink = for_each_epoch(calls.__setitem__)
    sink.deliver(5, rows(1), {})
    sink.deliver(5, rows(1), {})
    sink.after_commit(5, rows(1))
    assert list(calls) == [5]
    assert "exactly once if the function is idempotent" in sink.guarantee


def test_a_function_that_raises_is_named_with_its_epoch() -> None:
    def breaks(epoch: int, rows: pl.DataFrame) -> None:
        raise ValueError("no such table")

    with pytest.raises(OperatorError, match=r"epoch 9: the function .*breaks.*no such table"):
        for_each_epoch(breaks).deliver(9, rows(1), {})


def test_a_function_that_asks_for_it_gets_the_vector_of_positions() -> None:
    seen: list[object] = []
    for_each_epoch(lambda epoch, rows, vector: seen.append(vector)).deliver(5, rows(1), {"in": {"row": 7}})
    for_each_epoch(lambda epoch, rows, other=None: seen.append(other)).deliver(5, rows(1), {"in": {"row": 7}})
    assert seen == [{"in": {"row": 7}}, None]
