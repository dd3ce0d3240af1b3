"""kill -9 of a part: what clients notice, and what records and metrics say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.fakes.processes import Stack, until
from tests.integration.conftest import POLICY
from tests.integration.test_first_light import ask, text_of

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def stack(tiny_model: Path, tmp_path: Path) -> Iterator[Stack]:
    """Parts that a test may kill."""
    with Stack(tmp_path, model=str(tiny_model), policy=POLICY) as running:
        yield running


@pytest.fixture
def keys(stack: Stack) -> dict[str, str]:
    """An API key for each mode."""
    return {mode: stack.key(mode) for mode in ("off", "shadow", "prod")}


def test_a_killed_runner_is_noticed_by_no_client_and_visible_to_operators(
    stack: Stack, keys: dict[str, str]
) -> None:
    text = text_of(ask(stack, keys["shadow"], "before"))
    assert stack.stage_of("before")["action"] == "would_speculate"
    stack.runner.kill()
    for turn in range(3):
        assert text_of(ask(stack, keys["shadow"], f"after-{turn}")) == text
        assert text_of(ask(stack, keys["prod"], f"prod-after-{turn}")) == text
        stage = stack.stage_of(f"after-{turn}")
        assert (stage["action"], stage["reason"]) == ("skip", "runner_unavailable")
        assert stack.stage_of(f"prod-after-{turn}")["action"] == "speculate"
    page = httpx.get(f"{stack.gateway.url}/metrics").text
    (skipped,) = [
        line
        for line in page.splitlines()
        if line.startswith("ace_shadow_skipped_total{") and 'reason="runner_unavailable"' in line
    ]
    assert float(skipped.rpartition(" ")[2]) == 3
    stack.runner.start_again()
    until(lambda: _measured_again(stack, keys), "shadow measured by the runner that came back")


def _measured_again(stack: Stack, keys: dict[str, str]) -> bool:
    request_id = f"again-{httpx.get(f'{stack.gateway.url}/healthz').elapsed.total_seconds()}"
    ask(stack, keys["shadow"], request_id)
    return stack.stage_of(request_id)["action"] == "would_speculate"


@pytest.mark.parametrize("mode", ["off", "shadow", "prod"])
def test_a_backend_killed_in_a_stream_is_an_error_event_and_never_done(
    stack: Stack, keys: dict[str, str], mode: str
) -> None:
    asked = {
        "model": stack.model,
        "messages": [{"role": "user", "content": "one two three"}],
        "max_tokens": 450,
        "stream": True,
        "ignore_eos": True,
    }
    headers = {"authorization": f"Bearer {keys[mode]}", "x-request-id": f"cut-{mode}"}
    received = ""
    with httpx.stream(
        "POST", f"{stack.gateway.url}/v1/chat/completions", json=asked, headers=headers, timeout=60
    ) as answer:
        for text in answer.iter_text():
            if not received:
                stack.backend.kill()
            received += text
    assert '"error"' in received.rstrip().splitlines()[-1]
    assert "[DONE]" not in received
    if mode != "off":
        assert stack.stage_of(f"cut-{mode}")["action"] in ("skip", "speculate")
    page = httpx.get(f"{stack.gateway.url}/metrics").text
    assert 'ace_truncated_streams_total{backend="embedded"} 1.0' in page


def test_the_official_client_raises_when_the_backend_is_killed_in_a_stream(
    stack: Stack, keys: dict[str, str]
) -> None:
    client = openai.OpenAI(base_url=f"{stack.gateway.url}/v1", api_key=keys["off"], max_retries=0)
    stream = client.chat.completions.create(
        model=stack.model,
        messages=[{"role": "user", "content": "one two three"}],
        max_tokens=450,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(stream)
    stack.backend.kill()
    with client, stream, pytest.raises(openai.APIError):
        list(stream)


def test_a_backend_that_is_gone_is_a_clear_error_and_comes_back_by_itself(
    stack: Stack, keys: dict[str, str]
) -> None:
    stack.backend.kill()
    until(
        lambda: stack.admin.get("/backends/embedded").json()["state"] == "down", "the backend shown as down"
    )
    with pytest.raises(openai.InternalServerError) as refusal:
        ask(stack, keys["prod"], "while-down")
    assert refusal.value.status_code == 503
    assert refusal.value.code == "no_backend_up"
    stack.backend.start_again()
    until(lambda: stack.admin.get("/backends/embedded").json()["state"] == "up", "the backend shown as up")
    assert text_of(ask(stack, keys["prod"], "back"))
