from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.errors import BackendError
from gateway.fleet.model import Backend
from gateway.proxy.upstream import BackendPool, Timeouts
from gateway.shadow import tokenize
from gateway.shadow.tokenize import BackendTokenizer, FileTokenizers, Tokenizers
from tests.fakes.tokenizer_files import tokenizer_files

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


SAY_IT = [{"role": "user", "content": "say it"}]


async def test_a_backend_with_registered_files_is_not_asked(tmp_path: Path) -> None:
    pool = BackendPool(timeouts=Timeouts())
    backend = Backend(name="gone", url="http://127.0.0.1:1", tokenizer=str(tokenizer_files(tmp_path)))
    assert await Tokenizers(pool)(backend, PAYLOAD) == (6, 7)
    await pool.close()


async def test_a_backend_without_registered_files_is_asked_itself() -> None:
    pool = BackendPool(timeouts=Timeouts())
    with pytest.raises(BackendError):
        await Tokenizers(pool)(Backend(name="gone", url="http://127.0.0.1:1"), PAYLOAD)
    await pool.close()


@pytest.mark.parametrize(
    ("payload", "ids"),
    [
        ({"prompt": "a b"}, (0, 6, 7)),
        ({"prompt": "a b", "add_special_tokens": False}, (6, 7)),
        ({"messages": SAY_IT}, (0, 3, 9, 10, 1, 4)),
        ({"messages": SAY_IT, "add_special_tokens": True}, (0, 0, 3, 9, 10, 1, 4)),
        ({"messages": SAY_IT, "add_generation_prompt": False}, (0, 3, 9, 10, 1)),
        ({"messages": SAY_IT, "continue_final_message": True}, (0, 3, 9, 10)),
        ({"messages": SAY_IT, "chat_template_kwargs": {"bos_token": "x"}}, (11, 3, 9, 10, 1, 4)),
    ],
)
def test_files_answer_what_the_servers_route_would(
    tmp_path: Path, payload: dict[str, Any], ids: tuple[int, ...]
) -> None:
    """Exactly one token that begins a text, and none doubled by a template that spells it (BR-B04)."""
    assert FileTokenizers()(str(tokenizer_files(tmp_path)), payload) == ids


@pytest.mark.parametrize(
    "payload",
    [
        {"messages": SAY_IT, "chat_template": "{{ messages }}"},
        {"messages": [{"role": "user", "content": 7}], "continue_final_message": True},
        {"messages": SAY_IT, "chat_template_kwargs": "none"},
    ],
)
def test_a_conversation_that_the_files_cannot_say_gives_no_ids(
    tmp_path: Path, payload: dict[str, Any]
) -> None:
    assert FileTokenizers()(str(tokenizer_files(tmp_path)), payload) is None


def test_files_that_change_are_read_again(tmp_path: Path) -> None:
    ask = FileTokenizers()
    assert ask(str(tokenizer_files(tmp_path)), {"messages": SAY_IT}) == (0, 3, 9, 10, 1, 4)
    tokenizer_files(tmp_path, template="a")
    later = (tmp_path / "tokenizer.json").stat().st_mtime_ns + 1_000_000
    os.utime(tmp_path / "tokenizer.json", ns=(later, later))
    assert ask(str(tmp_path), {"messages": SAY_IT}) == (6,)


def test_files_that_have_gone_are_told_to_operators_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ask = FileTokenizers()
    with caplog.at_level(logging.WARNING):
        assert [ask(str(tmp_path / "gone"), PAYLOAD) for _ in range(3)] == [None] * 3
    (said,) = caplog.messages
    assert str(tmp_path / "gone") in said
    assert "a b" not in said
