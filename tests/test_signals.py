"""Ctrl-C and SIGTERM: the first asks, the second aborts."""

from __future__ import annotations

import os
import signal

import pytest

from holdfast.signals import StopSignals, abort_on_termination, are_unhandled, stop_on_signals, undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_aborts(number: signal.Signals) -> None:
    calls: list[str] = []
    before = signal.getsignal(number)
    with stop_on_signals(lambda: calls.append("stop"), lambda: calls.append("told")):
        os.kill(os.getpid(), number)
        assert calls == ["stop", "told"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before
    assert calls == ["stop", "told"]


def test_without_a_pipeline_termination_unwinds() -> None:
    with pytest.raises(KeyboardInterrupt), abort_on_termination():
        os.kill(os.getpid(), signal.SIGTERM)


def test_where_nothing_runs_yet_the_first_signal_unwinds_and_is_remembered() -> None:
    signals = StopSignals()
    with pytest.raises(KeyboardInterrupt), signals:
        os.kill(os.getpid(), signal.SIGTERM)
    assert signals.first == signal.SIGTERM
    assert not signals.aborted


def test_what_must_not_be_left_half_done_is_not_disturbed() -> None:
    done = []
    with undisturbed():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        done.append(True)
    assert done == [True]


def test_handlers_of_the_program_are_its_own() -> None:
    assert are_unhandled()
    with abort_on_termination():
        assert not are_unhandled()
