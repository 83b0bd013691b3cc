"""The server of the dashboard, and the one of `--metrics`: a thread with an event loop, beside whatever else runs."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

import uvicorn

from holdfast.dashboard.dashboard_app import dashboard_app, metrics_app
from holdfast.dashboard.dashboard_guard import DashboardGuard, is_loopback, new_token
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
    with _served(partial(dashboard_app, watch), host, port, token) as served:
        yield served


@contextlib.contextmanager
def served_metrics(
    watch: StoreWatch, host: str = "127.0.0.1", port: int = 0, token: str | None = None
) -> Iterator[ServedDashboard]:
    """Only what Prometheus reads, at `/metrics`."""
    with _served(partial(metrics_app, watch), host, port, token) as served:
        yield served


@contextlib.contextmanager
def _served(
    made: Callable[[str, str], DashboardGuard], host: str, port: int, token: str | None
) -> Iterator[ServedDashboard]:
    bound = _bound(host, port)
    served = ServedDashboard(host, bound.getsockname()[1], token or new_token())
    config = uvicorn.Config(
        made(host, served.token), log_level="error", access_log=False, lifespan="off",
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
