"""All receivers of a pipeline, started and stopped together.

Sources that were declared with the same HTTP or Flight address share one listener; requests name their source there.
Lines of TCP do not, so each source needs a TCP address of its own. Addresses are taken before anything is started, so
one that is in use is an error and not a half-started server.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Protocol

from holdfast.connect.sources.mqtt_source import MqttSource
from holdfast.connect.sources.postgres_changes import ChangesSource
from holdfast.connect.sources.push import Address, PushSource, TlsFiles
from holdfast.connect.sources.received import ReceivedSource
from holdfast.errors import ListenError
from holdfast.ingress.http import HttpReceiver
from holdfast.ingress.target import IngressTarget, StreamTarget, Totals
from holdfast.ingress.tcp import TcpReceiver
from holdfast.pstream.appender import Appender

__all__ = ["IngressServer"]

GRACE_SECONDS = 10.0
"""How long `stop` waits for clients that are in the middle of a batch."""


class _StartedReceiver(Protocol):
    address: Address

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def check(self) -> None: ...


class IngressServer:
    """Receives for the sources given by name, each with the appender of its stream.

    The appenders stay the caller's: `stop` returns when all that was taken is durable and acknowledged, and they can be
    closed then. Not promised: that a client which was cut off by `stop` got the answer for its last batch. It sends it
    again with the same id.
    """

    def __init__(self, targets: Mapping[str, tuple[ReceivedSource, Appender]], *, grace: float = GRACE_SECONDS) -> None:
        self._targets = {name: _target(name, source, appender) for name, (source, appender) in targets.items()}
        self._grace = grace
        self._receivers: list[_StartedReceiver] = []
        self._addresses: dict[str, dict[str, Address]] = {name: {} for name in targets}

    @property
    def addresses(self) -> Mapping[str, Mapping[str, Address]]:
        """Where each source listens, by protocol, with the ports that the system chose."""
        return self._addresses

    def totals(self) -> dict[str, Totals]:
        """What each source has taken since the start."""
        return {name: target.totals for name, target in self._targets.items()}

    def start(self) -> None:
        """Returns when every address accepts connections."""
        with ExitStack() as undo:
            makers: list[tuple[str, Iterable[str], Callable[[], _StartedReceiver]]] = []
            for where, group in self._by_address("http").items():
                makers.append(("http", group, self._http(where, group, undo)))
            for where, group in self._by_address("flight").items():
                _listening(where).close()  # gRPC's own message would not say which address, nor why
                makers.append(("flight", group, self._flight(where, group)))
            for where, group in self._by_address("tcp").items():
                if len(group) > 1 and where.port:
                    raise ListenError(
                        f"{' and '.join(group)} both receive lines on {where}",
                        cure="give each source its own TCP port: lines do not name their source",
                    )
                for name, target in group.items():
                    makers.append(("tcp", [name], self._tcp(where, target, undo)))
            makers += self._callers()
            for protocol, names, make in makers:
                receiver = make()
                undo.callback(receiver.stop)
                receiver.start()
                self._receivers.append(receiver)
                for name in names:
                    self._addresses[name][protocol] = receiver.address
            undo.pop_all()

    def _callers(self) -> list[tuple[str, Iterable[str], Callable[[], _StartedReceiver]]]:
        """Receivers that nobody calls: they ask for what comes themselves."""
        made: list[tuple[str, Iterable[str], Callable[[], _StartedReceiver]]] = []
        for name, target in self._targets.items():
            if isinstance(target.source, MqttSource):
                from holdfast.ingress.mqtt_receiver import MqttReceiver  # noqa: PLC0415 - an extra

                made.append(("mqtt", [name], partial(MqttReceiver, target, target.source, self._grace)))
            if isinstance(target.source, ChangesSource):
                from holdfast.ingress.change_receiver import ChangeReceiver  # noqa: PLC0415 - an extra

                made.append(("postgresql", [name], partial(ChangeReceiver, target, target.source, self._grace)))
        return made

    def check(self) -> None:
        """Raise what has ended a receiver, if anything has."""
        for receiver in self._receivers:
            receiver.check()

    def _by_address(self, protocol: str) -> dict[Address, dict[str, IngressTarget]]:
        groups: dict[Address, dict[str, IngressTarget]] = {}
        for name, target in self._targets.items():
            where = target.source.listeners().get(protocol) if isinstance(target, IngressTarget) else None
            if isinstance(target, IngressTarget) and where is not None:
                groups.setdefault(where, {})[name] = target
        return groups

    def _http(
        self, where: Address, group: Mapping[str, IngressTarget], undo: ExitStack
    ) -> Callable[[], _StartedReceiver]:
        bound = undo.enter_context(_listening(where))
        return lambda: HttpReceiver(bound, group, self._grace, _common_tls(where, group))

    def _flight(self, where: Address, group: Mapping[str, IngressTarget]) -> Callable[[], _StartedReceiver]:
        from holdfast.ingress.flight import FlightReceiver  # noqa: PLC0415 - its library is an extra

        return lambda: FlightReceiver(where, group, self._grace, _common_tls(where, group))

    def _tcp(self, where: Address, target: IngressTarget, undo: ExitStack) -> Callable[[], _StartedReceiver]:
        bound = undo.enter_context(_listening(where))
        return lambda: TcpReceiver(bound, target, self._grace)

    def stop(self) -> None:
        """Accept no more, make durable and acknowledge what was received, and end every thread."""
        while self._receivers:
            self._receivers.pop().stop()

    def __enter__(self) -> IngressServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _target(name: str, source: ReceivedSource, appender: Appender) -> StreamTarget:
    kind = IngressTarget if isinstance(source, PushSource) else StreamTarget
    return kind(name, source, appender)  # type: ignore[arg-type]


def _common_tls(where: Address, group: Mapping[str, IngressTarget]) -> TlsFiles | None:
    """The certificate of a listener, which the sources that share it must agree on."""
    found = {target.source.tls for target in group.values()}
    if len(found) > 1:
        raise ListenError(
            f"{' and '.join(group)} share {where} and name different certificates",
            cure="give them the same certificate=, key= and client_ca=, or separate addresses",
        )
    return found.pop()


def _listening(where: Address) -> socket.socket:
    """A socket with this address, or an error that says why not."""
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    # With its protocol named: asyncio sends small answers without delay only on sockets that say they are TCP.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((where.host, where.port))
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            problem, cure = "another process listens there", "stop that process, or give push() another port"
        else:
            problem, cure = f"{error.strerror or error}", "give push() an address of this machine that you may use"
        raise ListenError(f"cannot listen on {where}: {problem}", cure=cure) from error
    return bound
