"""Event times of pushed rows are judged once, by the receiver's clock, before a row is acknowledged: what is missing,
out of range or too far ahead is refused with its line, or skipped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyarrow import flight
from receiving import ARROW, CLIENT, LineClient, arrow, stored

import holdfast as hf
from holdfast.connect.time_range import EARLIEST, LATEST
from holdfast.ingress.receivers import open_receivers
from holdfast.ingress.server import IngressServer
from holdfast.meta import MetaStore

NOW = 1_000_000.0
SCHEMA = {"ts": pl.Int64, "k": pl.Int64}
GOOD = [999_000, 1_000_060_000]
"""Milliseconds: long ago, and as far ahead as is allowed."""
BAD = [None, 1_000_060_001, LATEST + 1, EARLIEST - 1]
REASONS = ["'ts' is null", "60.001 s ahead of the clock", "outside the allowed range", "outside the allowed range"]
NDJSON = "application/x-ndjson"


class Open:
    """The receivers of a pipeline with one source."""

    def __init__(self, server: IngressServer, meta: MetaStore, store: Path) -> None:
        self.server, self._meta, self._store = server, meta, store

    def address(self, protocol: str) -> tuple[str, int]:
        where = self.server.addresses["events"][protocol]
        return where.host, where.port

    def post(self, body: bytes, kind: str) -> tuple[int, dict[str, Any]]:
        url = f"http://127.0.0.1:{self.address('http')[1]}/v1/streams/events"
        answer = CLIENT.post(url, content=body, headers={"content-type": kind})
        return answer.status_code, answer.json()

    def times(self) -> list[int]:
        rows = stored(self._meta, self._store, "pushed.events")
        return rows["ts"].to_list() if rows.width else []


@pytest.fixture
def receive(tmp_path: Path) -> Iterator[Callable[[str], Open]]:
    with ExitStack() as stack:

        def start(bad_rows: Any) -> Open:
            pipeline = hf.Pipeline("pushed")
            anywhere = "127.0.0.1:0"
            source = hf.source.push(SCHEMA, http=anywhere, tcp=anywhere, flight=anywhere, bad_rows=bad_rows)
            rows = pipeline.source("events", source, event_time="ts", time_unit="ms", max_ahead="1 min")
            rows.sink("out", hf.sink.parquet(tmp_path / "out"))
            meta = MetaStore(tmp_path)
            stack.callback(meta.close)
            receivers = stack.enter_context(open_receivers(pipeline, meta, tmp_path, clock=lambda: NOW))
            return Open(receivers.server, meta, tmp_path)

        yield start


def lines(times: list[int | None]) -> bytes:
    return b"".join(json.dumps({"ts": time, "k": number}).encode() + b"\n" for number, time in enumerate(times))


def frame(times: list[int | None]) -> pl.DataFrame:
    return pl.DataFrame({"ts": times, "k": list(range(len(times)))}, schema=SCHEMA)


def test_a_time_that_is_not_allowed_is_refused_with_its_place(receive):
    events = receive("fail")
    for bad, reason in zip(BAD, REASONS, strict=True):
        times = [*GOOD, bad, GOOD[0]]
        status, told = events.post(b"\n" + lines(times), NDJSON)
        assert (status, "line 4" in told["place"], reason in told["problem"]) == (422, True, True), told
        csv = "ts,k\n" + "".join(f"{'' if time is None else time},0\n" for time in times)
        status, told = events.post(csv.encode(), "text/csv")
        assert (status, "line 4" in told["place"], reason in told["problem"]) == (422, True, True), told
        status, told = events.post(arrow(frame(times)), ARROW)
        assert (status, "row 3" in told["place"], reason in told["problem"]) == (422, True, True), told
    assert events.times() == []
    status, told = events.post(lines(GOOD), NDJSON)
    assert (status, told["rows"]) == (200, 2)
    assert events.times() == GOOD


def test_lines_before_one_that_is_too_far_ahead_are_taken(receive):
    events = receive("fail")
    with LineClient(events.address("tcp")) as client:
        client.send(lines([*GOOD, BAD[1], GOOD[0]]))
        client.until("ok 2")
        answer = client.answer()
    assert answer.startswith("error 422 line 3: ")
    assert "60.001 s ahead" in answer
    assert events.times() == GOOD


def test_rows_are_skipped_and_counted_where_that_was_declared(receive):
    events = receive("skip")
    times = [GOOD[0], *BAD, GOOD[1]]
    status, told = events.post(lines(times[:1]) + b"nonsense\n" + lines(times[1:]), NDJSON)
    assert (status, told["rows"], told["skipped"]) == (200, 2, 5)
    assert [skipped["line"] for skipped in told["first_skipped"]] == [2, 3, 4, 5, 6]
    status, told = events.post(arrow(frame(times)), ARROW)
    assert (status, told["rows"], told["skipped"]) == (200, 2, 4)
    assert [skipped["line"] for skipped in told["first_skipped"]] == [2, 3, 4, 5]
    with LineClient(events.address("tcp")) as client:
        client.send(lines(times))
        client.until("ok 6")
    assert events.times() == GOOD * 3
    assert events.server.totals()["events"].skipped == 5 + 4 + 4


@pytest.mark.parametrize("bad_rows", ["fail", "skip"])
def test_record_batches_of_flight_are_judged_as_well(receive, bad_rows):
    events = receive(bad_rows)
    data = frame([*GOOD, *BAD]).to_arrow().combine_chunks().to_batches()[0]
    with flight.connect(f"grpc://127.0.0.1:{events.address('flight')[1]}") as client:
        writer, reader = client.do_put(flight.FlightDescriptor.for_path("events"), data.schema)
        writer.write_batch(data)
        writer.done_writing()
        answer = reader.read()
        if bad_rows == "fail":
            with pytest.raises(pa.ArrowInvalid, match=r"record batch 0, row 3.*'ts' is null"):
                writer.close()
        else:
            assert json.loads(answer.to_pybytes())["rows"] == 2
            writer.close()
    assert events.times() == ([] if bad_rows == "fail" else GOOD)
    assert events.server.totals()["events"].skipped == (0 if bad_rows == "fail" else 4)
