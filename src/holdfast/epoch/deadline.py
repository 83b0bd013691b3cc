"""Deadlines: how long a run waits for something that may never happen.

An epoch's Spark job, a source that is asked for its next slice, a sink that receives rows: each of them can hang
without an error. A deadline measures the time without a sign of progress, so work that is slow but advances is left
alone. Unless the user sets it, it follows from how long the same thing took before.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from holdfast.errors import DeadlineError
from holdfast.threads import SYSTEM, Calls, Lock, Threads

__all__ = ["DETECTION", "EPOCH", "SHORTEST_SECONDS", "Deadlines"]

DETECTION = 10.0
"""Seconds after which an executor that is silent is given up."""
LEAST_SECONDS = 30.0
SHORTEST_SECONDS = 3.0
"""Of what can be set: tasks give signs twice a second."""
FIRST_SECONDS = 120.0
"""For what was never done before: workers start, and state is read for the first time."""
_TIMES_LONGEST = 10
_REMEMBERED = 20
EPOCH = "the epoch's Spark job"

T = TypeVar("T")


@dataclass(slots=True)
class Deadlines:
    """`fixed` holds for everything; without it, ten times the longest of the last twenty times, and at least half a
    minute."""

    fixed: float | None = None
    clock: Callable[[], float] = time.monotonic
    threads: Threads = SYSTEM
    watch: Callable[[str], None] | None = None
    """Called before and after each call: a test may end the run there."""
    _took: dict[tuple[str, str], deque[float]] = field(default_factory=dict)
    _stepped: float | None = None
    _caller: _Caller | None = None
    _calling: Lock = field(init=False)

    def __post_init__(self) -> None:
        self._calling = self.threads.lock()

    def allowed(self, what: str, operator: str = "") -> float:
        if self.fixed is not None:
            return self.fixed
        known = self._took.get((what, operator))
        return FIRST_SECONDS if not known else max(LEAST_SECONDS, _TIMES_LONGEST * max(known))

    def took(self, seconds: float, what: str = EPOCH, operator: str = "") -> None:
        self._took.setdefault((what, operator), deque(maxlen=_REMEMBERED)).append(seconds)

    def call(self, operator: str, epoch: int | None, what: str, function: Callable[..., T], *given: Any) -> T:
        """Call what is not ours, e.g. a sink, and wait for it until its deadline. A call that does not come back is
        left behind in its thread: whatever it still does must be harmless, as after a crash."""
        allowed, began = self.allowed(what, operator), self.clock()
        if self.watch is not None:
            self.watch(f"before a call of '{operator}': {what.rstrip(',')}")
        try:
            with self._calling:
                self._caller = self._caller or _Caller(self.threads)
                answer = self._caller.call(partial(function, *given), allowed)
        except queue.Empty:
            self._caller = None
            raise DeadlineError(
                f"{what} has not returned for {allowed:.3g} s",
                cure="check whether what it waits for responds, e.g. a database or a mount; if it is only slow, give it"
                " more time by deadline=... or --deadline. The epoch is not lost: it runs again",
                operator=operator,
                epoch=epoch,
            ) from None
        self.took(self.clock() - began, what, operator)
        if self._stepped is not None:
            self._stepped = self.clock()  # what is slow and makes progress is not stuck
        result: T = answer()
        if self.watch is not None:
            self.watch(f"after a call of '{operator}': {what.rstrip(',')}")
        return result

    # whether the run itself makes progress, which others ask

    def step(self) -> None:
        """The run's own loop has come round."""
        self._stepped = self.clock()

    def rest(self) -> None:
        """The run is not in its loop: it recovers, or has ended."""
        self._stepped = None

    def stuck(self) -> str | None:
        """Why the run makes no progress, if its loop has not come round for longer than any deadline within it
        allows."""
        since = self._stepped
        if since is None:
            return None
        longest = max((self.allowed(*call) for call in list(self._took)), default=self.allowed(EPOCH))
        silent = self.clock() - since
        return f"the run has been stuck for {silent:.0f} s" if silent > 1.5 * longest else None


class _Caller:
    """A thread that makes calls, one at a time, while another one waits no longer than it wants to. It is the same
    thread for all of them: connections of some databases want that."""

    def __init__(self, threads: Threads) -> None:
        self._calls, self._answers = threads.calls(), threads.calls()
        threads.start(partial(_serve, self._calls, self._answers), "calls")

    def call(self, function: Callable[[], Any], seconds: float) -> Callable[[], Any]:
        """The answer, as something that returns or raises it. `queue.Empty` if it does not come in time; the caller
        must not be used any more then."""
        self._calls.put(function)
        answer: Callable[[], Any] = self._answers.get(timeout=seconds)
        return answer

    def __del__(self) -> None:
        self._calls.put(None)


def _serve(calls: Calls, answers: Calls) -> None:
    while (function := calls.get()) is not None:
        try:
            value = function()
        except BaseException as error:  # noqa: BLE001 - raised where the answer is taken
            answers.put(partial(_throw, error))
        else:
            answers.put(partial(_identity, value))
            del value
        del function


def _throw(error: BaseException) -> Any:
    raise error


def _identity(value: Any) -> Any:
    return value
