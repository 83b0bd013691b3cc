"""Asking a running fragment for another number of partitions, and what came of it: for `holdfast scale` and the
dashboard."""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.errors import UnknownStateError
from holdfast.meta import Commands, MetaStore
from holdfast.plan.scale_command import ScaleAnswer, ScaleCommand
from holdfast.ui.pipeline_status import read_status
from holdfast.watch.event_kinds import ScaleChanged
from holdfast.watch.event_log import EventLog
from holdfast.watch.pipeline_description import kept_descriptions

__all__ = ["ask_to_scale"]

_PAUSE_SECONDS = 0.1
_SECONDS_TO_ANSWER = 30.0
"""After the command was taken: then it is part of an epoch, and is answered with its plan."""


def ask_to_scale(
    opened: MetaStore, store: Path, fragment: str, command: ScaleCommand, wait: float, reason: str
) -> tuple[ScaleAnswer, ScaleChanged]:
    """Wait for the answer of the process that runs the fragment. The event it becomes is kept in the store."""
    state = read_status(opened, fragment, time.time()).state
    before = state[command.operator].partitions if command.operator in state else 0
    answer = _answered(Commands(opened), fragment, command, wait)
    described = kept_descriptions(store).items()
    pipeline = next((name for name, found in described if fragment in found.fragments), fragment)
    changed = ScaleChanged(
        at=time.time(), pipeline=pipeline, fragment=fragment, epoch=answer.epoch, operator=command.operator,
        before=before, after=command.partitions, reason=reason,
        problem="" if answer.epoch is not None else answer.problem or "it was refused",
    )  # fmt: skip
    with EventLog(store, "scale") as log:
        log.put(changed)
    return answer, changed


def _answered(commands: Commands, fragment: str, command: ScaleCommand, wait: float) -> ScaleAnswer:
    number = commands.ask(fragment, command.encode(), time.time())
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
                f"'{fragment}' has taken the command and does not answer",
                cure="check whether it still runs; `holdfast status` shows the partitions it has",
            )
        time.sleep(_PAUSE_SECONDS)
    return ScaleAnswer.decode(text)
