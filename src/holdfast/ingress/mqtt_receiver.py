"""MQTT: the receiver is a client of the user's broker, and acknowledges a message once its row is durable.

The library's thread puts what comes into a queue; another one makes rows of all that is there, hands them in, waits for
the disk, and acknowledges. The broker sends only so many messages without an acknowledgement, so it is held back when
the disk, or the pipeline, is. Packet ids are those of one connection: what came by an earlier one is not acknowledged
any more, but comes again.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import ssl
import threading
import time
import uuid
from typing import Any

import polars as pl
from paho.mqtt.client import Client, MQTTMessage, MQTTv5, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from holdfast.connect.secret_text import secret
from holdfast.connect.sources.mqtt_source import MqttSource
from holdfast.connect.sources.push import Address
from holdfast.errors import (
    BadRowError,
    HoldfastError,
    ListenError,
    SchemaMismatchError,
    StoreFullError,
    StoreUnreachableError,
    StreamFullError,
)
from holdfast.ingress.admission import admit_frame
from holdfast.ingress.target import StreamTarget

__all__ = ["MqttReceiver"]

_START_SECONDS = 30.0
_KEEP_ALIVE_SECONDS = 30
_MOST_BYTES = 8 << 20
"""So much is made rows of at a time."""
_AGAIN_SECONDS = 0.2
_MOST_AGAIN_SECONDS = 5.0
_LOOK_SECONDS = 0.2
_FOR_EVER = 0xFFFF_FFFF
_ONLY_OF_NEW_SUBSCRIPTIONS = 1
_SHOWN = 200
_log = logging.getLogger(__name__)


class MqttReceiver:
    """The client for one source. `check` raises what has ended it, if anything."""

    def __init__(self, target: StreamTarget, source: MqttSource, grace: float) -> None:
        self.address: Address = source.broker
        self._target = target
        self._source = source
        self._grace = grace
        self._lock = threading.Lock()
        self._connection = 0
        """Counts connections: an acknowledgement is for messages of the present one."""
        self._opened: queue.SimpleQueue[HoldfastError | None] = queue.SimpleQueue()
        self._is_open = False
        self._messages: queue.Queue[tuple[int, MQTTMessage]] = queue.Queue(2 * source.in_flight)
        self._stopping = threading.Event()
        self._failure: HoldfastError | None = None
        self._client = self._made()
        self._worker = threading.Thread(target=self._work, name="mqtt-rows", daemon=True)

    def start(self) -> None:
        """Returns when the broker has taken the subscriptions."""
        self._worker.start()
        try:
            self._connect()
        except BaseException:
            self.stop()
            raise

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Make durable and acknowledge what has come, and leave. The broker keeps the session."""
        self._stopping.set()
        if self._worker.is_alive():
            self._worker.join(self._grace)
        self._client.disconnect()
        self._client.loop_stop()

    # the broker's side

    def _made(self) -> Client:
        source = self._source
        five = source.version == "5"
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=source.client,
            clean_session=None if five else False,
            protocol=MQTTv5 if five else MQTTv311,
            manual_ack=True,
            reconnect_on_failure=True,
        )
        client.reconnect_delay_set(1, 10)
        if source.user is not None:
            client.username_pw_set(
                secret("mqtt()", "user", source.user),
                None if source.password is None else secret("mqtt()", "password", source.password),
            )
        if source.tls:
            client.tls_set_context(self._tls())
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        return client

    def _tls(self) -> ssl.SSLContext:
        source = self._source
        try:
            context = ssl.create_default_context(cafile=source.ca)
            if source.certificate is not None and source.key is not None:
                context.load_cert_chain(source.certificate, source.key)
        except (OSError, ssl.SSLError) as error:
            raise ListenError(
                f"mqtt(): the certificates cannot be read: {error}",
                cure="give ca=, certificate= and key= as PEM files that this user can read",
                operator=self._target.name,
            ) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def _connect(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self._client.connect(self.address.host, self.address.port, _KEEP_ALIVE_SECONDS, **self._settings())
                break
            except ssl.SSLError as error:
                raise self._refused(
                    f"TLS failed: {error}", "check that ca= is the CA of the broker's certificate"
                ) from error
            except OSError as error:
                if time.monotonic() > deadline or self._stopping.is_set():
                    raise self._refused(str(error), "check that the address is right and the broker runs") from error
            self._stopping.wait(_AGAIN_SECONDS)
        self._client.loop_start()
        try:
            problem = self._opened.get(timeout=max(1.0, deadline - time.monotonic()))
        except queue.Empty:
            problem = self._refused("it does not answer", "check that it is an MQTT broker")
        if problem is not None:
            raise problem
        self._is_open = True

    def _settings(self) -> dict[str, Any]:
        if self._source.version != "5":
            return {}
        asked = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        asked.SessionExpiryInterval = (
            _FOR_EVER if self._source.session is None else min(_FOR_EVER, max(1, round(self._source.session)))
        )
        asked.ReceiveMaximum = self._source.in_flight
        return {"clean_start": False, "properties": asked}

    def _refused(self, why: str, cure: str) -> ListenError:
        return ListenError(f"mqtt(): the broker at {self.address}: {why}", cure=cure, operator=self._target.name)

    def _on_connect(self, client: Client, _: Any, flags: Any, reason: Any, __: Any) -> None:
        if reason.is_failure:
            text = f"it refuses the connection: {reason}"
            self._opened.put(self._refused(text, "see user=, password=, client= and version= of mqtt()"))
            if self._is_open:
                _log.warning("source '%s': the MQTT broker at %s: %s", self._target.name, self.address, text)
            return
        if self._is_open:
            _log.warning("source '%s': reconnected to the MQTT broker at %s%s", self._target.name, self.address,
                         "" if flags.session_present else "; it has lost the session, and with it messages that came"
                         " meanwhile")  # fmt: skip
        client.subscribe(self._subscriptions())

    def _subscriptions(self) -> list[tuple[str, Any]]:
        if self._source.version != "5":
            return [(topic, 1) for topic in self._source.topics]
        # Retained messages come with a new subscription, and not again with each connection.
        options = SubscribeOptions(qos=1, retainHandling=_ONLY_OF_NEW_SUBSCRIPTIONS)
        return [(topic, options) for topic in self._source.topics]

    def _on_subscribe(self, client: Client, _: Any, mid: int, reasons: Any, __: Any) -> None:
        for topic, reason in zip(self._source.topics, reasons, strict=False):
            if reason.is_failure or reason.value < 1:
                problem = self._refused(
                    f"it does not grant '{topic}' with QoS 1: {reason}",
                    "let the broker allow it for this user, or subscribe to another topic",
                )
                self._opened.put(problem)
                if self._is_open:
                    self._failure = problem
                return
        self._opened.put(None)

    def _on_disconnect(self, client: Client, _: Any, __: Any, reason: Any, ___: Any) -> None:
        with self._lock:
            self._connection += 1
        if self._is_open and not self._stopping.is_set():
            _log.warning("source '%s': the MQTT broker at %s is gone (%s); reconnecting", self._target.name,
                         self.address, reason)  # fmt: skip

    def _on_message(self, client: Client, _: Any, message: MQTTMessage) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(queue.Full):  # of messages without an acknowledgement (QoS 0)
                self._messages.put((self._connection, message), timeout=_LOOK_SECONDS)
                return

    # the stream's side

    def _work(self) -> None:
        try:
            while True:
                messages = self._next()
                if messages:
                    self._take(messages)
                elif self._stopping.is_set():
                    return
        except HoldfastError as error:
            self._failure = error.at(operator=self._target.name)
        except Exception as error:  # noqa: BLE001 - the thread has no caller
            _log.exception("the MQTT receiver of source '%s' failed", self._target.name)
            self._failure = HoldfastError(
                f"the MQTT receiver failed: {type(error).__name__}: {error}",
                cure="this is a bug in Holdfast; please report it",
                operator=self._target.name,
            )

    def _next(self) -> list[tuple[int, MQTTMessage]]:
        """All messages that are there, up to a size."""
        found: list[tuple[int, MQTTMessage]] = []
        size = 0
        with contextlib.suppress(queue.Empty):
            while size < _MOST_BYTES:
                found.append(self._messages.get(not found, _LOOK_SECONDS))
                size += len(found[-1][1].payload)
        return found

    def _take(self, messages: list[tuple[int, MQTTMessage]]) -> None:
        frame = self._rows([message for _, message in messages])
        batch, pause = uuid.uuid4().hex, _AGAIN_SECONDS
        while True:
            try:
                self._target.submit(frame, batch).result()
                break
            except (StreamFullError, StoreFullError, StoreUnreachableError) as error:
                # Nothing is acknowledged, so the broker waits, too.
                if self._stopping.is_set():
                    return
                if pause >= _MOST_AGAIN_SECONDS:
                    _log.warning("source '%s' waits: %s", self._target.name, error)
            self._stopping.wait(pause)
            pause = min(2 * pause, _MOST_AGAIN_SECONDS)
        with self._lock:
            for connection, message in messages:
                if connection == self._connection and message.qos:
                    self._client.ack(message.mid, message.qos)

    def _rows(self, messages: list[MQTTMessage]) -> pl.DataFrame:
        source = self._source
        decoded = source.format.decode([bytes(message.payload) for message in messages], source.value_schema)
        if decoded.bad and source.bad_rows == "fail":
            at, reason = next(iter(decoded.bad.items()))
            shown = bytes(messages[at].payload[:_SHOWN]).decode(errors="replace")
            raise BadRowError(
                f"a message of topic '{messages[at].topic}' does not fit: {reason}; it is: {shown}",
                cure="it was not acknowledged and will come again: declare the schema that it has, or mqtt(...,"
                " bad_rows='skip') to drop messages that do not fit",
            )
        frame = decoded.frame
        if source.topic is not None:
            topics = [message.topic for at, message in enumerate(messages) if at not in decoded.bad]
            frame = frame.with_columns(pl.Series(source.topic, topics, dtype=pl.String))
        frame = frame.select(source.schema.names())
        try:
            frame, outside = admit_frame(frame, source)
        except SchemaMismatchError as error:
            raise BadRowError(
                f"a message does not fit: {error.problem}", cure="correct its sender, or declare bad_rows='skip'"
            ) from error
        skipped = len(decoded.bad) + (0 if outside is None else len(outside.at))
        if skipped:
            self._target.count(skipped=skipped)
        return frame
