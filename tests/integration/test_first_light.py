"""A real model answers through the gateway in off, shadow and prod, and what it leaves behind."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.fakes.processes import Stack, until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

STAGE_FIELDS = {
    "request_id", "stage", "mode", "action", "reason", "model", "backend", "rule", "drafter", "executor",
    "source", "profile", "k", "passes", "steps", "draft_tokens", "accepted_tokens", "accepted_by_position",
    "acceptance_rate", "mean_acceptance_length", "completion_tokens", "tokens_per_second", "multiplier",
    "control_kind",
}  # fmt: skip


def ask(stack: Stack, key: str, request_id: str, **changes: Any) -> list[Any]:
    """The chunks of one streamed chat answer, read by the official client."""
    client = openai.OpenAI(base_url=f"{stack.gateway.url}/v1", api_key=key, max_retries=0)
    asked: dict[str, Any] = {
        "model": stack.model,
        "messages": [{"role": "user", "content": "one two three one two three one two"}],
        "temperature": 0,
        "max_tokens": 48,
        "stream": True,
        "stream_options": {"include_usage": True},
        "extra_headers": {"x-request-id": request_id},
        "extra_body": {"ignore_eos": True},
    }
    with client:
        return list(client.chat.completions.create(**(asked | changes)))


def text_of(chunks: list[Any]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def test_every_mode_gives_the_same_text(stack: Stack, keys: dict[str, str]) -> None:
    texts = {mode: text_of(ask(stack, keys[mode], f"same-{mode}")) for mode in keys}
    assert texts["off"]
    assert texts == dict.fromkeys(keys, texts["off"])


def test_off_leaves_no_stage(stack: Stack, keys: dict[str, str]) -> None:
    ask(stack, keys["off"], "no-stage")
    ask(stack, keys["prod"], "a-later-stage")
    stack.stage_of("a-later-stage")
    assert stack.admin.get("/stages", params={"request_id": "no-stage"}).json()["stages"] == []


def test_prod_leaves_what_the_engine_counted(stack: Stack, keys: dict[str, str]) -> None:
    chunks = ask(stack, keys["prod"], "counted")
    stage = stack.stage_of("counted")
    assert stage.keys() >= STAGE_FIELDS
    assert (stage["stage"], stage["mode"], stage["action"]) == ("speculative_decoding", "prod", "speculate")
    assert (stage["executor"], stage["source"], stage["drafter"], stage["k"]) == (
        "in_engine", "engine", "ngram", 5,
    )  # fmt: skip
    engine = chunks[-1].model_extra["metrics"]["speculative_decoding"]
    assert stage["draft_tokens"] == engine["num_draft_tokens"] > 0
    assert stage["accepted_tokens"] == engine["num_accepted_draft_tokens"] > 0
    assert stage["acceptance_rate"] == pytest.approx(engine["draft_acceptance_rate"])
    assert stage["completion_tokens"] == chunks[-1].usage.completion_tokens == 48
    assert stage["tokens_per_second"]


def test_shadow_leaves_what_prod_would_have_counted(stack: Stack, keys: dict[str, str]) -> None:
    ask(stack, keys["prod"], "really")
    ask(stack, keys["shadow"], "would")
    really, would = stack.stage_of("really"), stack.stage_of("would")
    assert (would["mode"], would["action"], would["source"]) == ("shadow", "would_speculate", "replay")
    same = ("profile", "k", "passes", "steps", "draft_tokens", "accepted_tokens", "accepted_by_position")
    assert {name: would[name] for name in same} == {name: really[name] for name in same}


def test_shadow_shows_every_k_at_once(stack: Stack, keys: dict[str, str]) -> None:
    ask(stack, keys["shadow"], "curve")
    curve = stack.stage_of("curve")["k_curve"]
    assert isinstance(curve, dict)
    assert sorted(curve) == [str(k) for k in range(1, 9)]


def test_a_stream_without_usage_is_counted_as_such_and_not_edited(stack: Stack, keys: dict[str, str]) -> None:
    chunks = ask(stack, keys["shadow"], "unasked", stream_options=openai.omit)
    assert all(chunk.usage is None for chunk in chunks)
    stage = stack.stage_of("unasked")
    assert (stage["action"], stage["reason"]) == ("skip", "no_usage")


def test_prod_measures_a_stream_whose_client_asked_for_no_usage(stack: Stack, keys: dict[str, str]) -> None:
    chunks = ask(stack, keys["prod"], "hidden", stream_options=openai.omit)
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)
    assert stack.stage_of("hidden")["completion_tokens"] == 48


def test_an_answer_in_one_piece_is_measured_too(stack: Stack, keys: dict[str, str]) -> None:
    for mode, action in (("prod", "speculate"), ("shadow", "would_speculate")):
        answer = httpx.post(
            f"{stack.gateway.url}/v1/completions",
            json={"model": stack.model, "prompt": "one two one two one", "max_tokens": 32, "temperature": 0},
            headers={"authorization": f"Bearer {keys[mode]}", "x-request-id": f"whole-{mode}"},
        )
        assert answer.status_code == 200
        stage = stack.stage_of(f"whole-{mode}")
        assert (stage["action"], stage["completion_tokens"]) == (
            action, answer.json()["usage"]["completion_tokens"],
        )  # fmt: skip


def test_the_metrics_page_has_both_modes(stack: Stack, keys: dict[str, str]) -> None:
    for mode in ("shadow", "prod"):
        ask(stack, keys[mode], f"page-{mode}")
        stack.stage_of(f"page-{mode}")
    page = httpx.get(f"{stack.gateway.url}/metrics").text
    for mode in ("shadow", "prod"):
        assert any(
            line.startswith("ace_spec_draft_tokens_total{") and f'mode="{mode}"' in line
            for line in page.splitlines()
        )


def test_the_summary_names_every_bucket(stack: Stack, keys: dict[str, str]) -> None:
    for mode in ("shadow", "prod"):
        ask(stack, keys[mode], f"sum-{mode}")
        stack.stage_of(f"sum-{mode}")
    buckets = stack.admin.get("/summary").json()["buckets"]
    assert {bucket["mode"] for bucket in buckets} == {"shadow", "prod"}


def test_the_probe_found_the_contract(stack: Stack) -> None:
    findings = {finding["capability"]: finding["support"] for finding in stack.registered["findings"]}
    assert set(findings.values()) == {"yes"}
    possible = {executor["name"]: executor["possible"] for executor in stack.registered["executors"]}
    assert possible == {"in_engine": True, "gateway_loop": True}


def test_an_unknown_model_is_a_404_in_openais_shape(stack: Stack, keys: dict[str, str]) -> None:
    with pytest.raises(openai.NotFoundError) as refusal:
        ask(stack, keys["prod"], "unknown", model="no-such-model")
    assert refusal.value.code == "model_not_found"


def test_a_policy_change_reaches_traffic(stack: Stack, keys: dict[str, str]) -> None:
    """`mode: off` as a bare word switches off, seen on requests (BR-C07)."""
    before = stack.admin.get("/policy").json()["revision"]
    file = stack.admin.get("/policy").json()["path"]
    from pathlib import Path

    good = Path(file).read_text()
    Path(file).write_text("version: 1\nrules:\n  - {name: all, match: {tenant: prod}, mode: off}\n")
    until(lambda: stack.admin.get("/policy").json()["revision"] != before, "the new policy")
    try:
        ask(stack, keys["prod"], "switched-off")
    finally:
        Path(file).write_text(good)
        until(lambda: stack.admin.get("/policy").json()["revision"] == before, "the old policy")
    ask(stack, keys["prod"], "switched-on")
    stack.stage_of("switched-on")
    assert stack.admin.get("/stages", params={"request_id": "switched-off"}).json()["stages"] == []
