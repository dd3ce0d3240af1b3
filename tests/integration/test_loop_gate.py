"""From a server that nobody has measured to one whose requests are driven, or known not to be worth it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.evidence.multiplier import MINIMUM_SAMPLE
from tests.fakes.processes import Stack, until

pytestmark = [pytest.mark.slow, pytest.mark.integration]

POLICY = """
version: 1
rules:
  - {name: off, match: {tenant: off}, mode: off}
  - {name: shadow, match: {tenant: shadow}, mode: shadow, draft: ngram}
  - name: gated
    match: {tenant: gated}
    mode: prod
    experimental: true
    draft: ngram
    prod: {executor: gateway_loop, control: {fraction: 0}}
  - name: measured
    match: {tenant: measured}
    mode: prod
    experimental: true
    draft: ngram
    prod: {executor: gateway_loop, control: {fraction: 0}}
    guardrails: {min_multiplier: 0}
"""
ASKED = {
    "messages": [{"role": "user", "content": "one two three one two three one two"}],
    "temperature": 0,
    "max_tokens": 48,
}
TENANTS = ("off", "shadow", "gated", "measured")


@pytest.fixture(scope="module")
def driven(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("gate"), model=str(tiny_model), policy=POLICY) as running:
        yield running


class Client:
    """Asks as one tenant after the other."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._keys = {tenant: stack.key(tenant) for tenant in TENANTS}
        self._asked = 0

    def ask(self, tenant: str) -> tuple[str, str]:
        """The request's id, and the text of its answer."""
        self._asked += 1
        request_id = f"gate-{self._asked}"
        answer = httpx.post(
            f"{self._stack.gateway.url}/v1/chat/completions",
            json={"model": self._stack.model, **ASKED},
            headers={"authorization": f"Bearer {self._keys[tenant]}", "x-request-id": request_id},
            timeout=60.0,
            trust_env=False,
        )
        return request_id, str(answer.raise_for_status().json()["choices"][0]["message"]["content"])

    def stage(self, tenant: str) -> dict[str, Any]:
        """The stage record of one request."""
        return self._stack.stage_of(self.ask(tenant)[0])


def decided(stack: Stack) -> dict[str, Any]:
    """What the gate says of the next request."""
    facts = {"model": stack.model, "tenant": "gated", "workload": "chat", "temperature": 0}
    said = stack.admin.post("/policy/explain", json=facts).raise_for_status().json()
    decision: dict[str, Any] = said["decision"]
    return decision


def test_a_request_is_driven_once_it_is_known_what_that_comes_to(driven: Stack) -> None:
    client = Client(driven)
    first = client.stage("gated")
    assert (first["action"], first["reason"]) == ("bypass", "not_calibrated")

    shown = until(
        lambda: driven.admin.get("/backends/embedded").json()["calibrations"], "a calibration by itself"
    )
    assert [(found["strategy"], found["drafter"], found["band"]) for found in shown] == [
        ("scored", "ngram", "1")
    ]
    assert shown[0]["plain_seconds"] > 0

    (_, plain), (request_id, loop) = client.ask("off"), client.ask("measured")
    assert loop == plain
    stage = driven.stage_of(request_id)
    assert (stage["action"], stage["executor"], stage["source"]) == ("speculate", "gateway_loop", "loop")

    for _ in range(MINIMUM_SAMPLE):
        assert client.stage("shadow")["action"] == "would_speculate"
    decision = until(
        lambda: found if (found := decided(driven))["reason"] != "no_evidence" else None,
        "a prediction from the shadow answers",
    )
    assert decision["reason"] in (None, "not_worth_it")
    assert decision["executor"] == ("gateway_loop" if decision["reason"] is None else None)
    assert client.stage("gated")["reason"] == decision["reason"]
