"""A kill reaches answers under way: the engine is told, the client sees nothing of it, the record says so."""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from gateway.policy.blocks import in_control_block
from gateway.policy.model import Control
from tests.fakes.raw_http import Answer, ask, post
from tests.fakes.upstream import PATIENCE_S, Conversation, Upstream
from tests.gateway.proxy.harness import Gateway, backend_at, prod_policy
from tests.gateway.proxy.test_prod import LAST_CHUNK, TEXT_CHUNKS, USAGE, chunk, metrics, sse


class Engine:
    """Begins to answer, and ends, when the test lets it; keeps what it is asked, and told besides.

    Attributes:
        asked: Bodies of requests, when they have come and before they are answered.
        told: Bodies of calls that carry `ace_plain`.
        refusals: How many of those are answered 500 at first.
    """

    def __init__(self, *, refusals: int = 0) -> None:
        self.asked = queue.Queue[dict[str, Any]]()
        self.told = queue.Queue[dict[str, Any]]()
        self.begin, self.end = threading.Event(), threading.Event()
        self.begin.set()
        self.refusals = refusals

    def __call__(self, conversation: Conversation) -> None:
        body = json.loads(conversation.request.body)
        if "ace_plain" in body.get("vllm_xargs", {}):
            self.refusals -= 1
            conversation.answer(status="200 OK" if self.refusals < 0 else "500 Internal Server Error")
            self.told.put(body)
            return
        self.asked.put(body)
        assert self.begin.wait(PATIENCE_S)
        conversation.start_stream()
        conversation.chunk(sse(*TEXT_CHUNKS))
        assert self.end.wait(PATIENCE_S)
        usage = chunk(choices=[], usage=USAGE, metrics=metrics())
        conversation.chunk(sse(LAST_CHUNK, usage, b"[DONE]"))
        conversation.end_stream()


@contextmanager
def site(engine: Engine) -> Iterator[Gateway]:
    with Upstream(engine) as upstream, Gateway([backend_at(upstream)], policy=prod_policy()) as gateway:
        yield gateway


@contextmanager
def asking(gateway: Gateway, engine: Engine, *request_ids: str) -> Iterator[list[Future[Answer]]]:
    """Clients whose requests are at the engine."""
    body = json.dumps({"model": "m1", "messages": [], "stream": True}).encode()
    with ThreadPoolExecutor() as clients:
        answers = [
            clients.submit(ask, gateway.port, post(body, f"x-request-id: {request_id}"))
            for request_id in request_ids
        ]
        for _ in request_ids:
            engine.asked.get(timeout=PATIENCE_S)
        yield answers
        engine.end.set()


def next_told(engine: Engine) -> dict[str, Any]:
    return engine.told.get(timeout=PATIENCE_S)


def test_the_engine_is_told_of_every_request_in_one_call() -> None:
    engine = Engine()
    with site(engine) as gateway, asking(gateway, engine, "r-1", "r-2"):
        gateway.kill()
        told = next_told(engine)
    assert told["vllm_xargs"]["ace_mode"] == "off"
    assert sorted(told["vllm_xargs"]["ace_plain"]) == ["r-1", "r-2"]
    assert (told["model"], told["max_tokens"]) == ("m1", 1)


def test_the_client_has_the_same_answer_and_the_record_says_killed() -> None:
    engine = Engine()
    with site(engine) as gateway:
        with asking(gateway, engine, "r-1") as answers:
            gateway.kill()
            next_told(engine)
        access, (stage,) = gateway.records.next_access(), gateway.records.stages
    assert answers[0].result().body == sse(*TEXT_CHUNKS, LAST_CHUNK, b"[DONE]")
    assert access.ending == "completed"
    assert (stage.action, stage.reason, stage.reason_detail) == ("speculate", "killed", "by a test")
    assert stage.draft_tokens == 16
    assert (stage.multiplier, stage.multiplier_reason) == (None, "killed")


def test_what_comes_after_a_kill_is_sent_as_it_came() -> None:
    engine = Engine()
    engine.end.set()
    body = b'{"model": "m1", "messages": []}'
    with site(engine) as gateway:
        gateway.kill()
        ask(gateway.port, post(body))
        gateway.records.next_access()
        assert gateway.records.stages[0].action == "bypass"
    assert engine.asked.get(timeout=PATIENCE_S) == json.loads(body)
    assert engine.told.empty()


def test_an_engine_that_has_not_begun_to_answer_is_told_until_it_has() -> None:
    """The request may still be on its way when the first call overtakes it."""
    engine = Engine()
    engine.begin.clear()
    with site(engine) as gateway, asking(gateway, engine, "r-1"):
        gateway.kill()
        for _ in range(3):
            assert next_told(engine)["vllm_xargs"]["ace_plain"] == ["r-1"]
        engine.begin.set()


def test_an_engine_that_refuses_is_told_again_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="gateway.proxy.speculations")
    engine = Engine(refusals=3)
    with site(engine) as gateway, asking(gateway, engine, "r-1"):
        gateway.kill()
        for _ in range(4):
            next_told(engine)
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["HTTP 500"]


def test_an_engine_that_cannot_be_reached_costs_no_client_its_answer() -> None:
    engine = Engine(refusals=10**6)
    with site(engine) as gateway:
        with asking(gateway, engine, "r-1") as answers:
            gateway.kill()
            next_told(engine)
        assert answers[0].result().whole
        gateway.records.next_access()
        assert gateway.records.stages[0].reason == "killed"


def test_requests_that_have_ended_are_not_spoken_of() -> None:
    engine = Engine()
    with site(engine) as gateway:
        with asking(gateway, engine, "r-1"):
            pass
        gateway.records.next_access()
        engine.end.clear()
        with asking(gateway, engine, "r-2"):
            gateway.kill()
            assert next_told(engine)["vllm_xargs"]["ace_plain"] == ["r-2"]
    assert gateway.records.stages[0].reason is None


HALF = Control(fraction=0.5)
PLAIN_BLOCK_AT = next(
    at for at in range(1_700_000_000, 1_700_100_000, 60) if in_control_block("b1", "m1", at, HALF)
)


def test_control_traffic_has_nothing_to_be_told() -> None:
    engine = Engine()
    policy, clock = prod_policy(control=0.5), lambda: float(PLAIN_BLOCK_AT)
    with Upstream(engine) as upstream, Gateway([backend_at(upstream)], policy=policy, clock=clock) as gateway:
        with asking(gateway, engine, "r-1"):
            gateway.kill()
        gateway.records.next_access()
        (stage,) = gateway.records.stages
    assert stage.action == "control"
    assert engine.told.empty()
