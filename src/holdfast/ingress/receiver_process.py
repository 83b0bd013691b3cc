"""The process that receives for a pipeline which runs in another one: `python -m holdfast.ingress.receiver_process`.

Receivers and epochs would hold each other up in one process, where only one thread of Python runs at a time. Standard
input brings what is to be received, and then a word to stop; standard output gets messages, a line each: where the
receivers listen, which p-streams got rows, why it cannot go on. What is on its way at the word to stop is finished and
acknowledged. Without it, at the end of its input, the process ends at once: then the pipeline's process has died, and
whoever starts it again must not be kept from receiving.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
from typing import BinaryIO

from holdfast.ingress.receiver_messages import STOP, ReceiverOrder, ReceiverWord, told
from holdfast.ingress.receivers import receivers_for
from holdfast.meta import MetaStore
from holdfast.pstream import Announcements

__all__ = ["main"]

_LOOK_SECONDS = 1.0


class _Wakes(Announcements):
    """Tells of every p-stream that has got rows, in a thread of its own: nobody waits for the pipe."""

    def __init__(self, answers: BinaryIO) -> None:
        super().__init__()
        self._answers = answers
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._tell, name="wakes", daemon=True).start()

    def appended(self, stream: str) -> None:
        self._calls.put(stream)

    def say(self, word: ReceiverWord) -> None:
        with self._lock, contextlib.suppress(OSError):  # nobody listens any more: its end of our input says so, too
            self._answers.write(word.encode())
            self._answers.flush()

    def _tell(self) -> None:
        while True:
            streams = {self._calls.get()}
            with contextlib.suppress(queue.Empty):
                while True:
                    streams.add(self._calls.get_nowait())
            for stream in streams:
                self.say(ReceiverWord(appended=stream))


def main(orders: BinaryIO, answers: BinaryIO) -> None:
    """Receive until the word to stop."""
    wakes = _Wakes(answers)
    stop = threading.Event()
    try:
        order = ReceiverOrder.read(orders)
        threading.Thread(target=_await_stop, args=(orders, stop), name="orders", daemon=True).start()
        with (
            contextlib.closing(MetaStore(order.meta or order.store, sync=order.sync)) as meta,
            receivers_for(order.items, meta, order.store, sync=order.sync, announcements=wakes) as receivers,
        ):
            wakes.say(ReceiverWord(addresses=receivers.addresses()))
            while not stop.wait(_LOOK_SECONDS):
                receivers.check()
    except Exception as error:  # noqa: BLE001 - raised in the pipeline's process
        wakes.say(told(error))


def _await_stop(orders: BinaryIO, stop: threading.Event) -> None:
    if orders.readline() != STOP:
        os._exit(1)  # not even to finish what is on its way: its clients send that again
    stop.set()


if __name__ == "__main__":
    for signum in (signal.SIGINT, signal.SIGTERM):  # they are for the pipeline's process, which says when to stop
        signal.signal(signum, signal.SIG_IGN)
    own = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints something does not print it among the words
    main(sys.stdin.buffer, own)
