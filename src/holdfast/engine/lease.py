"""Keeping the lease on a pipeline while it runs. A process that was killed leaves its lease behind; the next start on
the same machine takes it over at once (`meta/lease_holder.py`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from types import TracebackType

from holdfast.engine.roles import Role, Seat
from holdfast.errors import DeadlineError, StoreUnreachableError
from holdfast.meta import Lease, MetaStore
from holdfast.meta.lease_holder import is_dead, this_process
from holdfast.threads import SYSTEM, Thread, Threads

__all__ = ["LEASE_SECONDS", "LeaseKeeper"]

_log = logging.getLogger(__name__)
LEASE_SECONDS = 30.0


class LeaseKeeper:
    """Holds the lease from `__enter__` to `__exit__`.

    A thread renews it, so that it does not expire while the driver waits for a slow sink or source. Not promised: that
    the lease is still held when `renew` returns; only the store knows, and asks at every plan and commit.
    """

    lease: Lease
    seat = Seat()

    def __init__(
        self,
        meta: MetaStore,
        pipeline: str,
        clock: Callable[[], float],
        seconds: float = LEASE_SECONDS,
        stuck: Callable[[], str | None] = lambda: None,
        owner: str | None = None,
        threads: Threads = SYSTEM,
    ) -> None:
        """`stuck` says why the holder makes no progress, if so: then the lease is not renewed, and another may take it.
        The owner is this process, unless another one is named."""
        self._stuck = stuck
        self._meta = meta
        self._pipeline = pipeline
        self._clock = clock
        self._seconds = seconds
        self._owner = owner
        self._threads = threads
        self._ended = threads.event()
        self._failure: Exception | None = None
        self._thread: Thread | None = None

    def __enter__(self) -> LeaseKeeper:
        holder = self._meta.lease_holder(self._pipeline)
        dead = holder.owner if holder is not None and is_dead(holder.owner) else None
        owner = self._owner or this_process()
        self.lease = self._meta.acquire(self._pipeline, owner, self._clock(), self._seconds, dead)
        self._thread = self._threads.start(self._keep, f"lease-{self._pipeline}")
        return self

    def renew(self) -> None:
        """To be called often: raises what kept the thread from renewing the lease."""
        if self._failure is not None:
            raise self._failure

    def ready(self, role: Role | None) -> None:
        """There is no other host that it would concern."""

    def differs(self, epoch: int, what: str) -> None:
        raise AssertionError("the only holder of the lease has no other run to differ from")

    def _keep(self) -> None:
        held_until, pause = self._threads.monotonic() + self._seconds, self._seconds / 3
        while not self._ended.wait(pause):
            asked, pause = self._threads.monotonic(), self._seconds / 3
            if (problem := self._stuck()) is not None:
                _log.error("%s: %s; its lease is no longer renewed", self._pipeline, problem)
                self._failure = DeadlineError(
                    f"pipeline '{self._pipeline}' gave up its lease: {problem}",
                    cure="end this process, if it still runs, and start again: the next run resumes from the last"
                    " commit",
                )
                return
            try:
                self._meta.renew(self.lease, self._clock(), self._seconds)
                held_until = asked + self._seconds
            except StoreUnreachableError as error:
                if self._threads.monotonic() >= held_until:
                    self._failure = error
                    return
                pause = self._seconds / 30  # the lease is ours until it expires: the database may be back by then
            except Exception as error:  # noqa: BLE001 - carried to the main thread, which raises it
                self._failure = error
                return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(self._seconds)
        # A store that fails now would hide why the run ends, and the lease of a dead process is taken over anyway.
        with contextlib.suppress(Exception) if error is not None else contextlib.nullcontext():
            self._meta.release(self.lease)
