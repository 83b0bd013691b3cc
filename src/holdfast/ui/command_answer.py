"""Asking a running fragment for something, and waiting for its answer."""

from __future__ import annotations

import time

from holdfast.errors import UnknownStateError
from holdfast.meta import Commands, MetaStore

__all__ = ["await_answer"]

_PAUSE_SECONDS = 0.1
_SECONDS_TO_ANSWER = 30.0
"""After the command was taken: then it is part of an epoch, and is answered with its plan."""


def await_answer(opened: MetaStore, fragment: str, command: str, wait: float) -> str:
    """Ask the process that runs the fragment. A command that is not accepted within `wait` seconds is withdrawn."""
    commands = Commands(opened)
    number = commands.ask(fragment, command, time.time())
    until = time.monotonic() + wait
    while (text := commands.answered(number)) is None:
        now = time.monotonic()
        if now > until and commands.withdraw(number):
            raise UnknownStateError(
                f"'{fragment}' started no epoch within {wait:g} s; nothing was changed",
                cure="check that the pipeline runs and has rows to read, or wait longer",
            )
        if now > until + _SECONDS_TO_ANSWER:
            raise UnknownStateError(
                f"'{fragment}' has accepted the command but does not answer",
                cure="check whether it still runs; `holdfast status` shows the partitions it has",
            )
        time.sleep(_PAUSE_SECONDS)
    return text
