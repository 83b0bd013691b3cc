"""Arrow Flight: a `do_put` is a stream of record batches, each taken whole and acknowledged when it is durable.

The token is looked at before a message is read, and no message is larger than a body may be: pyarrow's own server has
no such limits, so the protocol is spoken here, over gRPC. A thread of the call reads, weighs and hands in, while the
call itself waits for the disk and sends the acknowledgements, so that the next batches are read while the last ones are
synced. Back pressure is not reading on. A failure that shows only at the disk is told twice: as a message among the
acknowledgements, for clients that wait for one, and as the error that ends the call.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import grpc
import polars as pl
import pyarrow as pa
from pyarrow import flight

from holdfast.connect.sources.push import Address, TlsFiles
from holdfast.errors import (
    BodyTooLargeError,
    HoldfastError,
    IngressBusyError,
    IngressStoppingError,
    ListenError,
    StreamFullError,
    UnknownStreamError,
)
from holdfast.ingress.admission import admit_frame
from holdfast.ingress.arrow_messages import MOST_METADATA
from holdfast.ingress.body_rows import fit_batch
from holdfast.ingress.flight_names import asked, batch_of
from holdfast.ingress.flight_wire import ArrowFeed, FlightData, put_result
from holdfast.ingress.refusals import refusal
from holdfast.ingress.target import RETRY_SECONDS, IngressTarget, Received, ack_json, bearer
from holdfast.ingress.tls import read_pem, server_context
from holdfast.ingress.weight import check_weight
from holdfast.pstream.appender import Ack

__all__ = ["FlightReceiver"]

MOST_CALLS = 32
"""Each call of a client with the token may have a message of `max_body` in memory that nobody has looked at yet."""
_MOST_CONNECTIONS = 384
_SPARE_THREADS = 8
_IN_FLIGHT_BYTES = 64_000_000
_IN_FLIGHT_BATCHES = 64
_HANDSHAKE_SECONDS = 10
_SERVICE = "arrow.flight.protocol.FlightService"
_EXTRA = "grpc-status-details-bin"
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    507: grpc.StatusCode.UNAVAILABLE,
}
_log = logging.getLogger(__name__)

Requests = Iterator[bytes]


class FlightReceiver:
    """Listens on one address for all sources that were declared with it."""

    def __init__(
        self, address: Address, targets: Mapping[str, IngressTarget], grace: float, tls: TlsFiles | None
    ) -> None:
        self._calls = _FlightCalls(targets)
        self._grace = grace
        self._pool = ThreadPoolExecutor(MOST_CALLS + _SPARE_THREADS, thread_name_prefix="flight-call")
        largest = max(target.source.max_body for target in targets.values())
        options = {
            "grpc.max_receive_message_length": largest + MOST_METADATA,
            "grpc.max_concurrent_streams": MOST_CALLS + _SPARE_THREADS,
            "grpc.max_allowed_incoming_connections": _MOST_CONNECTIONS,
            "grpc.max_connection_idle_ms": round(1000 * max(target.source.idle for target in targets.values())),
            "grpc.server_handshake_timeout_ms": 1000 * _HANDSHAKE_SECONDS,
            "grpc.so_reuseport": 0,
        }
        self._server = grpc.server(self._pool, options=list(options.items()))
        # gRPC reads the message of a plain call before the call is told of it; streams wait to be asked for theirs.
        streams = {
            name: grpc.stream_stream_rpc_method_handler(method) for name, method in self._calls.methods().items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, streams),))
        try:
            if tls is None:
                port = self._server.add_insecure_port(str(address))
            else:
                port = self._server.add_secure_port(str(address), _credentials(tls))
        except RuntimeError as error:
            raise ListenError(f"cannot listen on {address}: {error}", cure="give push() another address") from error
        self.address = Address(address.host, port)

    def start(self) -> None:
        self._server.start()

    def check(self) -> None:
        """It answers its clients, whatever happens."""

    def stop(self) -> None:
        """Accept no more, acknowledge what was handed in, then end; calls that only wait are cut."""
        self._calls.stopping = True
        ended = self._server.stop(self._grace)
        deadline = time.monotonic() + self._grace
        while not ended.is_set() and time.monotonic() < deadline and self._calls.are_busy():
            ended.wait(RETRY_SECONDS)
        self._server.stop(0).wait(self._grace)
        self._pool.shutdown(wait=True)


class _FlightCalls:
    """What clients may call, each with the token looked at first."""

    def __init__(self, targets: Mapping[str, IngressTarget]) -> None:
        self._targets = targets
        self.stopping = False
        self._puts: set[_Put] = set()
        self._lock = threading.Lock()

    def methods(self) -> dict[str, Callable[[Requests, grpc.ServicerContext], Iterator[bytes]]]:
        return {
            "DoPut": self._put,
            "ListFlights": self._list,
            "GetFlightInfo": self._info,
            "GetSchema": self._schema,
        }

    def are_busy(self) -> bool:
        """Whether any call has rows on their way."""
        with self._lock:
            return any(put.waiting for put in self._puts)

    def _put(self, requests: Requests, context: grpc.ServicerContext) -> Iterator[bytes]:
        with _errors_as_status(context) as telling:
            token = self._token(context)
            first = FlightData.parse(next(requests, b""))
            name, batch = asked(first.descriptor)
            target = self._target(token, name)
            telling.append(target)
            put = _Put(target, lambda: self.stopping)
            with self._lock:
                if len(self._puts) >= MOST_CALLS:
                    raise IngressBusyError(
                        f"{MOST_CALLS} calls are already sending",
                        cure="try again later, or send from fewer clients at a time",
                    )
                self._puts.add(put)
            try:
                yield from put.acknowledge(first, requests, batch)
            finally:
                with self._lock:
                    self._puts.discard(put)

    def _list(self, requests: Requests, context: grpc.ServicerContext) -> Iterator[bytes]:
        """For everybody: who has no token is not told of sources that want one."""
        token = _token(context)
        for target in self._targets.values():
            if target.opens(token):
                yield _info(target).serialize()

    def _info(self, requests: Requests, context: grpc.ServicerContext) -> Iterator[bytes]:
        with _errors_as_status(context):
            token = self._token(context)
            yield _info(self._target(token, asked(memoryview(next(requests)))[0])).serialize()

    def _schema(self, requests: Requests, context: grpc.ServicerContext) -> Iterator[bytes]:
        with _errors_as_status(context):
            token = self._token(context)
            target = self._target(token, asked(memoryview(next(requests)))[0])
            yield flight.SchemaResult(_arrow_schema(target.source.schema)).serialize()

    def _token(self, context: grpc.ServicerContext) -> str | None:
        """The token of a call, if it opens anything here. To be asked for before a message is."""
        token = _token(context)
        if not any(target.opens(token) for target in self._targets.values()):
            next(iter(self._targets.values())).authorize(token)
        return token

    def _target(self, token: str | None, name: str) -> IngressTarget:
        target = self._targets.get(name)
        if target is not None:
            target.authorize(token)
            return target
        known = [name for name, target in self._targets.items() if target.opens(token)]
        raise UnknownStreamError(f"there is no source '{name}' here", cure=f"send to one of: {', '.join(known)}")


class _Put:
    """One call: what was handed in and is not acknowledged yet, and the thread that hands in."""

    def __init__(self, target: IngressTarget, stopping: Callable[[], bool]) -> None:
        self.target = target
        self._stopping = stopping
        self._ending = False
        self.waiting = 0
        self._bytes = 0
        self._failure: Exception | None = None
        self._answers: queue.SimpleQueue[tuple[Future[Ack], str | None, int] | None] = queue.SimpleQueue()
        self._room = threading.Condition()

    def acknowledge(self, first: FlightData, requests: Requests, batch: str | None) -> Iterator[bytes]:
        """Read and hand in what the client sends; yields the acknowledgements. What was handed in is acknowledged
        before the call ends, also when it ends with an error."""
        reader = threading.Thread(target=self._read, args=(first, requests, batch), name="flight-read", daemon=True)
        reader.start()
        try:
            while (item := self._answers.get()) is not None:
                answer, name, size = item
                try:
                    message = json.dumps(ack_json(answer.result(), name)).encode()
                except Exception as error:  # noqa: BLE001 - told to the client, here and at the end of the call
                    self._failure = self._failure or error
                    self._ending = True
                    message = refusal(error).encoded()
                yield put_result(message)
                self._done(size)
            if self._failure is not None:
                raise self._failure
        finally:
            with self._room:
                self._ending = True  # a client that is gone reads no acknowledgements, and holds nobody up
                self._room.notify_all()

    # the reader's side

    def _read(self, first: FlightData, requests: Requests, batch: str | None) -> None:
        try:
            self._take_all(first, requests, batch)
        except grpc.RpcError:
            pass  # the client is gone; whole batches that came are taken
        except Exception as error:  # noqa: BLE001 - told by the call
            self._failure = self._failure or error
        finally:
            self._answers.put(None)

    def _take_all(self, first: FlightData, requests: Requests, batch: str | None) -> None:
        feed, number = ArrowFeed(self.target.source.schema), 0
        received = Received(self.target)
        data: FlightData | None = first
        try:
            while data is not None:
                if len(data.header) and self._is_batch(feed, data, received, number):
                    own = batch_of(data.application)
                    self._take(feed, own if own is not None else batch and f"{batch}:{number}", received, number)
                    number += 1
                data = None
                if not self._ending and (message := next(requests, None)) is not None:
                    if self._stopping():
                        raise IngressStoppingError(
                            "the receiver is stopping", cure="send the batch again when it is back"
                        )
                    data = FlightData.parse(message)
                    del message
        finally:
            received.reduce()

    def _is_batch(self, feed: ArrowFeed, data: FlightData, received: Received, number: int) -> bool:
        """Weigh a message and set memory aside for it; whether it completes a record batch."""
        source, place = self.target.source, f"record batch {number}"
        message, weight = feed.add(data)
        size = message.unpacked()
        if size > source.max_body:
            raise BodyTooLargeError(
                f"{place} has {size:,} bytes, more than the limit of {source.max_body:,}",
                cure="cut it into several, or declare push(..., max_body=...)",
                place=place,
            )
        check_weight(max(weight, feed.kept), source.max_body, place, place)
        received.wait(weight, self._gives_up)
        return message.kind == "batch"

    def _gives_up(self) -> bool:
        return self._ending or self._stopping()

    def _take(self, feed: ArrowFeed, batch: str | None, received: Received, number: int) -> None:
        """Hand a record batch in, when there is room for it."""
        source = self.target.source
        fitted = fit_batch(feed.unpack(), source, number, received.add)
        frame, outside = admit_frame(fitted, source, f"record batch {number}")
        if outside is not None:
            self.target.count(skipped=len(outside.at))
        size = received.bytes
        with self._room:
            self._room.wait_for(
                lambda: (
                    not self.waiting
                    or self._ending
                    or (self._bytes < _IN_FLIGHT_BYTES and self.waiting < _IN_FLIGHT_BATCHES)
                )
            )
            self.waiting += 1
            self._bytes += size
        try:
            self._answers.put((self._submit(frame, batch), batch, size))
        except BaseException:
            self._done(size)
            raise
        # From here on the rows are counted as those that wait for the disk.
        received.reduce(min(feed.kept, received.bytes))

    def _submit(self, frame: pl.DataFrame, batch: str | None) -> Future[Ack]:
        """A full stream makes the client wait, as long as a client may be idle itself."""
        deadline = time.monotonic() + self.target.source.idle
        while True:
            try:
                return self.target.submit(frame, batch)
            except StreamFullError:
                if time.monotonic() > deadline or self._gives_up():
                    raise
            time.sleep(RETRY_SECONDS)

    def _done(self, size: int) -> None:
        with self._room:
            self.waiting -= 1
            self._bytes -= size
            self._room.notify_all()


def _credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    server_context(tls)  # says what is wrong with the files; gRPC does not
    ca = None if tls.client_ca is None else read_pem(tls.client_ca)
    return grpc.ssl_server_credentials([(read_pem(tls.key), read_pem(tls.certificate))], ca, ca is not None)


def _token(context: grpc.ServicerContext) -> str | None:
    found = next((value for name, value in context.invocation_metadata() if name.lower() == "authorization"), None)
    return bearer(found if isinstance(found, str) else None)


def _info(target: IngressTarget) -> flight.FlightInfo:
    descriptor = flight.FlightDescriptor.for_path(target.name)
    return flight.FlightInfo(_arrow_schema(target.source.schema), descriptor, [], target.totals.offset or -1, -1)


def _arrow_schema(schema: pl.Schema) -> pa.Schema:
    return pl.DataFrame(schema=schema).to_arrow().schema


@contextlib.contextmanager
def _errors_as_status(context: grpc.ServicerContext) -> Iterator[list[IngressTarget]]:
    """End the call with an error as clients of Flight know it, with the same text as over HTTP."""
    targets: list[IngressTarget] = []
    try:
        yield targets
    except Exception as error:  # noqa: BLE001 - told to the client
        if not context.is_active():
            return
        if isinstance(error, HoldfastError):
            if targets:
                targets[0].count(refused=1)
                error.at(operator=targets[0].name)
        else:
            _log.exception("a Flight call failed")
        refused = refusal(error)
        context.set_trailing_metadata(((_EXTRA, refused.encoded()),))
        context.set_code(_CODES.get(refused.status, grpc.StatusCode.INTERNAL))
        context.set_details(f"{refused.place}: {refused}" if refused.place else str(refused))
