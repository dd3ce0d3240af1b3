from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.proxy.asgi import Message
from gateway.proxy.client_watch import ClientLeft, until_client_leaves
from tests.fakes.raw_http import RawClient, get, post
from tests.fakes.upstream import PATIENCE_S, Conversation, Script
from tests.gateway.proxy.harness import policy_with, prod_policy, serving

POLICIES = {"off": policy_with("off"), "shadow": policy_with("shadow"), "prod": prod_policy()}


def silent(conversation: Conversation) -> None:
    conversation.wait_for_hang_up()


def silent_after_head(conversation: Conversation) -> None:
    conversation.start_stream()
    conversation.wait_for_hang_up()


def silent_after_an_event(conversation: Conversation) -> None:
    conversation.start_stream()
    conversation.chunk(b"data: 1\n\n")
    conversation.wait_for_hang_up()


@pytest.mark.parametrize("mode", POLICIES)
@pytest.mark.parametrize("script", [silent, silent_after_head, silent_after_an_event])
def test_a_client_that_leaves_frees_the_backend_at_once(
    script: Script, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(script, policy=POLICIES[mode]) as (up, gateway):
        with RawClient(gateway.port) as client:
            client.send(post(b'{"model":"m1"}'))
            received = up.next_request()
            if script is not silent:
                client.read_head()
        assert received.hung_up.wait(PATIENCE_S)
        record = gateway.records.next_access()
        assert gateway.pool.in_flight("b1") == 0
        assert len(up.requests) == 1
        assert not gateway.records.unreachable
    assert record.ending == "client_left"
    assert record.status == (499 if script is silent else 200)
    assert "never retrieved" not in caplog.text
    assert not [entry for entry in caplog.records if entry.levelno >= logging.ERROR]


def silent_after_done(conversation: Conversation) -> None:
    conversation.start_stream()
    conversation.chunk(b'data: {"choices":[]}\n\ndata: [DO')
    conversation.chunk(b"NE]\n\n")
    conversation.wait_for_hang_up()


def silent_after_done_in_a_text(conversation: Conversation) -> None:
    conversation.start_stream()
    conversation.chunk(b'data: {"choices":[{"delta":{"content":"data: [DONE]"}}]}\n\n')
    conversation.wait_for_hang_up()


@pytest.mark.parametrize(
    ("script", "ending"), [(silent_after_done, "completed"), (silent_after_done_in_a_text, "client_left")]
)
def test_a_client_that_closes_at_done_has_its_whole_answer(script: Script, ending: str) -> None:
    """As the official clients do, before the body's end has come."""
    with serving(script, policy=POLICIES["shadow"]) as (_, gateway):
        with RawClient(gateway.port) as client:
            client.send(post(b'{"model":"m1"}'))
            client.read_until(b"NE]")
        assert gateway.records.next_access().ending == ending
        (answer,) = gateway.records.offered
    assert answer.complete is (ending == "completed")


def test_a_request_is_under_way_until_its_client_has_the_whole_answer() -> None:
    """Or a client that asks one thing after another would now and then count as two."""
    with serving(silent_after_done, policy=POLICIES["shadow"]) as (_, gateway):
        with RawClient(gateway.port) as client:
            client.send(post(b'{"model":"m1"}'))
            client.read_until(b"NE]")
            (backend,) = gateway.fleet.backends
            assert gateway.load.running(backend.name) == 0
        gateway.records.next_access()


def test_a_client_that_leaves_while_it_sends_is_recorded() -> None:
    with serving(Conversation.answer) as (up, gateway):
        with RawClient(gateway.port) as client:
            client.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        record = gateway.records.next_access()
        assert not up.requests
    assert (record.ending, record.status) == ("client_left", 499)


def test_a_client_that_leaves_a_passed_through_route_frees_the_backend() -> None:
    with serving(silent) as (up, gateway):
        with RawClient(gateway.port) as client:
            client.send(get("/v1/slow"))
            received = up.next_request()
        assert received.hung_up.wait(PATIENCE_S)


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def test_a_block_that_ends_before_the_client_leaves_is_not_disturbed() -> None:
    async with until_client_leaves(never):
        await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_an_error_in_the_block_passes_unchanged() -> None:
    with pytest.raises(ZeroDivisionError):
        async with until_client_leaves(never):
            raise ZeroDivisionError


async def test_a_block_is_cancelled_when_the_client_leaves() -> None:
    messages: list[Message] = [{"type": "http.request"}, {"type": "http.disconnect"}]

    async def receive() -> Message:
        return messages.pop(0)

    with pytest.raises(ClientLeft):
        async with until_client_leaves(receive):
            await never()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_cancellation_from_elsewhere_is_not_taken_for_the_clients() -> None:
    async def block() -> None:
        async with until_client_leaves(never):
            await never()

    task = asyncio.create_task(block())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
