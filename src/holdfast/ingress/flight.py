"""Arrow Flight: a `do_put` is a stream of record batches, each taken whole and acknowledged when it is durable.

The thread that gRPC gives a call reads, checks and hands in; another one waits for the disk and writes the
acknowledgements, so that the next batches are read while the last ones are synced. Back pressure is not reading on.
A failure that shows only at the disk is told twice: as a message among the acknowledgements, for clients that wait for
one, and as the error that ends the call.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import polars as pl
import psutil
import pyarrow as pa
from pyarrow import flight

from holdfast.connect.push import Address
from holdfast.errors import (
    BodyTooLargeError,
    HoldfastError,
    IngressBusyError,
    IngressStoppingError,
    MalformedBodyError,
    StreamFullError,
    UnknownStreamError,
)
from holdfast.ingress.admission import admit_frame
from holdfast.ingress.decoding import fit_batch
from holdfast.ingress.refusals import refusal
from holdfast.ingress.target import Target, ack_json, bearer, check_batch
from holdfast.pstream.appender import Ack

__all__ = ["FlightReceiver"]

_IN_FLIGHT_BYTES = 64_000_000
_IN_FLIGHT_BATCHES = 64
_RETRY_SECONDS = 0.05
_TOKEN = "token"
_log = logging.getLogger(__name__)


class FlightReceiver:
    """Listens on one address for all sources that were declared with it."""

    def __init__(self, address: Address, targets: Mapping[str, Target], grace: float) -> None:
        self._server = _Server(address, targets)
        self._grace = grace
        self.address = Address(address.host, self._server.port)

    def start(self) -> None:
        """The server listens since it was made."""

    def stop(self) -> None:
        """Accept no more, acknowledge what was handed in, then end; calls that only wait are cut."""
        self._server.stopping = True
        ending = threading.Thread(target=self._server.shutdown, name="flight-shutdown", daemon=True)
        ending.start()
        deadline = time.monotonic() + self._grace
        while ending.is_alive() and time.monotonic() < deadline and self._server.is_busy():
            ending.join(_RETRY_SECONDS)
        while ending.is_alive() and time.monotonic() < deadline + self._grace:
            # gRPC waits for ever for a client that holds its call open and sends nothing.
            _cut_connections(self.address.port)
            ending.join(_RETRY_SECONDS)


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, address: Address, targets: Mapping[str, Target]) -> None:
        self._targets = targets
        self.stopping = False
        self._puts: set[_Put] = set()
        self._lock = threading.Lock()
        super().__init__(f"grpc://{address}", middleware={_TOKEN: _TokenFactory()})

    def is_busy(self) -> bool:
        """Whether any call has rows on their way."""
        with self._lock:
            return any(put.waiting for put in self._puts)

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        with _told() as telling:
            name, batch = _asked(descriptor)
            target = self._target(context, name)
            telling.append(target)
            put = _Put(target, writer, lambda: self.stopping)
            with self._lock:
                self._puts.add(put)
            try:
                with put:
                    self._read(reader, put, batch)
            finally:
                with self._lock:
                    self._puts.discard(put)

    def _read(self, reader: flight.MetadataRecordBatchReader, put: _Put, batch: str | None) -> None:
        number = 0
        while not put.failed:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            if self.stopping:
                raise IngressStoppingError("the receiver is stopping", cure="send the batch again when it runs again")
            if chunk.data is None:
                continue
            own = _batch_of(chunk.app_metadata)
            put.take(chunk.data, own if own is not None else batch and f"{batch}:{number}", number)
            number += 1

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        token = context.get_middleware(_TOKEN).token
        return iter([_info(target) for target in self._targets.values() if target.opens(token)])

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        with _told():
            return _info(self._target(context, _asked(descriptor)[0]))

    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        with _told():
            return flight.SchemaResult(_arrow_schema(self._target(context, _asked(descriptor)[0]).source.schema))

    def _target(self, context: flight.ServerCallContext, name: str) -> Target:
        token = context.get_middleware(_TOKEN).token
        target = self._targets.get(name)
        if target is not None:
            target.authorize(token)
            return target
        known = [name for name, each in self._targets.items() if each.opens(token)]
        if not known:
            next(iter(self._targets.values())).authorize(token)
        raise UnknownStreamError(f"there is no source '{name}' here", cure=f"send to one of: {', '.join(known)}")


class _Put:
    """One call: what was handed in and is not acknowledged yet, and the thread that acknowledges it."""

    def __init__(self, target: Target, writer: flight.FlightMetadataWriter, stopping: Callable[[], bool]) -> None:
        self.target = target
        self._stopping = stopping
        self.failed = False
        self.waiting = 0
        self._bytes = 0
        self._writer = writer
        self._failure: BaseException | None = None
        self._answers: queue.SimpleQueue[tuple[Future[Ack], str | None, int] | None] = queue.SimpleQueue()
        self._room = threading.Condition()
        self._thread = threading.Thread(target=self._acknowledge, name="flight-ack", daemon=True)

    def __enter__(self) -> _Put:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """What was handed in is acknowledged before the call ends, also when it ends with an error."""
        self._answers.put(None)
        self._thread.join()
        if kind is None and self._failure is not None:
            raise self._failure

    def take(self, data: pa.RecordBatch, batch: str | None, number: int) -> None:
        """Hand a record batch in, when there is room for it."""
        target, size = self.target, data.nbytes
        if size > target.source.max_body:
            raise BodyTooLargeError(
                f"record batch {number} has {size:,} bytes, more than the limit of {target.source.max_body:,}",
                cure="cut it into several, or declare push(..., max_body=...)",
                place=f"record batch {number}",
            )
        frame, outside = admit_frame(
            fit_batch(data, target.source.schema, number), target.source, f"record batch {number}"
        )
        if outside is not None:
            target.count(skipped=len(outside.at))
        with self._room:
            self._room.wait_for(
                lambda: not self.waiting or (self._bytes < _IN_FLIGHT_BYTES and self.waiting < _IN_FLIGHT_BATCHES)
            )
            self.waiting += 1
            self._bytes += size
        try:
            self._answers.put((self._submit(frame, batch, size), batch, size))
        except BaseException:
            self._done(size)
            raise

    def _submit(self, frame: pl.DataFrame, batch: str | None, size: int) -> Future[Ack]:
        """A full stream makes the client wait, as long as a client may be idle itself."""
        deadline = time.monotonic() + self.target.source.idle
        while True:
            try:
                self.target.check_room(size)
                return self.target.submit(frame, batch)
            except (StreamFullError, IngressBusyError):
                if time.monotonic() > deadline or self.failed or self._stopping():
                    raise
            time.sleep(_RETRY_SECONDS)

    def _acknowledge(self) -> None:
        while (item := self._answers.get()) is not None:
            answer, batch, size = item
            try:
                message = json.dumps(ack_json(answer.result(), batch)).encode()
            except Exception as error:  # noqa: BLE001 - told to the client, here and by the thread of the call
                self._failure = self._failure or error
                self.failed = True
                message = refusal(error).encoded()
            # A client that is gone reads no acknowledgements; its rows are durable all the same.
            with contextlib.suppress(pa.ArrowException, OSError):
                self._writer.write(pa.py_buffer(message))
            self._done(size)

    def _done(self, size: int) -> None:
        with self._room:
            self.waiting -= 1
            self._bytes -= size
            self._room.notify_all()


class _TokenMiddleware(flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, token: str | None) -> None:
        self.token = token


class _TokenFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Keeps the token of a call for its handler. Nothing is refused here: `list_flights` is for everybody."""

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Any]) -> _TokenMiddleware:
        found = next((value for name, value in headers.items() if name.lower() == "authorization"), [None])
        return _TokenMiddleware(bearer(found[0] if found else None))


def _asked(descriptor: flight.FlightDescriptor) -> tuple[str, str | None]:
    """The source that a descriptor names, and the batch id if it has one."""
    if descriptor.descriptor_type == flight.DescriptorType.PATH and len(descriptor.path or ()) == 1:
        return descriptor.path[0].decode(errors="replace"), None
    with contextlib.suppress(ValueError, TypeError):
        asked = json.loads(descriptor.command)
        if isinstance(asked, dict) and isinstance(asked.get("source"), str):
            return asked["source"], _id_in(asked)
    raise MalformedBodyError(
        "the descriptor names no source",
        cure='use FlightDescriptor.for_path("<source>"), or a command with the JSON {"source": …, "batch": …}',
        place="descriptor",
    )


def _batch_of(metadata: pa.Buffer | None) -> str | None:
    """The batch id that came with a record batch."""
    if metadata is None or metadata.size == 0:
        return None
    try:
        found = json.loads(metadata.to_pybytes())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise MalformedBodyError(
            "the metadata of a record batch is no JSON object", cure='send {"batch": "<id>"}', place="app_metadata"
        )
    return _id_in(found)


def _id_in(found: Mapping[str, Any]) -> str | None:
    batch = found.get("batch")
    return check_batch(batch if batch is None or isinstance(batch, str) else "")


def _info(target: Target) -> flight.FlightInfo:
    descriptor = flight.FlightDescriptor.for_path(target.name)
    return flight.FlightInfo(_arrow_schema(target.source.schema), descriptor, [], target.totals.offset or -1, -1)


def _arrow_schema(schema: pl.Schema) -> pa.Schema:
    return pl.DataFrame(schema=schema).to_arrow().schema


@contextlib.contextmanager
def _told() -> Iterator[list[Target]]:
    """Turn errors into those of Flight, with the same text as over HTTP."""
    targets: list[Target] = []
    try:
        yield targets
    except (flight.FlightError, pa.ArrowException):
        raise
    except Exception as error:
        if isinstance(error, HoldfastError) and targets:
            targets[0].count(refused=1)
            error.at(operator=targets[0].name)
        elif not isinstance(error, HoldfastError):
            _log.exception("a Flight call failed")
        raise _flight_error(error) from error


def _flight_error(error: Exception) -> Exception:
    told = refusal(error)
    text, extra = f"{told.place}: {told}" if told.place else str(told), told.encoded()
    if told.status == 401:
        return flight.FlightUnauthenticatedError(text, extra)  # type: ignore[no-any-return]
    if told.status == 403:
        return flight.FlightUnauthorizedError(text, extra)  # type: ignore[no-any-return]
    if told.status == 404:
        return pa.ArrowKeyError(text)  # type: ignore[no-any-return]
    if told.status in (400, 413, 415, 422):
        return pa.ArrowInvalid(text)  # type: ignore[no-any-return]
    if told.status in (429, 503, 507):
        return flight.FlightUnavailableError(text, extra)  # type: ignore[no-any-return]
    return flight.FlightServerError(text, extra)  # type: ignore[no-any-return]


def _cut_connections(port: int) -> None:
    """End the connections that clients hold open to a port of this process."""
    for connection in psutil.Process(os.getpid()).net_connections("tcp"):
        if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_ESTABLISHED:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fd)) as copy:
                copy.shutdown(socket.SHUT_RDWR)
