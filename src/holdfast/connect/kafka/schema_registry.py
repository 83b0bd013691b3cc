"""A schema registry: where the schemas of messages are, by number.

It speaks the REST interface that Confluent's registry has and others share. What a number stands for never changes, so
an answer is kept for good. A message begins with a zero byte and the number of its schema.
"""

from __future__ import annotations

import base64
import json
import struct
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.connect.secret_text import check_reference, secret
from holdfast.errors import DeclarationError, OperatorError

__all__ = ["FRAME", "SchemaRegistry", "as_registry", "registry", "schema_number"]

_BY = "hf.kafka.registry()"
_SECONDS = 20.0
_MEDIA = "application/vnd.schemaregistry.v1+json"
FRAME = struct.Struct(">bI")
"""What a message begins with."""

_KNOWN: dict[tuple[str, int], str] = {}
_GIVEN: dict[tuple[str, str, str], int] = {}
_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """See `registry`."""

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    """A reference."""

    def schema(self, number: int) -> str:
        """The schema that has this number."""
        with _LOCK:
            if (known := _KNOWN.get((self.url, number))) is not None:
                return known
        found = str(self._call(f"/schemas/ids/{number}")["schema"])
        with _LOCK:
            _KNOWN[self.url, number] = found
        return found

    def number(self, subject: str, schema: str, kind: str) -> int:
        """The number of a schema under a subject, which it gets now if it has none."""
        with _LOCK:
            if (known := _GIVEN.get((self.url, subject, schema))) is not None:
                return known
        body: dict[str, Any] = {"schema": schema}
        if kind != "AVRO":
            body["schemaType"] = kind
        found = int(self._call(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions", body)["id"])
        with _LOCK:
            _GIVEN[self.url, subject, schema] = found
        return found

    def _call(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Accept": _MEDIA}
        if body is not None:
            headers["Content-Type"] = _MEDIA
        if self.user is not None and self.password is not None:
            words = f"{self.user}:{secret(_BY, 'password', self.password)}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(words).decode()}"
        text = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=text, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                found = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")[:300]
            raise OperatorError(
                f"the schema registry at {self.url} answered {error.code} to {path}: {said}",
                cure="check that the schema exists, that this user may read it, and that a new one is compatible",
            ) from None
        except (OSError, ValueError) as error:
            raise OperatorError(
                f"the schema registry at {self.url} did not respond as a schema registry: {error}",
                cure="check the URL and that it can be reached from the machines that run tasks",
            ) from None
        if not isinstance(found, dict):
            raise OperatorError(f"the schema registry at {self.url} did not return a JSON object", cure="check the URL")
        return found


def registry(url: str, *, user: str | None = None, password: str | None = None) -> SchemaRegistry:
    """A schema registry that speaks Confluent's REST interface. A password is given as "env:NAME" or "file:PATH"."""
    parts = urllib.parse.urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise DeclarationError(f"{_BY}: {url!r} is not a URL", cure='give e.g. "http://127.0.0.1:8081"')
    if parts.password is not None or parts.username is not None:
        raise DeclarationError(
            f"{_BY}: the URL has a user or a password in it", cure='give user="...", password="env:NAME" instead'
        )
    if (user is None) != (password is None):
        raise DeclarationError(f"{_BY}: user and password go together", cure="give both or neither")
    if password is not None:
        check_reference(_BY, "password", password)
    return SchemaRegistry(url.rstrip("/"), user, password)


def as_registry(given: str | SchemaRegistry) -> SchemaRegistry:
    return given if isinstance(given, SchemaRegistry) else registry(given)


def schema_number(value: bytes) -> int | str:
    """The number of a message's schema, or why it has none."""
    if len(value) < FRAME.size:
        return f"{len(value)} bytes are too short for a message with a schema number"
    magic, number = FRAME.unpack_from(value)
    return int(number) if magic == 0 else f"it begins with byte {magic & 255}, not with 0 and a schema number"
