"""Input that clients push and nobody can ask for again: where to listen, what to take, and how much of it.

A `PushSource` only declares. The receivers of `holdfast.ingress` listen as it says, write what they get into a
p-stream and acknowledge it once it is durable; the pipeline reads the p-stream. So nothing is ever read from the
source itself, and a pipeline that is down or slow loses nothing: clients are held back when the budget is used up.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from holdfast.connect.base import BadRows
from holdfast.connect.extra_library import require_library
from holdfast.connect.formats.csv import CsvFormat
from holdfast.connect.formats.ndjson import NdjsonFormat
from holdfast.connect.schema import AnySchema, as_schema
from holdfast.connect.sources.received import ReceivedSource, check_received_schema, parse_size
from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.spans import Duration, seconds_of
from holdfast.store.location import local_path

__all__ = ["Address", "LineFormatName", "PushSource", "TlsFiles", "parse_size", "push"]

LineFormatName = Literal["ndjson", "csv", "text"]

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):(\d{1,5})")
_ENVIRONMENT = "env:"
_ORIGIN = re.compile(r"https?://[^\s/,]+")
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. Port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the server's certificate and key, and the CA whose clients alone are heard, if there is one."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PushSource(ReceivedSource):
    """See `push`."""

    http: Address | None
    flight: Address | None
    tcp: Address | None
    token: str | None = field(repr=False)
    lines: LineFormatName
    origins: tuple[str, ...] = ()
    tls: TlsFiles | None = None

    def describe(self) -> str:
        ways = [f"{name} {where}" for name, where in self.listeners().items()]
        locks = ["with a token"] if self.token is not None else []
        if self.tls is not None:
            locks.append("TLS" if self.tls.client_ca is None else "TLS with client certificates")
        return f"push over {', '.join(ways)}, {', '.join(locks) or 'open to all'}, acknowledged when durable"

    def listeners(self) -> dict[str, Address]:
        """The addresses that were declared, by protocol."""
        ways = {"http": self.http, "flight": self.flight, "tcp": self.tcp}
        return {name: where for name, where in ways.items() if where is not None}


def push(
    schema: AnySchema,
    *,
    http: str | None = None,
    flight: str | None = None,
    tcp: str | None = None,
    token: str | None = None,
    max_body: str | int = "64 MB",
    budget: str | int = "4 GB",
    bad_rows: BadRows = "fail",
    lines: LineFormatName = "ndjson",
    idle: Duration = 60.0,
    push_up: bool = True,
    compress: bool = True,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    client_ca: str | os.PathLike[str] | None = None,
    origins: Sequence[str] = (),
) -> PushSource:
    """Receive rows from clients over HTTP, WebSocket, Arrow Flight or TCP lines, acknowledged when durable.

    An address is "host:port". `token` is what clients must give: the text itself, or "env:NAME" for the value of an
    environment variable. `max_body` bounds what a client may send at a time and `budget` what waits on disk for the
    pipeline. `bad_rows="fail"` refuses all of a body with a row that does not fit or whose event time is missing or not
    allowed, "skip" takes the others. `lines` is the format of TCP lines. A client that sends nothing for a time of
    `idle` in the middle is cut off. `compress=False` writes rows as plain Arrow. With `certificate` and `key`, PEM
    files, all listeners speak TLS; `client_ca` lets in only clients with a certificate of that CA. WebSockets are taken
    at the HTTP address; `origins` are the web sites whose pages may open one, such as "https://shop.example".
    """
    if flight is not None:
        require_library("grpc", "flight", "push(): flight")
    wanted = as_schema(schema, "push()")
    check_received_schema("push()", wanted)
    if bad_rows not in ("fail", "skip"):
        raise DeclarationError(f"push(): bad_rows={bad_rows!r}", cure="use 'fail' or 'skip'")
    if lines not in get_args(LineFormatName):
        raise DeclarationError(f"push(): lines={lines!r}", cure=f"use one of {', '.join(get_args(LineFormatName))}")
    patience = seconds_of("push(): idle", idle)
    if not patience:
        raise WrongTypeError(f"push(): idle={idle!r}", cure='give a duration above 0, such as "1 min"')
    source = PushSource(
        schema=wanted,
        http=_address("http", http),
        flight=_address("flight", flight),
        tcp=_address("tcp", tcp),
        token=_token(token),
        max_body=parse_size("push(): max_body", max_body),
        budget=parse_size("push(): budget", budget),
        bad_rows=bad_rows,
        lines=lines,
        idle=patience,
        push_up=push_up,
        compress=compress,
        origins=_origins(origins),
        tls=_tls(certificate, key, client_ca),
    )
    _check_listeners(source)
    if source.tcp is not None:
        _check_lines(wanted, lines)
    if source.max_body > source.budget:
        raise DeclarationError(
            f"push(): max_body={max_body!r} is more than budget={budget!r}",
            cure="give a budget that holds several bodies",
        )
    return source


def _check_lines(schema: pl.Schema, lines: LineFormatName) -> None:
    if lines == "ndjson":
        NdjsonFormat().check_schema(schema)
    elif lines == "csv":
        CsvFormat(has_header=False).check_schema(schema)
    elif list(schema.values()) != [pl.String()]:
        raise WrongTypeError(
            f"push(): lines of text are one String column, the schema has {', '.join(schema.names())}",
            cure="declare one column of type String, or lines='ndjson' or 'csv'",
        )


def _check_listeners(source: PushSource) -> None:
    ways = source.listeners()
    if not ways:
        raise DeclarationError(
            "push(): there is no address to listen on",
            cure='give at least one of http, flight and tcp, e.g. http="127.0.0.1:8080"',
        )
    by_address: dict[Address, str] = {}
    for name, where in ways.items():
        if where.port and where in by_address:
            raise DeclarationError(
                f"push(): {by_address[where]} and {name} both listen on {where}", cure="give each its own port"
            )
        by_address[where] = name
        if source.token is None and not where.is_loopback:
            raise DeclarationError(
                f"push(): {name} would listen on {where}, for other machines, without a token",
                cure='give token="env:NAME", or listen on 127.0.0.1',
            )


def _address(name: str, value: str | None) -> Address | None:
    if value is None:
        return None
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[2]) > 65535:
        raise WrongTypeError(
            f"push(): {name}={value!r} is not an address", cure='write "host:port", such as "127.0.0.1:8080"'
        )
    return Address(match[1].strip("[]"), int(match[2]))


def _token(value: str | None) -> str | None:
    if value is None:
        return None
    found: str | None = value
    if isinstance(value, str) and value.startswith(_ENVIRONMENT):
        variable = value.removeprefix(_ENVIRONMENT)
        found = os.environ.get(variable)
        if not found:
            raise DeclarationError(
                f"push(): the environment variable '{variable}' of the token is not set",
                cure=f"set {variable} before starting, or give another token=",
            )
    if not isinstance(found, str) or not _TOKEN.fullmatch(found):
        # The token itself must not come into a log.
        raise WrongTypeError(
            "push(): the token has characters that no header can carry", cure="use visible ASCII characters, no spaces"
        )
    return found


def _origins(given: Sequence[str]) -> tuple[str, ...]:
    """As browsers send them: in small letters, without a path."""
    if isinstance(given, str) or not all(isinstance(one, str) and _ORIGIN.fullmatch(one.lower()) for one in given):
        raise WrongTypeError(
            f"push(): origins={given!r} is not a list of web origins",
            cure='give a list of them, such as ["https://shop.example", "http://localhost:3000"]',
        )
    return tuple(one.lower() for one in given)


def _tls(
    certificate: str | os.PathLike[str] | None, key: str | os.PathLike[str] | None, ca: str | os.PathLike[str] | None
) -> TlsFiles | None:
    if certificate is None and key is None and ca is None:
        return None
    if certificate is None or key is None:
        raise DeclarationError(
            f"push(): TLS without {'a certificate' if certificate is None else 'the key of its certificate'}",
            cure="give both certificate= and key=, as PEM files",
        )
    own, secret = local_path(certificate, "push()"), local_path(key, "push()")
    return TlsFiles(own, secret, None if ca is None else local_path(ca, "push()"))
