from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.errors import BackendError
from gateway.fleet.model import Backend
from gateway.proxy.upstream import BackendPool, Timeouts
from gateway.shadow import tokenize
from gateway.shadow.tokenize import BackendTokenizer

PAYLOAD = {"model": "m", "prompt": "a b", "add_special_tokens": False}


class Engine:
    """Answers `/tokenize` as it is told, and keeps what it was sent."""

    def __init__(self) -> None:
        self.status = 200
        self.body: bytes = json.dumps({"count": 2, "max_model_len": 8, "tokens": [5, 6]}).encode()
        self.silent = False
        self.sent: list[Any] = []
        self.headers: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.sent.append(await request.json())
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.silent:
            await asyncio.Event().wait()
        return web.Response(status=self.status, body=self.body, content_type="application/json")


@contextlib.asynccontextmanager
async def asking(engine: Engine, credential: str | None = None) -> AsyncIterator[Any]:
    app = web.Application()
    app.router.add_post("/tokenize", engine.answer)
    pool = BackendPool(timeouts=Timeouts())
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        backend = Backend(name="gpu-1", url=url, credential=credential)
        yield lambda: BackendTokenizer(pool)(backend, PAYLOAD)
        await pool.close()


async def test_ids_come_from_the_backends_own_tokenizer() -> None:
    engine = Engine()
    async with asking(engine) as ask:
        assert await ask() == (5, 6)
    assert engine.sent == [PAYLOAD]


async def test_the_backends_own_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_KEY", "sk-TEST")
    engine = Engine()
    async with asking(engine, "env:GPU_KEY") as ask:
        await ask()
    assert engine.headers[0]["authorization"] == "Bearer sk-TEST"


@pytest.mark.parametrize("status", [400, 404, 405, 422])
async def test_a_backend_that_refuses_gives_no_ids(status: int) -> None:
    engine = Engine()
    engine.status = status
    async with asking(engine) as ask:
        assert await ask() is None


@pytest.mark.parametrize(
    "body", [b"<html>", b"[1]", b"{}", b'{"tokens": "5 6"}', b'{"tokens": [5, null]}', b'{"tokens": [-1]}']
)
async def test_an_answer_in_another_shape_gives_no_ids(body: bytes) -> None:
    engine = Engine()
    engine.body = body
    async with asking(engine) as ask:
        assert await ask() is None


async def test_an_endless_answer_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenize, "MAX_ANSWER_BYTES", 10)
    async with asking(Engine()) as ask:
        assert await ask() is None


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_a_backend_that_fails_says_nothing_about_its_tokenizer(status: int) -> None:
    engine = Engine()
    engine.status = status
    async with asking(engine) as ask:
        with pytest.raises(BackendError, match=f"HTTP {status}"):
            await ask()


async def test_a_silent_backend_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenize, "TIMEOUT_S", 0.05)
    engine = Engine()
    engine.silent = True
    async with asking(engine) as ask:
        with pytest.raises(BackendError, match="no token ids"):
            await ask()


async def test_a_dead_backend_is_an_error_of_the_backend() -> None:
    pool = BackendPool(timeouts=Timeouts())
    with pytest.raises(BackendError):
        await BackendTokenizer(pool)(Backend(name="gone", url="http://127.0.0.1:1"), PAYLOAD)
    await pool.close()
