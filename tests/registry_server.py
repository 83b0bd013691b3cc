"""A schema registry for tests: a real server on the loopback interface that speaks Confluent's REST paths."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


class RegistryServer:
    """Numbers schemas as they come. With `user` and `password` it lets in nobody else."""

    def __init__(self, user: str | None = None, password: str | None = None) -> None:
        self.schemas: list[tuple[str, str]] = []
        self.subjects: dict[str, list[int]] = {}
        self.asked = 0
        self._words = None if user is None else f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
        routes = [
            Route("/schemas/ids/{number:int}", self._schema),
            Route("/subjects/{subject}/versions", self._register, methods=["POST"]),
        ]
        self._server = uvicorn.Server(
            uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=0, log_level="critical", lifespan="off")
        )

    def _refused(self, request: Request) -> JSONResponse | None:
        self.asked += 1
        if self._words is None or request.headers.get("authorization") == self._words:
            return None
        return JSONResponse({"error_code": 40101, "message": "Unauthorized"}, 401)

    async def _schema(self, request: Request) -> JSONResponse:
        number = request.path_params["number"]
        if (refused := self._refused(request)) is not None:
            return refused
        if not 0 < number <= len(self.schemas):
            return JSONResponse({"error_code": 40403, "message": "Schema not found"}, 404)
        kind, text = self.schemas[number - 1]
        return JSONResponse({"schema": text} if kind == "AVRO" else {"schema": text, "schemaType": kind})

    async def _register(self, request: Request) -> JSONResponse:
        if (refused := self._refused(request)) is not None:
            return refused
        body = await request.json()
        return JSONResponse(
            {"id": self.add(request.path_params["subject"], body["schema"], body.get("schemaType", "AVRO"))}
        )

    def add(self, subject: str, text: str, kind: str = "AVRO") -> int:
        if (kind, text) not in self.schemas:
            self.schemas.append((kind, text))
        number = self.schemas.index((kind, text)) + 1
        self.subjects.setdefault(subject, []).append(number)
        return number

    @property
    def url(self) -> str:
        [server] = self._server.servers
        name: Any = server.sockets[0].getsockname()
        return f"http://127.0.0.1:{name[1]}"


@contextmanager
def running(user: str | None = None, password: str | None = None) -> Iterator[RegistryServer]:
    made = RegistryServer(user, password)
    thread = threading.Thread(target=made._server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not made._server.started:
        assert time.monotonic() < until
        time.sleep(0.01)
    try:
        yield made
    finally:
        made._server.should_exit = True
        thread.join(20)
