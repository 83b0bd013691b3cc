"""A standing task: the one task of a worker's Spark job, which holds a slot from the start of the run to its end."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext

from holdfast.epoch.crew_messages import Enrol, Welcome, WorkerBeat
from holdfast.store import Tiers
from holdfast.task.channel import Channel, ChannelClosedError, connect, listen
from holdfast.task.crew_worker import CrewWorker
from holdfast.task.work_directory import unsealed_program

__all__ = ["StandingTask"]

_BEAT_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class StandingTask:
    """It is given to `mapInArrow`. It enrols with the driver at `host` and `port`, gets the program from it, and says
    nothing through Spark. It ends well only when the driver says so: whoever is sent away, or has lost the driver,
    fails, and Spark tries again.
    """

    job: int
    tiers: Tiers
    host: str
    port: int
    secret: bytes = field(repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        context = TaskContext.get()
        assert context is not None
        driver = connect(self.host, self.port, self.secret)
        door = listen(driver.own_host)
        port = door.getsockname()[1]
        driver.send(Enrol(self.job, context.attemptNumber(), driver.own_host, port, platform.node(), os.getpid()))
        threading.Thread(target=_beat, args=(driver,), name="beats", daemon=True).start()
        try:
            head, body = driver.receive()
            if not isinstance(head, Welcome):
                raise ChannelClosedError("the driver does not answer with the program")
            program = unsealed_program(body, self.secret, "the program that came")
            del body
            CrewWorker(program, self.tiers, driver, door, self.secret).run()
        finally:
            driver.close()
        return iter(())


def _beat(driver: Channel) -> None:
    """With the CPU time that was spent, by which the driver tells work from waiting."""
    try:
        while True:
            driver.send(WorkerBeat(time.process_time()))
            time.sleep(_BEAT_SECONDS)
    except ChannelClosedError:
        pass
