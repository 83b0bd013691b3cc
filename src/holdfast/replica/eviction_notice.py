"""A notice that this machine is about to be taken away: a file that appears, or an answer of the cloud's
metadata service. Who sees it in time ends in order, and another host takes over before the machine is gone.
"""

from __future__ import annotations

import logging
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import TypeAlias

from holdfast.errors import DeclarationError

__all__ = ["EvictionNotice", "FileNotice", "HttpNotice", "acting_on_eviction", "parse_notice"]

_log = logging.getLogger(__name__)
LOOK_SECONDS = 2.0
_ANSWER_SECONDS = 2.0
_MOST_BYTES = 4096
_NOT_YET = ("", "FALSE", "NONE")
# EC2 wants a token, which it gives to whoever asks from the machine itself.
_TOKEN_PATH, _TOKEN_HEADER = "/latest/api/token", "X-aws-ec2-metadata-token"
_TOKEN_LIFE = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
_GOOGLES = {"Metadata-Flavor": "Google"}


@dataclass(frozen=True, slots=True)
class FileNotice:
    """A notice is given by making a file."""

    path: Path

    def given(self) -> str | None:
        """What is known of the notice; None as long as there is none."""
        return f"there is a file {self.path}" if self.path.exists() else None


@dataclass(frozen=True, slots=True)
class HttpNotice:
    """A notice is an answer with status 200 and a text, other than FALSE or NONE. No answer is no notice: a metadata
    service that is away for a while says nothing about the machine."""

    url: str

    def given(self) -> str | None:
        try:
            text = self._asked()
        except (OSError, HTTPException) as error:
            _log.debug("no answer from %s: %s", self.url, error)
            return None
        return None if text.upper() in _NOT_YET else f"{self.url} says: {text[:200]}"

    def _asked(self) -> str:
        try:
            return _answer(urllib.request.Request(self.url, headers=_GOOGLES))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != HTTPStatus.UNAUTHORIZED:
                return ""
        way = urllib.parse.urljoin(self.url, _TOKEN_PATH)
        token = _answer(urllib.request.Request(way, method="PUT", headers=_TOKEN_LIFE))
        try:
            return _answer(urllib.request.Request(self.url, headers={_TOKEN_HEADER: token}))
        except urllib.error.HTTPError as error:
            error.close()
            return ""


EvictionNotice: TypeAlias = FileNotice | HttpNotice


def parse_notice(text: str) -> EvictionNotice:
    """`file:/run/evicted`, or `http://169.254.169.254/latest/meta-data/spot/instance-action`."""
    parts = urllib.parse.urlsplit(text)
    if parts.scheme == "file" and parts.path.startswith("/") and parts.netloc in ("", "localhost"):
        return FileNotice(Path(urllib.parse.unquote(parts.path)))
    if parts.scheme == "http" and parts.hostname:
        return HttpNotice(text)
    raise DeclarationError(
        f"'{text}' is not a place that an eviction notice can come from",
        cure="give file:/PATH of a file that appears then, or http://HOST/PATH of a metadata service",
    )


def _looked(notice: EvictionNotice) -> str | None:
    """What cannot be asked now may be asked later: a watch that has ended would miss the notice."""
    try:
        return notice.given()
    except Exception:  # noqa: BLE001 - see above
        _log.exception("the eviction notice cannot be looked for")
        return None


@contextmanager
def acting_on_eviction(notice: EvictionNotice | None, act: Callable[[str], None]) -> Iterator[None]:
    """Meanwhile, look for a notice. `act` is called once, in another thread, with what is known of it."""
    if notice is None:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        while (said := _looked(notice)) is None:
            if ended.wait(LOOK_SECONDS):
                return
        if not ended.is_set():
            act(said)

    thread = threading.Thread(target=watch, name="eviction", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(3 * _ANSWER_SECONDS)


def _answer(request: urllib.request.Request) -> str:
    # Without the proxies of the environment: the metadata service is on the machine's own link.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=_ANSWER_SECONDS) as answer:
        return str(answer.read(_MOST_BYTES).decode(errors="replace")).strip()
