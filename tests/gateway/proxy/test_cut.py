"""A pool that is cut, because its process ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.errors import GatewayStopping
from gateway.proxy.upstream import BackendPool, Call, Timeouts
from tests.fakes.upstream import Conversation, Script, Upstream
from tests.fakes.waiting import until
from tests.gateway.proxy.harness import backend_at

CALL = Call(method="POST", target="/v1/chat/completions", headers=(), body=b"{}")


@pytest.fixture
async def pool() -> AsyncIterator[BackendPool]:
    pool = BackendPool(timeouts=Timeouts())
    yield pool
    await pool.close()


def chunked(conversation: Conversation) -> None:
    conversation.start_stream()
    conversation.chunk(b"data: 1\n\n")
    conversation.wait_for_hang_up()


def of_stated_length(conversation: Conversation) -> None:
    conversation.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\ndata: 1\n\n")
    conversation.wait_for_hang_up()


def to_the_connections_end(conversation: Conversation) -> None:
    conversation.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ndata: 1\n\n")
    conversation.wait_for_hang_up()


@pytest.mark.parametrize("script", [chunked, of_stated_length, to_the_connections_end])
async def test_an_answer_under_way_ends_with_the_reason(pool: BackendPool, script: Script) -> None:
    with Upstream(script) as upstream:
        reply = await pool.open(backend_at(upstream), CALL)
        chunks = reply.chunks()
        assert await anext(chunks) == b"data: 1\n\n"
        await pool.cut()
        with pytest.raises(GatewayStopping, match="before the answer was complete"):
            await anext(chunks)
        reply.close()
        assert await asyncio.to_thread(upstream.requests[0].hung_up.wait, 10)
        assert pool.in_flight("b1") == 0


async def test_a_call_that_waits_for_its_answer_ends_with_the_reason(pool: BackendPool) -> None:
    with Upstream(Conversation.wait_for_hang_up) as upstream:
        call = asyncio.create_task(pool.open(backend_at(upstream), CALL))
        await until(lambda: len(upstream.requests) == 1)
        await pool.cut()
        with pytest.raises(GatewayStopping):
            await call
        assert pool.in_flight("b1") == 0


async def test_no_call_is_opened_after_a_cut(pool: BackendPool) -> None:
    with Upstream() as upstream:
        await pool.cut()
        with pytest.raises(GatewayStopping):
            await pool.open(backend_at(upstream), CALL)
        assert upstream.connections == 0


async def test_an_answer_that_has_ended_is_not_touched(pool: BackendPool) -> None:
    with Upstream() as upstream:
        reply = await pool.open(backend_at(upstream), CALL)
        assert [chunk async for chunk in reply.chunks()] == [b"{}"]
        reply.close()
        await pool.cut()
