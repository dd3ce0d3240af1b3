"""What a decision is given beside the facts, and what becomes of a request that is not driven."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.evidence.loop_costs import CostKey
from gateway.policy.standing import Standing
from gateway.policy.ways import WAYS
from probes.model import Finding, Support
from tests.fakes.raw_http import RawClient, ask, post
from tests.fakes.standings import costs
from tests.fakes.upstream import Conversation, Upstream
from tests.gateway.proxy.harness import Gateway, backend_at, policy_with, prod_policy, serving

REQUEST = post(json.dumps({"model": "m1", "messages": [], "temperature": 0}).encode())
DRIVABLE = {
    need: Finding(capability=need, support=Support.YES, evidence="tried")
    for way in WAYS
    if way.strategy == "fanout"
    for need in way.needs
}
KEY = CostKey(backend="b1", model="m1", strategy="fanout", drafter="ngram", band="1")
RUNNER_ONLY = Standing(drafters=frozenset({"ngram"}))
CALIBRATED = Standing(
    drafters=frozenset({"ngram"}), costs={KEY: costs(KEY, 1_700_000_000.0, plain=0.015, step=0.100)}
)


def plainly(conversation: Conversation) -> None:
    conversation.answer(b'{"choices": []}')


def driving(upstream: Upstream, **rule: Any) -> Gateway:
    """A gateway whose one rule would drive everything."""
    prod = {"executor": "auto", "control": {"fraction": 0}}
    return Gateway(
        [backend_at(upstream, findings=DRIVABLE)],
        policy=policy_with("prod", prod=prod),
        **rule,
    )


def test_what_was_not_measured_is_served_plainly_and_measured_later() -> None:
    with Upstream(plainly) as up, driving(up, standing=RUNNER_ONLY) as gateway:
        assert ask(gateway.port, REQUEST).status == 200
        gateway.records.next_access()
        (record,) = gateway.records.stages
        assert up.next_request().body == REQUEST.partition(b"\r\n\r\n")[2]
    assert (record.action, record.reason) == ("bypass", "not_calibrated")
    assert record.reason_detail is not None
    assert "`ace backends calibrate b1`" in record.reason_detail
    assert gateway.standings.wanted == [("b1", "m1", "ngram", 1)]


def test_what_could_not_pay_is_served_plainly_with_its_numbers() -> None:
    """Six tokens for 100 ms against 15 ms each: nothing to gain, whatever is drafted."""
    with Upstream(plainly) as up, driving(up, standing=CALIBRATED) as gateway:
        assert ask(gateway.port, REQUEST).status == 200
        gateway.records.next_access()
        (record,) = gateway.records.stages
    assert (record.action, record.reason) == ("bypass", "not_worth_it")
    assert record.reason_detail is not None
    assert "0.90, below 1.05" in record.reason_detail
    assert "a plain token 15.0 ms" in record.reason_detail
    assert gateway.standings.wanted == []


@pytest.mark.parametrize("mode", ["off", "shadow"])
def test_other_modes_want_no_measurement(mode: str) -> None:
    with serving(plainly, policy=policy_with(mode)) as (_, gateway):
        ask(gateway.port, REQUEST)
        gateway.records.next_access()
    assert gateway.standings.wanted == []


def test_a_request_counts_as_load_until_it_has_ended() -> None:
    def held(conversation: Conversation) -> None:
        conversation.start_stream()
        conversation.wait_for_hang_up()

    with Upstream(held) as up, driving(up, standing=RUNNER_ONLY) as gateway:
        clients = [RawClient(gateway.port) for _ in range(3)]
        for number, client in enumerate(clients, start=1):
            client.send(REQUEST)
            client.read_head()
            assert gateway.load.running("b1") == number
        for client in clients:
            client.close()
            gateway.records.next_access()
        assert gateway.load.running("b1") == 0
    assert [running for *_, running in gateway.standings.wanted] == [1, 2, 3]


def test_a_request_that_another_backend_serves_counts_there() -> None:
    def busy(conversation: Conversation) -> None:
        conversation.answer(status="503 Service Unavailable")

    seen: list[tuple[int, int]] = []

    def serves(conversation: Conversation) -> None:
        seen.append((gateway.load.running("b1"), gateway.load.running("b2")))
        conversation.answer()

    with Upstream(busy) as first, Upstream(serves) as second:
        backends = [backend_at(first), backend_at(second, name="b2")]
        with Gateway(backends, policy=prod_policy()) as gateway:
            assert ask(gateway.port, REQUEST).status == 200
            gateway.records.next_access()
            assert (gateway.load.running("b1"), gateway.load.running("b2")) == (0, 0)
    assert seen == [(0, 1)]
