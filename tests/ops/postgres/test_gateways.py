"""Three gateway processes on one PostgreSQL: they see each other's changes, and outlive it and each other."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import asyncpg
import httpx
import pytest

from tests.fakes.openai_server import OpenAIServer
from tests.fakes.postgres import PostgresServer
from tests.fakes.processes import until
from tests.fakes.served import served
from tests.fakes.service_clients import ServiceClients
from tests.ops.postgres.conftest import Gateways

pytestmark = [pytest.mark.ops, pytest.mark.slow]

SEEN_WITHIN_S = 2.0


class Changes:
    """What an operator changes at the first gateway. Each method makes a change, and returns a question that
    is true of a gateway which has seen it. A method more is a test more.
    """

    def __init__(self, gateways: Gateways, backend_url: str) -> None:
        self._gateways = gateways
        self._url = backend_url

    def a_backend_is_added(self) -> Callable[[int], bool]:
        new = {"name": "third", "url": self._url}
        self._gateways.ask("POST", "/admin/v1/backends", json=new).raise_for_status()
        return partial(self._gateways.is_up, "third")

    def a_backend_is_removed(self) -> Callable[[int], bool]:
        self._gateways.ask("DELETE", "/admin/v1/backends/first").raise_for_status()
        return lambda at: self._gateways.state_of("first", at=at) is None

    def a_key_is_added(self) -> Callable[[int], bool]:
        key = self._gateways.key("search")
        return lambda at: self._status_with(key, at) == 200

    def a_key_is_revoked(self) -> Callable[[int], bool]:
        made = self._gateways.ask("POST", "/admin/v1/keys", json={"name": "lent", "tenant": "search"}).json()
        until(lambda: self._status_with(made["key"], 2) == 200, "the key being good")
        self._gateways.ask("DELETE", f"/admin/v1/keys/{made['id']}").raise_for_status()
        return lambda at: self._status_with(made["key"], at) == 401

    def a_kill_is_thrown(self) -> Callable[[int], bool]:
        self._gateways.ask("POST", "/admin/v1/kill", json={"reason": "a test"}).raise_for_status()
        return lambda at: self._gateways.explained("shadow", at=at)["reason"] == "killed"

    def a_rule_is_demoted(self) -> Callable[[int], bool]:
        overlay = {"kind": "demote", "scope": {"rule": "shadow"}, "value": "off", "reason": "a test"}
        self._gateways.ask("POST", "/admin/v1/overlays", json=overlay).raise_for_status()
        return lambda at: self._gateways.explained("shadow", at=at)["mode"] == "off"

    def a_policy_is_put(self) -> Callable[[int], bool]:
        held = self._gateways.ask("GET", "/admin/v1/policy").json()
        new = {"text": "version: 1\n", "based_on": held["revision"], "reason": "a test"}
        put = self._gateways.ask("PUT", "/admin/v1/policy", json=new).raise_for_status().json()
        return lambda at: self._revision_at(at) == put["revision"]

    def _revision_at(self, at: int) -> str:
        return str(self._gateways.ask("GET", "/admin/v1/policy", at=at).json()["revision"])

    def _status_with(self, key: str, at: int) -> int:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.get(f"{self._gateways.urls[at]}/v1/models", headers=headers, trust_env=False).status_code


CHANGES = [name for name in vars(Changes) if name.startswith("a_")]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_at_one_gateway_is_seen_by_all_within_two_seconds(
    gateways: Gateways, change: str
) -> None:
    with ExitStack() as running:
        url = running.enter_context(served(OpenAIServer().app))
        seen = getattr(Changes(gateways, url), change)()
        changed_at = time.monotonic()
        for at in range(3):
            until(partial(seen, at), f"{change}, at gateway {at}")
        assert time.monotonic() - changed_at <= SEEN_WITHIN_S


async def records_of(gateways: Gateways) -> Counter[str]:
    """How often each request id is in the stage records."""
    connection = await asyncpg.connect(gateways.database)
    try:
        rows = await connection.fetch("SELECT request_id FROM stage_records")
    finally:
        await connection.close()
    return Counter(row["request_id"] for row in rows)


async def all_recorded(gateways: Gateways, clients: ServiceClients, shadow: str) -> None:
    """Wait until every request of the shadowed tenant has left its record; none may be there twice."""
    expected = {request_id for request_id, key in clients.served.items() if key == shadow}
    assert expected
    async with asyncio.timeout(60):
        while not expected <= (recorded := await records_of(gateways)).keys():  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.1)
    assert set(recorded.values()) == {1}


async def test_killing_the_database_under_load_costs_no_request_and_no_record(
    gateways: Gateways, mortal_postgres: PostgresServer
) -> None:
    plain, shadow = gateways.key("plain"), gateways.key("shadow")
    await keys_known(gateways, plain, shadow)
    async with ServiceClients(gateways.urls, [plain, shadow]) as clients:
        await clients.more(100)
        mortal_postgres.kill()
        await clients.more(200)
        await asyncio.to_thread(mortal_postgres.start)
        await clients.more(100)
    assert clients.failed == clients.cut == []
    await all_recorded(gateways, clients, shadow)
    assert [gateways.dropped(at=at) for at in range(3)] == [0, 0, 0]


async def test_a_database_that_hangs_holds_up_neither_requests_nor_the_judgement_of_backends(
    gateways: Gateways, mortal_postgres: PostgresServer
) -> None:
    plain, shadow = gateways.key("plain"), gateways.key("shadow")
    with ExitStack() as third:
        url = third.enter_context(served(OpenAIServer().app))
        gateways.ask("POST", "/admin/v1/backends", json={"name": "third", "url": url}).raise_for_status()
        await keys_known(gateways, plain, shadow)
        async with ServiceClients(gateways.urls, [plain, shadow]) as clients:
            await clients.more(100)
            mortal_postgres.hang()
            try:
                await clients.more(200)
                await asyncio.to_thread(third.close)
                for at in range(3):
                    await asyncio.to_thread(
                        until,
                        partial(is_down, gateways, "third", at),
                        f"gateway {at} judging a backend that is gone",
                    )
                await clients.more(200)
            finally:
                mortal_postgres.go_on()
            await clients.more(100)
    assert clients.failed == clients.cut == []
    await all_recorded(gateways, clients, shadow)


async def test_killing_a_gateway_and_the_database_cuts_only_answers_that_had_begun(
    gateways: Gateways, mortal_postgres: PostgresServer
) -> None:
    """What a process had begun to send cannot be finished by another one. Everything else is served."""
    plain, shadow = gateways.key("plain"), gateways.key("shadow")
    await keys_known(gateways, plain, shadow)
    async with ServiceClients(gateways.urls, [plain, shadow]) as clients:
        await clients.more(100)
        mortal_postgres.kill()
        await clients.more(50)
        gateways.parts[1].kill()
        await clients.more(200)
        await asyncio.to_thread(mortal_postgres.start)
        await clients.more(50)
    assert clients.failed == []
    assert len(clients.cut) <= clients.clients


async def test_ending_a_gateway_costs_no_request_and_no_stream(gateways: Gateways) -> None:
    plain, shadow = gateways.key("plain"), gateways.key("shadow")
    await keys_known(gateways, plain, shadow)
    ending = gateways.parts[1]
    async with ServiceClients(gateways.urls, [plain, shadow]) as clients:
        await clients.more(100)
        async with (
            httpx.AsyncClient(timeout=60, trust_env=False) as client,
            client.stream("POST", **chat(ending.url, plain, max_tokens=1000, stream=True)) as long,
        ):
            text = long.aiter_text()
            received = await anext(text)
            ending.process.terminate()
            received += "".join([more async for more in text])
        await asyncio.to_thread(ending.process.wait, 60)
        await clients.more(100)
    assert received.endswith("data: [DONE]\n\n")
    assert clients.failed == clients.cut == []
    await all_recorded(gateways, clients, shadow)


def test_a_gateway_that_starts_while_the_database_is_away_is_not_ready_and_says_why(
    gateways: Gateways, mortal_postgres: PostgresServer
) -> None:
    key = gateways.key("plain")
    mortal_postgres.kill()
    try:
        with gateways.another("late") as late:
            answer = httpx.get(f"{late.url}/readyz", trust_env=False)
            assert answer.status_code == 503
            assert "not been read from the store" in " ".join(answer.json()["reasons"])
            assert "refused" in " ".join(answer.json()["warnings"])
            assert ask_plainly(late.url, key).json()["error"]["code"] == "store_unavailable"
            mortal_postgres.start()
            until(partial(is_ready, late.url), "the late gateway being ready")
            assert ask_plainly(late.url, key).status_code == 200
    finally:
        if not mortal_postgres.running:
            mortal_postgres.start()


def is_down(gateways: Gateways, backend: str, at: int) -> bool:
    return gateways.state_of(backend, at=at) == "down"


def ask_plainly(url: str, key: str) -> httpx.Response:
    return httpx.post(**chat(url, key), timeout=60, trust_env=False)


def chat(url: str, key: str, **more: object) -> dict[str, Any]:
    """The arguments of a client's request."""
    messages = [{"role": "user", "content": "one two"}]
    return {
        "url": f"{url}/v1/chat/completions",
        "json": {"model": "m", "messages": messages, "max_tokens": 4, **more},
        "headers": {"authorization": f"Bearer {key}"},
    }


def is_ready(url: str) -> bool:
    return httpx.get(f"{url}/readyz", timeout=60, trust_env=False).status_code == 200


def is_served(url: str, key: str) -> bool:
    return ask_plainly(url, key).status_code == 200


async def keys_known(gateways: Gateways, *keys: str) -> None:
    """Wait until every gateway lets the keys in."""
    for url in gateways.urls:
        for key in keys:
            await asyncio.to_thread(until, partial(is_served, url, key), f"{url} knowing the keys")
