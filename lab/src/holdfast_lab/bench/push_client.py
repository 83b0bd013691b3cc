"""A client that posts rows over HTTP by a schedule, in a process of its own, on several connections.

A batch is due every few milliseconds, whether those before it were answered or not. Its arrival time is when it was
due: time that it waits for a free connection counts. Standard output gets a JSON list with one item for each batch that
was acknowledged: when it was due, when it was acknowledged, the place of its first row in the stream, and its rows.
"""

from __future__ import annotations

import http.client
import io
import json
import sys
import threading
import time
from dataclasses import dataclass

import polars as pl

from holdfast.errors import HoldfastError
from holdfast_lab.bench.open_loop import RowSchedule

__all__ = ["BATCH_SECONDS", "PushedBatch", "post", "push_by_schedule"]

BATCH_SECONDS = 0.005
_CONNECTIONS = 8


@dataclass(frozen=True, slots=True)
class PushedBatch:
    due: float
    acknowledged: float
    offset: int
    rows: int


def push_by_schedule(port: int, schedule: RowSchedule, connections: int = _CONNECTIONS) -> list[PushedBatch]:
    """Post all rows of a schedule, as they come."""
    batches = round((schedule.warm + schedule.seconds) / BATCH_SECONDS)
    done: list[PushedBatch] = []
    problems: list[Exception] = []

    def work(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            done.extend(_post(connection, schedule, batch) for batch in range(number, batches, connections))
        except Exception as error:  # noqa: BLE001 - raised where all of them have ended
            problems.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return sorted(done, key=lambda batch: batch.offset)


def _post(connection: http.client.HTTPConnection, schedule: RowSchedule, batch: int) -> PushedBatch:
    due = schedule.began + (batch + 1) * BATCH_SECONDS
    low, high = (round(schedule.rate * BATCH_SECONDS * place) for place in (batch, batch + 1))
    return post(connection, schedule.frame(low, high), due)


def post(connection: http.client.HTTPConnection, frame: pl.DataFrame, due: float) -> PushedBatch:
    """Post rows when they are due, or at once if that is over."""
    body = io.BytesIO()
    frame.write_ipc_stream(body)
    time.sleep(max(0.0, due - time.time()))
    headers = {"Content-Type": "application/vnd.apache.arrow.stream"}
    connection.request("POST", "/v1/streams/rows", body.getbuffer(), headers)
    answer = connection.getresponse()
    said = json.loads(answer.read())
    if answer.status != 200:
        raise HoldfastError(said["problem"], cure=said["cure"])
    return PushedBatch(due, time.time(), said["offset"], frame.height)


if __name__ == "__main__":
    rate, warm, seconds, began = (float(given) for given in sys.argv[3:7])
    pushed = push_by_schedule(int(sys.argv[1]), RowSchedule(rate, warm, seconds, int(sys.argv[2]), began))
    json.dump([(batch.due, batch.acknowledged, batch.offset, batch.rows) for batch in pushed], sys.stdout)
