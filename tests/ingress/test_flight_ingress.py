"""Arrow Flight: record batches acknowledged one by one when they are durable, and taken once however often sent."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyarrow import flight
from receiving import Receiving, Serve, numbered

from holdfast.errors import StoreFullError

LISTEN = {"flight": "127.0.0.1:0"}
PATH = flight.FlightDescriptor.for_path("events")


def connect(receiving: Receiving) -> flight.FlightClient:
    return flight.connect(f"grpc://127.0.0.1:{receiving.address('flight')[1]}")


def batch(start: int, stop: int) -> pa.RecordBatch:
    frame = pl.DataFrame(numbered(start, stop), schema=["id", "name"], orient="row")
    return frame.to_arrow().combine_chunks().to_batches()[0]


def with_id(name: str) -> bytes:
    return json.dumps({"batch": name}).encode()


def put(
    client: flight.FlightClient,
    batches: list[tuple[pa.RecordBatch, str | None]],
    descriptor: flight.FlightDescriptor = PATH,
    options: flight.FlightCallOptions | None = None,
) -> list[dict[str, Any]]:
    """Send record batches with their ids, and read all acknowledgements."""
    writer, reader = client.do_put(descriptor, batches[0][0].schema, options)
    for data, name in batches:
        if name is None:
            writer.write_batch(data)
        else:
            writer.write_with_metadata(data, with_id(name))
    writer.done_writing()
    acks = []
    while (message := reader.read()) is not None:
        acks.append(json.loads(message.to_pybytes()))
    writer.close()
    return acks


def test_record_batches_are_taken_in_order_and_acknowledged_one_by_one(serve: Serve) -> None:
    receiving = serve(**LISTEN)

    with connect(receiving) as client:
        acks = put(client, [(batch(start, start + 10), None) for start in range(0, 100, 10)])

    assert [(ack["offset"], ack["rows"], ack["duplicate"]) for ack in acks] == [
        (start, 10, False) for start in range(0, 100, 10)
    ]
    assert receiving.rows() == numbered(0, 100)


def test_batches_sent_again_are_not_taken_twice(serve: Serve) -> None:
    receiving = serve(**LISTEN)
    named = flight.FlightDescriptor.for_command(json.dumps({"source": "events", "batch": "load"}))

    with connect(receiving) as client:
        first = put(client, [(batch(0, 5), "a"), (batch(5, 9), "b")])
        again = put(client, [(batch(0, 5), "a"), (batch(5, 9), "b"), (batch(9, 12), "c")])
        for _ in range(2):
            whole = put(client, [(batch(12, 14), None), (batch(14, 16), None)], named)

    assert [ack["duplicate"] for ack in again] == [True, True, False]
    assert [ack["offset"] for ack in again[:2]] == [ack["offset"] for ack in first]
    assert [ack["batch"] for ack in whole] == ["load:0", "load:1"]
    assert [ack["duplicate"] for ack in whole] == [True, True]
    assert receiving.rows() == numbered(0, 16)


def test_an_acknowledgement_comes_while_the_call_goes_on(serve: Serve) -> None:
    receiving = serve(**LISTEN)

    with connect(receiving) as client:
        writer, reader = client.do_put(PATH, batch(0, 1).schema)
        for start in (0, 10, 20):
            writer.write_batch(batch(start, start + 10))
            assert json.loads(reader.read().to_pybytes())["offset"] == start
            assert len(receiving.rows()) == start + 10
        writer.close()


def test_only_clients_with_the_token_are_heard(serve: Serve) -> None:
    receiving = serve(**LISTEN, token="s3cret")
    rows = [(batch(0, 3), None)]

    def options(token: str) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])

    with connect(receiving) as client:
        with pytest.raises(flight.FlightUnauthenticatedError, match="none was given"):
            put(client, rows)
        with pytest.raises(flight.FlightUnauthorizedError, match="not the token of the source"):
            put(client, rows, options=options("wrong"))
        assert list(client.list_flights()) == []
        assert receiving.rows() == []
        assert put(client, rows, options=options("s3cret"))[0]["rows"] == 3
        assert len(list(client.list_flights(options=options("s3cret")))) == 1


def test_what_does_not_fit_is_refused_with_the_same_words(serve: Serve) -> None:
    receiving = serve(**LISTEN, max_body=10_000)
    other = pa.record_batch({"id": [1.5], "name": ["a"]})
    with connect(receiving) as client:
        with pytest.raises(pa.ArrowInvalid, match="column 'id': expected Int64, found Float64"):
            put(client, [(other, None)])
        with pytest.raises(pa.ArrowInvalid, match="no column 'name'"):
            put(client, [(pa.record_batch({"id": [1]}), None)])
        with pytest.raises(pa.ArrowInvalid, match="more than the limit of 10,000"):
            put(client, [(batch(0, 5000), None)])
        with pytest.raises(KeyError, match="send to one of: events"):
            put(client, [(batch(0, 1), None)], flight.FlightDescriptor.for_path("evnets"))
        with pytest.raises(pa.ArrowInvalid, match="names no source"):
            put(client, [(batch(0, 1), None)], flight.FlightDescriptor.for_command(b"what"))
        with pytest.raises(pa.ArrowInvalid, match="batch id is not valid"):
            put(client, [(batch(0, 1), "has space")])
    assert receiving.rows() == []


def test_batches_before_a_refused_one_are_acknowledged(serve: Serve) -> None:
    receiving = serve(**LISTEN, max_body=10_000)

    with connect(receiving) as client:
        writer, reader = client.do_put(PATH, batch(0, 1).schema)
        writer.write_batch(batch(0, 10))
        writer.write_batch(batch(0, 5000))
        assert json.loads(reader.read().to_pybytes())["rows"] == 10
        with pytest.raises(pa.ArrowInvalid, match="more than the limit"):
            writer.close()
    assert receiving.rows() == numbered(0, 10)


def test_dictionaries_that_grow_for_ever_are_refused_and_those_that_change_are_not(serve: Serve) -> None:
    receiving = serve(**LISTEN, max_body=100_000, budget="1 GB")

    def named(number: int, names: int) -> pa.RecordBatch:
        texts = pa.array([f"{number} {name}".ljust(1000) for name in range(names)])
        return pa.record_batch(
            {"id": [number], "name": pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), texts)}
        )

    def send(batches: list[pa.RecordBatch], deltas: bool) -> None:
        settings = flight.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas))
        writer, _ = client.do_put(PATH, batches[0].schema, settings)
        with writer:
            for batch in batches:
                writer.write_batch(batch)

    with connect(receiving) as client:
        send([named(number, 50) for number in range(20)], False)
        assert len(receiving.rows()) == 20
        grown = [f"{name}".ljust(1000) for name in range(1000)]
        growing = [
            pa.record_batch(
                {
                    "id": [size],
                    "name": pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(grown[:size])),
                }
            )
            for size in range(50, 1000, 50)
        ]
        with pytest.raises(pa.ArrowInvalid, match="bytes of memory"):
            send(growing, True)


def test_a_failure_at_the_disk_reaches_a_client_that_waits_for_its_acknowledgement(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiving = serve(**LISTEN)

    def full(*_: object) -> None:
        raise StoreFullError("no space left", cure="free some")

    monkeypatch.setattr(receiving.appender._output.writer, "write", full)
    with connect(receiving) as client:
        writer, reader = client.do_put(PATH, batch(0, 1).schema)
        writer.write_with_metadata(batch(0, 10), with_id("a"))
        assert json.loads(reader.read().to_pybytes())["problem"] == "no space left"
        with pytest.raises(flight.FlightUnavailableError, match="no space left"):
            writer.close()
        monkeypatch.undo()
        assert put(client, [(batch(0, 10), "a")])[0]["duplicate"] is False
    assert receiving.rows() == numbered(0, 10)


def test_a_full_stream_makes_the_client_wait_and_then_says_so(serve: Serve) -> None:
    receiving = serve(**LISTEN, max_body=16_000, budget=16_000, idle=0.3)

    with connect(receiving) as client, pytest.raises(flight.FlightUnavailableError, match="budget"):
        put(client, [(batch(0, 400), str(number)) for number in range(100)])
    assert len(receiving.rows()) % 400 == 0


def test_describes_its_sources(serve: Serve) -> None:
    receiving = serve(**LISTEN)

    with connect(receiving) as client:
        info = client.get_flight_info(PATH)
        schema = client.get_schema(PATH).schema

    assert info.schema.names == schema.names == ["id", "name"]


def test_a_call_that_is_cut_in_the_middle_and_sent_again_is_taken_once(serve: Serve) -> None:
    receiving = serve(**LISTEN)
    batches = [(batch(start, start + 50), f"b{start}") for start in range(0, 1000, 50)]

    client = connect(receiving)
    writer, reader = client.do_put(PATH, batches[0][0].schema)
    for data, name in batches[:7]:
        writer.write_with_metadata(data, with_id(name))
    acked = json.loads(reader.read().to_pybytes())["rows"]
    reader = writer = None
    client.close()  # without an end of the stream
    with connect(receiving) as client:
        acks = put(client, batches)

    assert acked == 50
    assert acks[0]["duplicate"]
    # What came before the cut and was not acknowledged may have come in, behind nothing and before nothing else.
    assert sorted(receiving.rows()) == numbered(0, 1000)


def test_stopping_does_not_wait_for_a_client_that_holds_its_call_open(serve: Serve) -> None:
    receiving = serve(**LISTEN)
    with connect(receiving) as client:
        writer, reader = client.do_put(PATH, batch(0, 1).schema)
        writer.write_batch(batch(0, 10))
        assert json.loads(reader.read().to_pybytes())["rows"] == 10
        began = time.monotonic()
        stopping = threading.Thread(target=receiving.server.stop)
        stopping.start()
        stopping.join(10)
        assert not stopping.is_alive()
        assert time.monotonic() - began < 5
        with pytest.raises(pa.ArrowException):
            writer.close()
