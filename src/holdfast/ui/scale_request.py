"""Asking a running fragment for another number of partitions, and what came of it: for `holdfast scale` and the
dashboard."""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.meta import MetaStore
from holdfast.plan.scale_command import ScaleAnswer, ScaleCommand
from holdfast.ui.command_answer import await_answer
from holdfast.ui.pipeline_status import read_status
from holdfast.watch.event_kinds import ScaleChanged
from holdfast.watch.event_log import EventLog
from holdfast.watch.pipeline_description import kept_descriptions

__all__ = ["ask_to_scale"]


def ask_to_scale(
    opened: MetaStore, store: Path, fragment: str, command: ScaleCommand, wait: float, reason: str
) -> tuple[ScaleAnswer, ScaleChanged]:
    """Wait for the answer of the process that runs the fragment. The event it becomes is kept in the store."""
    state = read_status(opened, fragment, time.time()).state
    before = state[command.operator].partitions if command.operator in state else 0
    answer = ScaleAnswer.decode(await_answer(opened, fragment, command.encode(), wait))
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
