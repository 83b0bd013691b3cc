"""The server of the dashboard, and the one of `--metrics`: a thread with an event loop, beside whatever else runs."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

import uvicorn
from prometheus_client import start_http_server

from holdfast.dashboard.dashboard_app import dashboard_app
from holdfast.dashboard.dashboard_guard import is_loopback, new_token
from holdfast.dashboard.metric_export import registry_of
from holdfast.dashboard.store_watch import StoreWatch
from holdfast.errors import ListenError

__all__ = ["ServedDashboard", "served_dashboard", "served_metrics"]

_BACKLOG = 128
_GRACE_SECONDS = 2


@dataclass(frozen=True, slots=True)
class ServedDashboard:
    """Where the dashboard is. `link` has the token, for who started it."""

    host: str
    port: int
    token: str

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"

    @property
    def link(self) -> str:
        return f"{self.url}#token={quote(self.token, safe='')}"

    @property
    def is_open(self) -> bool:
        """Whether reading needs no token."""
        return is_loopback(self.host)


@contextlib.contextmanager
def served_dashboard(
    watch: StoreWatch, host: str = "127.0.0.1", port: int = 0, token: str | None = None
) -> Iterator[ServedDashboard]:
    """Serve until the block ends. Without a port the system chooses one."""
    bound = _bound(host, port)
    served = ServedDashboard(host, bound.getsockname()[1], token or new_token())
    config = uvicorn.Config(
        dashboard_app(watch, host, served.token), log_level="error", access_log=False, lifespan="off",
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, name="dashboard", daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.should_exit = True
        thread.join(_GRACE_SECONDS + 3)
        bound.close()


@contextlib.contextmanager
def served_metrics(watch: StoreWatch, port: int, host: str = "127.0.0.1") -> Iterator[int]:
    """Only what Prometheus reads, at `/metrics`."""
    try:
        server, thread = start_http_server(port, addr=host, registry=registry_of(watch))
    except OSError as error:
        raise _cannot(host, port, error) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _bound(host: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(_BACKLOG)  # who is quick to follow the link waits for the server, and a taken port is noticed here
    except OSError as error:
        bound.close()
        raise _cannot(host, port, error) from error
    return bound


def _cannot(host: str, port: int, error: OSError) -> ListenError:
    return ListenError(
        f"cannot listen on {host}:{port}: {error.strerror or error}",
        cure="give another port, or an address of this machine",
    )
