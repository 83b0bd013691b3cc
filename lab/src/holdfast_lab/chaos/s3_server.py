"""An S3 server of one's own on this machine, with faults: it refuses, loses answers, tears them and is late.

The server is moto's, on werkzeug. A fault is planned for requests by their method and path, so many times, or for a
share of all requests by a seed. `serve` runs it in a thread; `python -m holdfast_lab.chaos.s3_server` in a process.
"""

from __future__ import annotations

import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["FaultKind", "S3Fault", "S3Server", "make_bucket", "serve", "serve_process"]

FaultKind = Literal["503", "500", "412", "denied", "region", "lost", "torn", "late"]
"""Refused: for the moment, broken, by a condition, for want of a right, by another region. Carried out: without an
answer, with half an answer, too late."""

_WORDS = {
    "503": ("503 Slow Down", "SlowDown"),
    "500": ("500 Internal Server Error", "InternalError"),
    "412": ("412 Precondition Failed", "PreconditionFailed"),
    "denied": ("403 Forbidden", "AccessDenied"),
    "region": ("400 Bad Request", "AuthorizationHeaderMalformed"),
}
_KEYS = {"AWS_ACCESS_KEY_ID": "lab", "AWS_SECRET_ACCESS_KEY": "lab"}
"""The server lets in everybody; a client has to have some."""
_Start = Callable[..., Any]
_App = Callable[[dict[str, Any], _Start], Iterable[bytes]]


@dataclass(slots=True)
class S3Fault:
    """What happens to the next `times` requests of a method whose path has this in it."""

    kind: FaultKind
    method: str = ""
    path: str = ""
    times: int = 1
    seconds: float = 0.0

    def meets(self, method: str, path: str) -> bool:
        return self.times > 0 and self.method in ("", method) and re.search(self.path, path) is not None


@dataclass(slots=True)
class S3Server:
    """`faults` are planned one by one, and happen in their order. `storm` is the share of requests that a fault happens
    to by chance; `requests` are those that came."""

    port: int = 0
    faults: list[S3Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    storm: float = 0.0
    kinds: tuple[FaultKind, ...] = ("503", "500", "lost", "torn")
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def options(self, **more: str | int | float | bool) -> dict[str, str | int | float | bool]:
        """How to talk to it; what is wrong with it is known soon."""
        # Its keys are no secrets: it lets in everybody. They come from the environment.
        return {"endpoint": self.endpoint, "region": "us-east-1", "timeout": 10, "retry_timeout": 20, **more}

    def hit(self, method: str, path: str) -> S3Fault | None:
        with self._lock:
            self.requests.append((method, path))
            for fault in self.faults:
                if fault.meets(method, path):
                    fault.times -= 1
                    return fault
            if self.storm and self.chance.random() < self.storm:
                return S3Fault(self.chance.choice(self.kinds))
        return None


def _with_faults(app: _App, server: S3Server) -> _App:
    def answer(environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        path = environ["PATH_INFO"] + (f"?{environ['QUERY_STRING']}" if environ.get("QUERY_STRING") else "")
        fault = server.hit(environ["REQUEST_METHOD"], path)
        if fault is None:
            return app(environ, start)
        if fault.kind in _WORDS:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))  # the connection is used again
            status, code = _WORDS[fault.kind]
            body = f"<Error><Code>{code}</Code><Message>planned</Message><Region>eu-west-1</Region></Error>".encode()
            start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]
        if fault.kind == "late":
            time.sleep(fault.seconds)
            return app(environ, start)
        said: list[tuple[Any, ...]] = []
        body = b"".join(app(environ, lambda *words: said.append(words)))
        if fault.kind == "torn":
            start(*said[0])
            return _torn(body, environ)
        _hang_up(environ)
        return []

    return answer


def _torn(body: bytes, environ: dict[str, Any]) -> Iterator[bytes]:
    yield body[: len(body) // 2]
    _hang_up(environ)


def _hang_up(environ: dict[str, Any]) -> None:
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError("planned")


def _listening(server: S3Server) -> Any:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app  # noqa: PLC0415 - of tests
    from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: PLC0415 - of tests

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None: ...

        def log(self, type: str, message: str, *args: Any) -> None: ...

    app: _App = DomainDispatcherApplication(create_backend_app)
    made = make_server("127.0.0.1", server.port, _with_faults(app, server), threaded=True, request_handler=Quiet)
    server.port = made.server_port
    return made


@contextmanager
def serve(server: S3Server | None = None) -> Iterator[S3Server]:
    """A server in a thread of this process."""
    made = server or S3Server()
    listening = _listening(made)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


@contextmanager
def serve_process() -> Iterator[S3Server]:
    """A server in a process of its own, without faults; its keys are in the environment of this one meanwhile."""
    command = [sys.executable, "-m", "holdfast_lab.chaos.s3_server"]
    before = {name: os.environ.get(name) for name in _KEYS}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            os.environ.update(_KEYS)
            yield S3Server(int(process.stdout.readline()))
        finally:
            process.stdin.close()
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def make_bucket(server: S3Server, name: str) -> str:
    """Make a bucket; returns its address."""
    asked = urllib.request.Request(f"{server.endpoint}/{name}", method="PUT")
    with urllib.request.urlopen(asked, timeout=10):
        return f"s3://{name}"


def main() -> None:
    """Serve until standard input ends, that is also when the parent was killed; says its port first."""
    server = S3Server()
    listening = _listening(server)
    print(server.port, flush=True)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
