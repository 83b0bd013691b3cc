"""The receivers of a pipeline that runs here, in a process of their own, as the pipeline's process sees them.

They are started again when they die, at the same addresses: what was acknowledged is durable, and clients send the rest
again. When they cannot be started, or die again and again, the run is stopped, and the error raised at its end.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from holdfast.connect.sources.push import Address, PushSource
from holdfast.errors import HoldfastError, ListenError
from holdfast.graph.pipeline import Pipeline
from holdfast.ingress.receiver_messages import STOP, ReceiverOrder, ReceiverWord
from holdfast.ingress.receivers import push_nodes, receiving
from holdfast.ingress.server import GRACE_SECONDS
from holdfast.meta import MetaStore
from holdfast.plan.cuts import Receiving
from holdfast.pstream import Announcements
from holdfast.spark.session import import_roots

__all__ = ["hosted_receivers"]

_SECONDS_TO_OPEN = 60.0
_SECONDS_TO_END = GRACE_SECONDS + 10.0
_MOST_DEATHS, _DEATHS_SECONDS = 3, 60.0
"""Receivers that die so often in so short a time are not started again."""

Addresses = Mapping[str, Mapping[str, str]]


@contextmanager
def hosted_receivers(
    pipeline: Pipeline,
    store: Path,
    announcements: Announcements,
    *,
    meta: str | None = None,
    sync: bool = True,
    on_open: Callable[[Addresses], None] = lambda addresses: None,
    on_lost: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Receive for a pipeline, if it has any push source. `on_open` is told the addresses, by source and protocol;
    `on_lost`, that nothing is received any more."""
    if not push_nodes(pipeline):
        yield
        return
    with closing(MetaStore(meta or store, sync=sync)) as opened:
        items = receiving(pipeline, opened)
    hosted = _HostedReceivers(ReceiverOrder(items, store.resolve(), meta, sync), announcements, on_lost)
    try:
        on_open(hosted.start())
        yield
    finally:
        hosted.stop()
    if hosted.failure is not None:
        raise hosted.failure


class _HostedReceivers:
    """One process after the other; a thread listens to each and sees to the next."""

    def __init__(self, order: ReceiverOrder, announcements: Announcements, on_lost: Callable[[], None]) -> None:
        self._order = order
        self._announcements = announcements
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._stopping = False
        self._deaths: deque[float] = deque(maxlen=_MOST_DEATHS)
        self._opened: queue.SimpleQueue[Addresses | HoldfastError] = queue.SimpleQueue()
        self._process = self._launch()
        self._thread = threading.Thread(target=self._listen, name="receivers", daemon=True)
        self.failure: HoldfastError | None = None

    def start(self) -> Addresses:
        """Returns when all receivers listen."""
        self._thread.start()
        try:
            found = self._opened.get(timeout=_SECONDS_TO_OPEN)
        except queue.Empty:
            found = ListenError("the receivers did not start in time", cure="the machine may be very busy: try again")
        if isinstance(found, HoldfastError):
            raise found
        return found

    def stop(self) -> None:
        """Have what is on its way finished and acknowledged."""
        with self._lock:
            self._stopping = True
            process = self._process
        assert process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has died, or was stopped already
            process.stdin.write(STOP)
            process.stdin.close()
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._thread.join(_SECONDS_TO_END)

    def _launch(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.ingress.receiver_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(import_roots())},
        )
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it died: its end of output says so, too
            process.stdin.write(self._order.encode())
            process.stdin.flush()
        return process

    def _listen(self) -> None:
        error: HoldfastError | None
        try:
            while (error := self._died(self._heard(self._process))) is None:
                with self._lock:
                    if self._stopping:
                        return
                    self._process = self._launch()
        except Exception as problem:  # noqa: BLE001 - a run that receives nothing must not go on as if it did
            error = HoldfastError(
                f"the receivers cannot be started again: {type(problem).__name__}: {problem}",
                cure="check whether the machine has memory left, then start again: acknowledged rows are durable",
            )
        if not self._stopping:
            self.failure = error
            self._opened.put(error)
            self._on_lost()

    def _heard(self, process: subprocess.Popen[bytes]) -> HoldfastError | None:
        """Listen to a process until it ends; what it said was the reason, if anything."""
        assert process.stdout is not None
        for line in process.stdout:
            word = ReceiverWord.decode(line)
            if word.appended is not None:
                self._announcements.appended(word.appended)
            elif word.failed is not None:
                return word.failed.rebuilt()
            else:
                self._order = replace(self._order, items=tuple(_at(word.addresses, i) for i in self._order.items))
                self._opened.put(word.addresses)
        process.wait()
        return None

    def _died(self, error: HoldfastError | None) -> HoldfastError | None:
        """Why the receivers are not to be started again."""
        if error is not None or self._stopping:
            return error
        now = time.monotonic()
        often = len(self._deaths) == _MOST_DEATHS and now - self._deaths[0] < _DEATHS_SECONDS
        self._deaths.append(now)
        if not often:
            return None
        return HoldfastError(
            f"the process of the receivers died more than {_MOST_DEATHS} times in a minute, the last time with exit"
            f" code {self._process.returncode}",
            cure="check what it printed, and whether the system killed it for lack of memory; then start again: what"
            " was acknowledged is durable",
        )


def _at(addresses: Addresses, item: Receiving) -> Receiving:
    """The same source at the addresses that it got: clients know those."""
    source = item.source.source
    if not isinstance(source, PushSource):
        return item
    found = {}
    for way, text in addresses[item.source.name].items():
        host, _, port = text.rpartition(":")
        found[way] = Address(host.strip("[]"), int(port))
    return replace(item, source=replace(item.source, source=replace(source, **found)))  # type: ignore[arg-type]
