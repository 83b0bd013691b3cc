"""Who may look at the dashboard, and who may act in it.

On loopback everybody of this machine may read; a web page of another site may not, which shows in the Host header of
its requests. Elsewhere, and for every action, one needs the token. A browser keeps it for the page, and sends it in a
header: no form of another site can do that, so that actions need no cookie and no other protection.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["DashboardGuard", "is_loopback", "new_token"]

_OPEN = ("/", "/favicon.ico")
_HEADERS = {
    b"content-security-policy": b"default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    b"frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}


def new_token() -> str:
    return secrets.token_urlsafe(24)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class DashboardGuard:
    """Stands before the application. `host` is the address it listens on."""

    def __init__(self, app: ASGIApp, host: str, token: str) -> None:
        self._app = app
        self._host = host
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        refused = self._refusal(request)
        if refused is not None:
            await refused(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *((n, v) for n, v in _HEADERS.items() if n not in known)]
            await send(message)

        await self._app(scope, receive, guarded)

    def _refusal(self, request: Request) -> Response | None:
        path, local = request.scope["path"], is_loopback(self._host)
        if local and not self._is_here(request.headers.get("host", "")):
            return _refused(421, f"the request names another host: use http://{self._host} or http://localhost")
        reads = request.method in ("GET", "HEAD")
        page = path in _OPEN or path.startswith("/static/")
        if reads and (local or page):
            return None
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if reads and not given:  # an EventSource cannot send headers
            given = request.query_params.get("token", "")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return _refused(401, "this needs the token that `holdfast ui` printed")
        origin = request.headers.get("origin")
        if not reads and origin is not None and origin.partition("://")[2] != request.headers.get("host"):
            return _refused(403, "the request comes from a page of another site")
        if not reads and request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return _refused(415, "send JSON")
        return None

    def _is_here(self, given: str) -> bool:
        name = given[1:].partition("]")[0] if given.startswith("[") else given.partition(":")[0]
        return name == self._host or is_loopback(name.lower())


def _refused(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status)
