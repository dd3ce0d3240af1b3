"""A model server reduced to what health checks ask for, on a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class ModelListServer:
    """Answers GET /v1/models as told, and keeps what it was asked.

    Attributes:
        key: The bearer key it wants; None wants none.
        status: HTTP status of its answers.
        body: What it answers instead of its list of models.
    """

    models: list[str] = field(default_factory=lambda: ["m"])
    key: str | None = None
    status: int = 200
    body: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[web.Request] = field(default_factory=list)
    port: int = 0
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        server: Any = site._server
        self.port = server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request)
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "no"}}, status=401)
        if self.body is not None:
            return web.Response(
                text=self.body, status=self.status, headers=self.headers, content_type="text/html"
            )
        listed = {"object": "list", "data": [{"id": model} for model in self.models]}
        return web.json_response(listed, status=self.status, headers=self.headers)


@asynccontextmanager
async def model_list_server(**told: Any) -> AsyncIterator[ModelListServer]:
    """A running server; stopped at the end of the block at the latest."""
    server = ModelListServer(**told)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
