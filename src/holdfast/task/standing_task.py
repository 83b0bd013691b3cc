"""A standing task: the part of a crew's Spark job that one slot holds, from the start of the run to its end."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext

from holdfast.epoch.crew_messages import Enrol, WorkerBeat
from holdfast.store import Tiers
from holdfast.task.channel import Channel, ChannelClosedError, connect, listen
from holdfast.task.crew_worker import CrewWorker
from holdfast.task.work_directory import WorkDirectory, load_program

__all__ = ["StandingTask"]

_BEAT_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class StandingTask:
    """It is given to `mapInArrow`. It enrols with the driver at `host` and `port`, and says nothing through Spark. A
    copy of a task that another attempt stands for is sent away by the driver."""

    work: WorkDirectory
    tiers: Tiers
    host: str
    port: int
    secret: bytes = field(repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        context = TaskContext.get()
        assert context is not None
        number, attempt = context.partitionId(), context.attemptNumber()
        program = load_program(self.work)
        driver = connect(self.host, self.port, self.secret)
        door = listen(driver.own_host)
        port = door.getsockname()[1]
        driver.send(Enrol(number, attempt, driver.own_host, port, platform.node(), os.getpid()))
        threading.Thread(target=_beat, args=(driver,), name="beats", daemon=True).start()
        try:
            CrewWorker(number, program, self.tiers, driver, door, self.secret).run()
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
