from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import pytest

from draftrunner.join import Heartbeat, joined
from tests.fakes.joinable import Join, JoinableGateway
from tests.fakes.served import served

ANNOUNCEMENT = {"url": "http://127.0.0.1:8090", "node": "n1", "drafters": ["ngram"], "version": "0"}
EXPECTED = Join(path="/runner/v1/join", authorization="Bearer sesame", body=ANNOUNCEMENT)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False) as client:
        yield client


def heartbeat(client: httpx.AsyncClient, gateway: str) -> Heartbeat:
    return Heartbeat(
        client=client, gateway=gateway, token="sesame", announcement=ANNOUNCEMENT, seconds_between_beats=0.01
    )


def unused_port() -> int:
    with served(JoinableGateway()) as url:
        return urlsplit(url).port or 0


@pytest.mark.parametrize("end", ["", "/"])
async def test_a_beat_announces_the_runner_with_its_token(client: httpx.AsyncClient, end: str) -> None:
    gateway = JoinableGateway()
    with served(gateway) as url:
        await heartbeat(client, url + end).beat()
    assert gateway.joins.get_nowait() == EXPECTED


async def test_a_gateway_that_goes_and_comes_back_is_logged_once_each(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "draftrunner.join")
    gateway, port = JoinableGateway(), unused_port()
    beating = heartbeat(client, f"http://127.0.0.1:{port}")
    for _ in range(2):
        with served(gateway, port=port):
            await beating.beat()
            await beating.beat()
        await beating.beat()
        await beating.beat()
    assert gateway.joins.qsize() == 4
    levels = [record.levelname for record in caplog.records]
    assert levels == ["INFO", "WARNING", "INFO", "WARNING"]
    accepted, away = caplog.messages[:2]
    assert "accepted this runner" in accepted
    assert "is not reachable (ConnectError" in away
    assert "trying again every 0.01 s" in away


async def test_a_refusal_is_logged_with_its_likely_cause(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = JoinableGateway(status=401)
    with served(gateway) as url:
        beating = heartbeat(client, url)
        await beating.beat()
        await beating.beat()
        gateway.status = 503
        await beating.beat()
    refused, unavailable = caplog.messages
    assert "answered HTTP 401. Both sides need the same runner token" in refused
    assert "answered HTTP 503;" in unavailable
    assert "sesame" not in caplog.text


async def test_a_gateway_that_starts_later_is_joined(client: httpx.AsyncClient) -> None:
    gateway, port = JoinableGateway(), unused_port()
    beating = asyncio.create_task(heartbeat(client, f"http://127.0.0.1:{port}").run())
    await asyncio.sleep(0)
    with served(gateway, port=port):
        assert await asyncio.to_thread(gateway.joins.get, timeout=30) == EXPECTED
        assert await asyncio.to_thread(gateway.joins.get, timeout=30) == EXPECTED, "and again"
    beating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beating


async def test_a_runner_stays_joined_for_as_long_as_the_block_lasts() -> None:
    gateway = JoinableGateway()
    with served(gateway) as url:
        async with joined(gateway=url, token="sesame", announcement=ANNOUNCEMENT):
            assert await asyncio.to_thread(gateway.joins.get, timeout=30) == EXPECTED
    assert len(asyncio.all_tasks()) == 1, "the heartbeat has ended"
