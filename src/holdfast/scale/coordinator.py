"""The scale-out coordinator: the steps by which an operator gets another parallelism, in order.

They are those of the scale-out algorithm of Castro Fernandez et al. (SIGMOD 2013), done with what an epoch-based system
has. The state that is partitioned is the last commit's, as manifests, without a copy and without the operator's help.
Upstream stops where an epoch ends anyway: the plan of the next epoch is what carries the new routing. The tasks of that
epoch restore their part of the state from the hand-over, and rows that the state does not have yet are read from the
sources again, as planned. So everything from the plan on is the driver's work, and the plan is the point of no return:
what fails before it is undone, what fails after it is finished by the next start.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from holdfast.epoch.record_change import record_of
from holdfast.errors import DeclarationError, ScaleAbortedError
from holdfast.meta import Commands, MetaStore
from holdfast.plan.scale_command import ScaleAnswer, ScaleCommand
from holdfast.plan.scaled_routing import partitions_of
from holdfast.state.routing import Routing

__all__ = ["STEPS", "Coordinator", "ExecutorPool"]

STEPS = (
    "partition-processing-state",
    "retrieve-routing-state",
    "get-new-executors",
    "stop-upstream",
    "partition-routing-state",
    "partition-buffer-state",
    "restore-state",
    "replay-buffer-state",
    "release-executors",
)


class ExecutorPool(Protocol):
    """Executors for partitions."""

    def acquire(self, n: int, /) -> object:
        """Acquire `n` more executors; an error if that is not possible."""

    def release(self, n: int, /) -> object:
        """Release `n` executors."""


@dataclass(slots=True)
class Coordinator:
    """Carries out changes of parallelism on the running pipelines of a store.

    `wait` is how many seconds the pipeline has to take up a change, and then to run an epoch with it. A run that ends
    sets `ending`, and changes that were not taken up are withdrawn.
    """

    meta: MetaStore
    pool: ExecutorPool | None = None
    on_step: Callable[[str], None] = lambda name: None
    wait: float = 60.0
    pause: float = 0.1
    clock: Callable[[], float] = time.time
    ending: bool = False

    def scale_out_operator(
        self, fragment: str, operator: str, partitions: int, bounds: tuple[int, ...] | None = None, reason: str = ""
    ) -> int:
        """Give an operator of a fragment another parallelism, more or less; the first epoch that runs with it.

        Without `bounds` the key intervals have equal lengths. A source gets so many reading tasks.
        """
        command = ScaleCommand(operator, partitions, bounds, reason)
        before = self._partitioned(fragment, command)
        more = 0 if before is None or self.pool is None else partitions - before
        self.on_step("get-new-executors")
        if self.pool is not None and more > 0:
            self.pool.acquire(more)
        try:
            epoch = self._taken_up(fragment, command)
        except BaseException:
            if self.pool is not None and more > 0:
                self.pool.release(more)
            raise
        self.on_step("restore-state")
        self._committed(fragment, epoch - 1)
        self.on_step("replay-buffer-state")
        self._committed(fragment, epoch)
        self.on_step("release-executors")
        if self.pool is not None and more < 0:
            self.pool.release(-more)
        return epoch

    def _partitioned(self, fragment: str, command: ScaleCommand) -> int | None:
        """See that the last committed state can be partitioned so; how many partitions it has. None for a source, and
        before the first commit."""
        self.on_step("partition-processing-state")
        commit = self.meta.last_commit(fragment)
        record = None if commit is None else record_of(commit)
        operator, partitions = command.operator, partitions_of(command)
        if record is not None and operator in record.routing:
            routing = Routing.even(partitions) if command.bounds is None else Routing(command.bounds)
            record.routed({**record.routing, operator: routing})
        self.on_step("retrieve-routing-state")
        return record.routing[operator].partitions if record is not None and operator in record.routing else None

    def _taken_up(self, fragment: str, command: ScaleCommand) -> int:
        """Ask the pipeline and wait until a plan has the new routing. Then its upstream has stopped at the end of an
        epoch, and both routing and the rows to come are partitioned again."""
        self.on_step("stop-upstream")
        commands = Commands(self.meta)
        number = commands.ask(fragment, command.encode(), self.clock())
        try:
            until = self.clock() + self.wait
            while (text := commands.answered(number)) is None:
                if (self.ending or self.clock() > until) and commands.withdraw(number):
                    raise ScaleAbortedError(
                        "the run ended first" if self.ending else f"no epoch started within {self.wait:g} s",
                        cure="nothing was changed; ask again while the pipeline runs and has rows to read",
                        operator=command.operator,
                    )
                time.sleep(self.pause)
        except BaseException:
            commands.withdraw(number)
            raise
        answer = ScaleAnswer.decode(text)
        if answer.epoch is None:
            raise DeclarationError(answer.problem or "", cure=answer.cure, operator=answer.operator)
        self.on_step("partition-routing-state")
        self.on_step("partition-buffer-state")
        return answer.epoch

    def _committed(self, fragment: str, epoch: int) -> None:
        """Wait until an epoch is committed. The change stands by then, so this gives up without an error."""
        until = self.clock() + self.wait
        while not self.ending and self.clock() <= until:
            if self.meta.last_epoch(fragment) >= epoch:
                return
            time.sleep(self.pause)
