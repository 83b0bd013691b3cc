"""What epochs of simulated processes run on: the process itself, with tasks that take time, in an order that is drawn,
and of which some are lost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.loop import Loop
from holdfast.state.levels import next_merge
from holdfast.task.in_process import Attempt
from holdfast_lab.simulate.world import Program

__all__ = ["run_platform"]

_TASK_SECONDS = 0.05
_PAUSE_SECONDS = 0.1
"""How often a run looks for what others have done: as often as it ships, most steps would be looks."""
_find_merge = partial(next_merge, most=1, small=1, target=800)
"""State of a few rows is merged beside the epochs, too."""


def run_platform(program: Program, merges: Sequence[int], lost: float) -> InProcessPlatform:
    """`merges` as for `InProcessPlatform`; `lost` is how many tasks are."""
    scheduler = program.world.scheduler
    draw = scheduler.random

    def choose(attempts: list[Attempt]) -> Attempt:
        chosen = draw.choice(attempts)
        scheduler.step(f"task {chosen.epoch}.{chosen.stage}.{chosen.task}", draw.random() * _TASK_SECONDS)
        return chosen

    return InProcessPlatform(
        choose, lambda attempt: draw.random() < lost, merges=merges, find_merge=_find_merge,
        before_step=_look_less_often, threads=program.threads,
    )  # fmt: skip


def _look_less_often(loop: Loop) -> None:
    loop.pause = loop.patience = _PAUSE_SECONDS
