"""Day one on a stock vLLM, registered by its address alone: acceptance by workload, and no byte changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.demo.prompts import WORKLOADS, Prompt, load_prompts
from gateway.shadow.tokenize import FileTokenizers
from tests.vllm.conftest import Plain

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.vllm]

TOKENS = 40
ROUTES = ("/v1/chat/completions", "/v1/completions")
PROMPTS = load_prompts(1)


@dataclass(frozen=True)
class Asked:
    """One answer as the official client got it, with the engine's own counts."""

    request_id: str
    workload: str
    prompt_tokens: int
    completion_tokens: int


def ask(plain: Plain, prompt: Prompt, *, chat: bool, stream: bool, **changes: Any) -> Asked:
    """One request of a workload, named after what it is."""
    name = f"{prompt.workload}-{'chat' if chat else 'text'}-{'stream' if stream else 'whole'}"
    asked: dict[str, Any] = {
        "model": plain.model,
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": stream,
        "extra_headers": {"x-request-id": name, "x-ace-workload": prompt.workload},
    }
    asked |= {"stream_options": {"include_usage": True}} if stream else {}
    asked |= {"messages": [{"role": "user", "content": prompt.text}]} if chat else {"prompt": prompt.text}
    create = plain.client.chat.completions.create if chat else plain.client.completions.create
    answer: Any = create(**(asked | changes))
    usage = [*answer][-1].usage if stream else answer.usage
    return Asked(name, prompt.workload, usage.prompt_tokens, usage.completion_tokens)


@pytest.fixture(scope="module")
def traffic(plain: Plain) -> list[Asked]:
    """A prompt of each workload, as chat and as completion, streamed and not."""
    return [
        ask(plain, prompt, chat=chat, stream=stream)
        for prompt in PROMPTS
        for chat in (True, False)
        for stream in (True, False)
    ]


@pytest.fixture(scope="module")
def stages(plain: Plain, traffic: list[Asked]) -> Mapping[str, dict[str, Any]]:
    """What each request of the traffic has left behind."""
    return {asked.request_id: plain.front.stage_of(asked.request_id) for asked in traffic}


def test_a_stock_server_is_a_plain_one(plain: Plain) -> None:
    shown = plain.front.admin.get("/backends/plain").json()
    findings = {finding["capability"]: finding["support"] for finding in shown["findings"]}
    assert (shown["state"], shown["kind"], findings["in_engine"]) == ("up", "openai", "no")
    assert findings["tokenize"] == "yes"


def test_every_answer_is_measured_or_says_why_not(stages: Mapping[str, dict[str, Any]]) -> None:
    """Left out is an answer that was generated in other ids than its text is spelled in."""
    outcomes = Counter((stage["action"], stage["reason"]) for stage in stages.values())
    assert set(outcomes) <= {("would_speculate", None), ("skip", "tokenizer_mismatch")}
    assert outcomes["would_speculate", None] >= 0.8 * len(stages)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_workload_has_its_acceptance(
    plain: Plain, stages: Mapping[str, dict[str, Any]], workload: str
) -> None:
    assert len(stages) == 4 * len(WORKLOADS)
    buckets = plain.front.admin.get("/summary").json()["buckets"]
    (bucket,) = [one for one in buckets if one["workload"] == workload and one["action"] == "would_speculate"]
    assert (bucket["backend"], bucket["drafter"], bucket["n"] >= 2) == ("plain", "ngram", True)
    assert bucket["draft_tokens"] > 0
    assert 0 <= bucket["acceptance_rate"] <= 1


def test_copying_is_accepted_more_often_than_inventing(stages: Mapping[str, dict[str, Any]]) -> None:
    accepted = {
        workload: sum(
            stage["accepted_tokens"] or 0 for name, stage in stages.items() if name.startswith(workload)
        )
        for workload in ("rag", "creative")
    }
    assert accepted["rag"] > accepted["creative"]


def test_counts_are_the_engines_own(traffic: list[Asked], stages: Mapping[str, dict[str, Any]]) -> None:
    measured = [asked for asked in traffic if stages[asked.request_id]["action"] == "would_speculate"]
    assert measured
    for asked in measured:
        stage = stages[asked.request_id]
        assert (stage["prompt_tokens"], stage["completion_tokens"]) == (
            asked.prompt_tokens,
            asked.completion_tokens,
        )
        assert stage["profile"] == "runner"


def test_no_request_is_edited(plain: Plain, traffic: list[Asked]) -> None:
    for route in ROUTES:
        sent = Counter(request.body for request in plain.to_gateway.requests(route))
        arrived = Counter(request.body for request in plain.to_server.requests(route))
        assert len(sent) >= len(traffic) / 2
        # What the probe asked is the only thing that no client sent.
        assert sent - arrived == Counter()
        assert all(plain.model.encode() in body for body in arrived)
        assert not any(b"ace_" in body or b"return_token_ids" in body for body in sent)


SKIPPED: dict[str, tuple[dict[str, Any], str]] = {
    "two choices": ({"n": 2, "temperature": 0.7}, "ids_not_recoverable"),
    "a stop string": ({"stop": ["a", "e", "o"]}, "ids_not_recoverable"),
    "a stream without usage": ({"stream": True}, "no_usage"),
}


@pytest.mark.parametrize(("changes", "reason"), SKIPPED.values(), ids=SKIPPED.keys())
def test_what_cannot_be_measured_says_why(plain: Plain, changes: dict[str, Any], reason: str) -> None:
    name = f"skipped-{sorted(changes)[0]}"
    asked: dict[str, Any] = {
        "model": plain.model,
        "messages": [{"role": "user", "content": "Say something about the sea."}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "extra_headers": {"x-request-id": name},
    }
    answer: Any = plain.client.chat.completions.create(**(asked | changes))
    if changes.get("stream"):
        list(answer)
    stage = plain.front.stage_of(name)
    assert (stage["action"], stage["reason"]) == ("skip", reason)


def test_tools_that_a_stock_server_refuses_are_refused_in_its_own_words(plain: Plain) -> None:
    clock: Any = {"name": "clock", "parameters": {"type": "object", "properties": {}}}
    with pytest.raises(openai.BadRequestError, match="--tool-call-parser"):
        plain.client.chat.completions.create(
            model=plain.model,
            messages=[{"role": "user", "content": "What time is it?"}],
            tools=[{"type": "function", "function": clock}],
            extra_headers={"x-request-id": "tools"},
        )
    stage = plain.front.stage_of("tools")
    assert (stage["action"], stage["reason"], stage["workload"]) == ("skip", "backend_error", "structured")


def test_log_probabilities_change_no_measurement(plain: Plain, stages: Mapping[str, dict[str, Any]]) -> None:
    """BR-B08."""
    prompt = PROMPTS[0]
    with_logprobs = {"logprobs": True, "top_logprobs": 5, "extra_headers": {"x-request-id": "logprobs"}}
    ask(plain, prompt, chat=True, stream=False, **with_logprobs)
    stage, plainly = plain.front.stage_of("logprobs"), stages[f"{prompt.workload}-chat-whole"]
    same = ("action", "reason", "draft_tokens", "accepted_tokens", "steps", "passes")
    assert {name: stage[name] for name in same} == {name: plainly[name] for name in same}


def payloads(prompt: Prompt, model: str) -> list[dict[str, Any]]:
    turns = [{"role": "user", "content": prompt.text}]
    return [
        {"model": model, "prompt": prompt.text, "add_special_tokens": False},
        {"model": model, "prompt": prompt.text},
        {"model": model, "messages": turns, "add_generation_prompt": True},
        {"model": model, "messages": [{"role": "system", "content": "Be brief."}, *turns]},
        {
            "model": model,
            "messages": [*turns, {"role": "assistant", "content": "It is"}],
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
        {"model": model, "messages": [{"role": "user", "content": [{"type": "text", "text": prompt.text}]}]},
    ]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_models_files_give_the_ids_that_the_server_gives(
    plain: Plain, demo_folder: Path, workload: str
) -> None:
    by_files = FileTokenizers()
    for prompt in (prompt for prompt in load_prompts() if prompt.workload == workload):
        for payload in payloads(prompt, plain.model):
            reply = httpx.post(f"{plain.url}/tokenize", json=payload).raise_for_status()
            assert by_files(str(demo_folder), payload) == tuple(reply.json()["tokens"]), payload


def test_registered_files_measure_what_the_servers_tokenizer_measures(
    plain: Plain, demo_folder: Path, stages: Mapping[str, dict[str, Any]]
) -> None:
    plain.front.admin.delete("/backends/plain").raise_for_status()
    registered = plain.front.register(
        "by-files", plain.to_server.url, kind="openai", tokenizer=str(demo_folder)
    )
    assert registered["tokenizer"] == str(demo_folder)
    asked_before = len(plain.to_server.requests("/tokenize"))
    prompt = PROMPTS[0]
    ask(plain, prompt, chat=True, stream=True, extra_headers={"x-request-id": "by-files"})
    stage, before = plain.front.stage_of("by-files"), stages[f"{prompt.workload}-chat-stream"]
    same = ("action", "reason", "prompt_tokens", "completion_tokens", "draft_tokens", "accepted_tokens")
    assert {name: stage[name] for name in same} == {name: before[name] for name in same}
    assert len(plain.to_server.requests("/tokenize")) == asked_before
