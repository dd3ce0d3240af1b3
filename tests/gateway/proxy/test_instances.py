"""Requests over the instances of one backend."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gateway.fleet.model import Backend, BackendState
from gateway.proxy.retry_budget import RetryBudget
from gateway.proxy.upstream import Timeouts
from tests.fakes.raw_http import RawClient, ask, post
from tests.fakes.upstream import Conversation, Upstream
from tests.gateway.proxy.harness import Gateway, backend_at

REQUEST = post(b'{"model":"m1"}')


def instance_at(upstream: Upstream, **facts: Any) -> Backend:
    return backend_at(upstream, instance=upstream.url, **facts)


def test_requests_are_spread_over_instances_that_are_equally_loaded() -> None:
    with Upstream() as one, Upstream() as two, Gateway([instance_at(one), instance_at(two)]) as gateway:
        for _ in range(40):
            assert ask(gateway.port, REQUEST).status == 200
            record = gateway.records.next_access()
            assert (record.backend, record.instance in {one.url, two.url}) == ("b1", True)
        assert len(one.requests) + len(two.requests) == 40
        assert min(len(one.requests), len(two.requests)) > 0


def test_the_instance_with_the_fewest_calls_is_asked_first_and_each_is_counted_alone() -> None:
    def held(conversation: Conversation) -> None:
        conversation.start_stream()
        conversation.wait_for_hang_up()

    with Upstream(held) as one, Upstream(held) as two:
        backends = [instance_at(one), instance_at(two)]
        with Gateway(backends) as gateway:
            clients = [RawClient(gateway.port) for _ in range(6)]
            for client in clients:
                client.send(REQUEST)
                client.read_head()
            assert [gateway.load.running(backend.key) for backend in backends] == [3, 3]
            assert [gateway.pool.in_flight(backend.key) for backend in backends] == [3, 3]
            for client in clients:
                client.close()
                gateway.records.next_access()


def test_an_instance_that_is_busy_is_answered_for_by_another() -> None:
    with Upstream(lambda c: c.answer(b"busy", status="503 Service Unavailable")) as busy, Upstream() as free:
        backends = [instance_at(busy), instance_at(free)]
        with Gateway(backends, retries=RetryBudget(burst=100)) as gateway:
            assert {ask(gateway.port, REQUEST).status for _ in range(20)} == {200}
        assert len(free.requests) == 20


def test_an_instance_that_is_down_is_not_asked() -> None:
    with Upstream() as one, Upstream() as two:
        backends = [instance_at(one, state=BackendState.DOWN), instance_at(two)]
        with Gateway(backends) as gateway:
            assert {ask(gateway.port, REQUEST).status for _ in range(10)} == {200}
        assert (len(one.requests), len(two.requests)) == (0, 10)


def test_with_all_instances_down_the_backend_is_named_once() -> None:
    with Upstream() as one, Upstream() as two:
        backends = [instance_at(up, state=BackendState.DOWN) for up in (one, two)]
        with Gateway(backends) as gateway:
            answer = ask(gateway.port, REQUEST)
    assert answer.status == 503
    assert json.loads(answer.body)["error"]["message"].count("b1") == 1


def test_other_routes_pass_to_a_backend_with_several_instances() -> None:
    with Upstream() as one, Upstream() as two, Gateway([instance_at(one), instance_at(two)]) as gateway:
        assert ask(gateway.port, post(b"{}", path="/v1/embeddings")).status == 200


def test_killing_an_instance_under_load_costs_no_request_that_another_could_serve() -> None:
    """What was delivered to it and not answered may have run; so here it dies between two of its requests."""
    idle = threading.Lock()

    def answers(conversation: Conversation) -> None:
        with idle:
            conversation.answer()

    with Upstream(answers) as dying, Upstream() as staying:
        backends = [instance_at(dying), instance_at(staying)]
        with Gateway(backends, retries=RetryBudget(burst=1000)) as gateway:
            killed = threading.Event()

            def one_client(number: int) -> set[int]:
                statuses = set()
                for turn in range(30):
                    if number == 0 and turn == 10:
                        with idle:
                            dying.stop()  # the snapshot goes on showing it as up
                        killed.set()
                    statuses.add(ask(gateway.port, REQUEST).status)
                return statuses

            with ThreadPoolExecutor(4) as clients:
                seen = set().union(*clients.map(one_client, range(4)))
            assert killed.is_set()
            assert gateway.records.unreachable
            assert {key for key, _ in gateway.records.unreachable} == {backends[0].key}
    assert seen == {200}


@pytest.mark.parametrize("path", ["", "/team"])
def test_an_address_is_connected_to_with_the_names_own_host(path: str) -> None:
    with Upstream() as up:
        backend = backend_at(f"http://llama.svc:{up.port}{path}", instance="127.0.0.1", address="127.0.0.1")
        with Gateway([backend]) as gateway:
            assert ask(gateway.port, REQUEST).status == 200
        received = up.next_request()
        assert received.values("host") == [f"llama.svc:{up.port}"]
        assert received.target.startswith(f"{path}/v1/")


def test_a_forbidden_address_is_not_connected_to() -> None:
    backend = backend_at("http://llama.svc:8000", instance="169.254.169.254", address="169.254.169.254")
    with Gateway([backend], timeouts=Timeouts(connect_s=0.2)) as gateway:
        answer = ask(gateway.port, REQUEST)
    assert answer.status == 502
    assert "never connected to" in json.loads(answer.body)["error"]["message"]
    assert "169.254" not in answer.body.decode()
