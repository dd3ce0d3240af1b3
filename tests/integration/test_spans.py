"""Spans of a real gateway, decoded at the other end: of one process, and of two workers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fakes.otlp_receiver import GotSpan, OtlpReceiver, otlp_receiver
from tests.fakes.processes import ADMIN_TOKEN, Part, Stack, until
from tests.integration.conftest import POLICY
from tests.integration.test_first_light import ask

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TRACE, CLIENT_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SERVER, INTERNAL = 2, 1
PROMPT = "one two three one two three one two"

REQUEST_TYPES = {
    "gen_ai.operation.name": str,
    "gen_ai.provider.name": str,
    "gen_ai.request.model": str,
    "gen_ai.request.stream": bool,
    "gen_ai.response.time_to_first_chunk": float,
    "http.request.method": str,
    "http.response.status_code": int,
    "url.path": str,
    "ace.request_id": str,
    "ace.tenant": str,
    "ace.workload": str,
    "ace.mode": str,
    "ace.action": str,
    "ace.backend": str,
    "ace.ending": str,
    "ace.retries": int,
    "ace.first_byte_s": float,
    "ace.overhead_s": float,
    "ace.policy.rule": str,
}
STAGE_TYPES = {
    "ace.spec.mode": str,
    "ace.spec.action": str,
    "ace.spec.method": str,
    "ace.spec.drafter": str,
    "ace.spec.k": int,
    "ace.spec.draft_tokens": int,
    "ace.spec.accepted_tokens": int,
    "ace.spec.steps": int,
    "ace.spec.passes": int,
    "ace.spec.acceptance_rate": float,
    "ace.spec.acceptance_length": float,
    "ace.spec.source": str,
    "ace.spec.profile": str,
    "ace.policy.rule": str,
    "ace.policy.revision": str,
    "gen_ai.request.model": str,
    "gen_ai.usage.input_tokens": int,
    "gen_ai.usage.output_tokens": int,
}
"""Of both modes; `executor`, `control_kind`, `reason` and `tokens_per_second` depend on it."""


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as listening:
        yield listening


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two workers"])
def stack(
    request: pytest.FixtureRequest,
    receiver: OtlpReceiver,
    tiny_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    env = {
        "ACE_WORKERS": str(request.param),
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    receiver.taken.clear()
    folder = tmp_path_factory.mktemp("spans")
    with Stack(folder, model=str(tiny_model), policy=POLICY, env=env) as running:
        yield running


@pytest.fixture(scope="module")
def keys(stack: Stack) -> dict[str, str]:
    """An API key for each mode, which every worker knows, as it knows the backend."""
    made = {mode: stack.key(mode) for mode in ("off", "shadow", "prod")}

    def everywhere() -> bool:
        pids = {worker_of(stack) for _ in range(12)}
        if len(pids) < int(stack.gateway.env["ACE_WORKERS"]):
            return False
        shown = [models(stack, key) for key in made.values() for _ in range(10)]
        return all(stack.model in answer for answer in shown)

    until(everywhere, "the keys and the backend in every worker")
    return made


def worker_of(stack: Stack) -> int:
    """The process that answers a new connection."""
    admin = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    url = f"{stack.gateway.url}/admin/v1/installation"
    return int(httpx.get(url, headers=admin, timeout=30).json()["pid"])


def models(stack: Stack, key: str) -> str:
    return httpx.get(f"{stack.gateway.url}/v1/models", headers={"authorization": f"Bearer {key}"}).text


def spans_of(receiver: OtlpReceiver, request_id: str, count: int) -> dict[str, GotSpan]:
    found: dict[str, GotSpan] = until(
        lambda: spans if len(spans := receiver.of(request_id)) == count else None,
        f"{count} spans of {request_id}",
    )
    return found


@pytest.mark.parametrize("mode", ["shadow", "prod"])
def test_a_request_is_a_span_with_its_stage_below_it_in_the_clients_trace(
    stack: Stack, keys: dict[str, str], receiver: OtlpReceiver, mode: str
) -> None:
    headers = {"x-request-id": f"traced-{mode}", "traceparent": f"00-{TRACE}-{CLIENT_SPAN}-01"}
    message = [{"role": "user", "content": PROMPT}]
    ask(stack, keys[mode], f"traced-{mode}", extra_headers=headers, messages=message)
    spans = spans_of(receiver, f"traced-{mode}", 2)
    request, child = spans["request"], spans["speculative_decoding"]
    assert (request.name, request.kind, request.status) == (f"chat {stack.model}"[:512], SERVER, 0)
    assert (request.trace_id, request.parent_id) == (TRACE, CLIENT_SPAN)
    assert (child.trace_id, child.parent_id, child.kind) == (TRACE, request.span_id, INTERNAL)
    assert request.started == child.started < request.ended
    assert request.resource["service.name"] == "ace-gateway"
    assert types(request, REQUEST_TYPES) == REQUEST_TYPES
    assert types(child, STAGE_TYPES) == STAGE_TYPES
    stage = stack.stage_of(f"traced-{mode}")
    shown = {
        "acceptance_rate",
        "draft_tokens",
        "accepted_tokens",
        "steps",
        "passes",
        "k",
        "drafter",
        "action",
    }
    assert {name: child.attributes[f"ace.spec.{name}"] for name in shown} == {n: stage[n] for n in shown}
    assert child.attributes["ace.spec.acceptance_length"] == stage["mean_acceptance_length"]
    assert PROMPT not in repr(spans)


def types(span: GotSpan, wanted: dict[str, type]) -> dict[str, type]:
    """The types of those attributes that are wanted, as they arrived."""
    return {name: type(value) for name, value in span.attributes.items() if name in wanted}


def test_off_is_one_span_that_starts_its_own_trace(
    stack: Stack, keys: dict[str, str], receiver: OtlpReceiver
) -> None:
    ask(stack, keys["off"], "alone")
    assert spans_of(receiver, "alone", 1)["request"].parent_id == ""


def test_a_trace_that_the_client_does_not_sample_is_not_sent(
    stack: Stack, keys: dict[str, str], receiver: OtlpReceiver
) -> None:
    unsampled = {"x-request-id": "unsampled", "traceparent": f"00-{TRACE}-{CLIENT_SPAN}-00"}
    ask(stack, keys["prod"], "unsampled", extra_headers=unsampled)
    ask(stack, keys["prod"], "sampled")
    spans_of(receiver, "sampled", 2)
    assert receiver.of("unsampled") == {}


def test_a_refused_request_is_a_span_as_well(stack: Stack, receiver: OtlpReceiver) -> None:
    httpx.get(
        f"{stack.gateway.url}/v1/models", headers={"authorization": "Bearer wrong", "x-request-id": "refused"}
    )
    span = spans_of(receiver, "refused", 1)["request"]
    assert (span.name, span.status, span.attributes["error.type"]) == ("GET", 0, "invalid_api_key")
    assert "wrong" not in repr(span)


def test_every_worker_exports(stack: Stack, keys: dict[str, str], receiver: OtlpReceiver) -> None:
    for number in range(20):
        headers = {"authorization": f"Bearer {keys['off']}", "x-request-id": f"many-{number}"}
        httpx.get(f"{stack.gateway.url}/v1/models", headers=headers)
    for number in range(20):
        assert spans_of(receiver, f"many-{number}", 1)


def test_what_the_collector_refuses_costs_no_request_and_is_on_the_page(tmp_path: Path) -> None:
    with otlp_receiver() as refusing:
        refusing.always = 400
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": refusing.url, "OTEL_BSP_SCHEDULE_DELAY": "20"}
        with Part(
            "gateway", ("serve", "--data", str(tmp_path / "data")), tmp_path / "gateway.log", env
        ) as gateway:
            asked = [httpx.get(f"{gateway.url}/v1/models").status_code for _ in range(5)]
            until(lambda: lost_spans(gateway) == 5, "the spans that were lost")
    assert asked == [200] * 5
    log = (tmp_path / "gateway.log").read_text()
    assert (log.count("Spans are being lost"), log.count("Failed to export")) == (1, 0)


def lost_spans(gateway: Part) -> float:
    page = httpx.get(f"{gateway.url}/metrics").text
    found = re.search(r'^ace_records_dropped_total\{sink="spans"\} (\S+)$', page, re.MULTILINE)
    return float(found[1]) if found else 0.0
