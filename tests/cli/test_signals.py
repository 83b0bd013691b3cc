"""Ctrl-C and SIGTERM: the first asks, the second aborts."""

from __future__ import annotations

import os
import signal

import pytest

from holdfast.cli.signals import abort_on_termination, stop_on_signals


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
