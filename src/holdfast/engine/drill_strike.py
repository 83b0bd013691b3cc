"""A drill as the process that runs a fragment carries it out: it kills a worker, or itself, with an epoch in flight.

The command is answered before the blow. A process that dies in between has answered and not struck: who has asked sees
that nothing was lost. The other way round, its successor would find the command again, and die of it, too.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator

from holdfast.engine.run_context import RunContext
from holdfast.errors import CommandGoneError, LeaseLostError
from holdfast.meta import Command, Commands
from holdfast.plan.drill_command import DrillAnswer, DrillCommand

__all__ = ["DrillStrike"]


class DrillStrike:
    """Takes the drills out of the commands of a run, and carries them out one by one."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._commands = Commands(run.meta)
        self._asked: tuple[int, DrillCommand] | None = None

    def concern(self, waiting: Iterable[Command]) -> bool:
        """Whether one of the commands is for this process. A host is killed by its own: others leave that alone."""
        return any(
            (drill := DrillCommand.found_in(command.what)) is None or self._is_mine(drill) for command in waiting
        )

    def _is_mine(self, drill: DrillCommand) -> bool:
        return drill.kill == "worker" or self._run.options.host in (None, drill.host)

    def without(self, waiting: Iterable[Command]) -> Iterator[Command]:
        """The commands that are no drills; the drill is remembered, if it is for this process."""
        for command in waiting:
            drill = DrillCommand.found_in(command.what)
            if drill is None:
                yield command
            elif self._is_mine(drill):
                self._asked = (command.number, drill)

    def launched(self, epoch: int) -> None:
        """An epoch is in flight: now is the moment, if somebody has asked for it."""
        if self._asked is None:
            return
        (number, drill), self._asked = self._asked, None
        worker = drill.kill == "worker"
        answer = DrillAnswer(epoch, self._run.clock(), "a worker" if worker else f"host {drill.host}")
        if worker and not self._run.executor.stands:
            answer = DrillAnswer(
                problem="no crew runs its epochs now, so there is no worker between them",
                cure="see `holdfast status` for what runs them; drill a host of `holdfast up` instead: --kill host",
            )
        elif not worker and self._run.options.host is None:
            answer = DrillAnswer(
                problem="one process runs it, which nothing would restart",
                cure="run it with `holdfast up`, or drill a worker: --kill worker",
            )
        try:
            self._commands.answer(self._run.authority.lease, number, answer.encode(), self._run.clock())
        except (CommandGoneError, LeaseLostError):
            return  # it was taken back, or is another one's by now
        if answer.problem is None:
            if worker:
                self._run.executor.kill_worker()
            else:
                os.kill(os.getpid(), signal.SIGKILL)
