"""The contract of every dialect: a decision is said where it can be, and nothing else changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.fleet.model import EngineKind
from gateway.policy.model import Action, Decision, Facts, Mode
from gateway.proxy.dialects import DIALECTS, Dialect
from gateway.proxy.intake import EDITABLE, InferenceRequest

SAID_NOTHING = (Action.PASS, Action.WOULD_SPECULATE, Action.SKIP, Action.BYPASS)

every_dialect = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS.keys())


def request_of(tenant: str = "anonymous", **fields: object) -> InferenceRequest:
    document: dict[str, Any] = {"model": "m1", **fields}
    return InferenceRequest(
        method="POST",
        target="/v1/completions",
        headers=(),
        body=json.dumps(document).encode(),
        facts=Facts(stream=document.get("stream") is True, tenant=tenant),
        editable={name: document[name] for name in EDITABLE if name in document},
    )


def decision_of(
    action: Action, executor: str | None = "in_engine", drafter: str | None = "ngram"
) -> Decision:
    return Decision(mode=Mode.PROD, action=action, rule="r", executor=executor, drafter=drafter, k=4)


def said(body: bytes) -> Mapping[str, Any]:
    parsed: dict[str, Any] = json.loads(body)
    return parsed


def test_every_engine_kind_has_a_dialect() -> None:
    assert set(DIALECTS) == set(EngineKind)


@every_dialect
@pytest.mark.parametrize("action", SAID_NOTHING)
def test_a_decision_that_asks_for_nothing_gives_the_same_bytes(dialect: Dialect, action: Action) -> None:
    request = request_of(stream=True, vllm_xargs={"mine": 1}, stream_options=None)
    spelling = dialect(request, decision_of(action, executor=None))
    assert spelling.body is request.body
    assert not spelling.edited
    assert not spelling.hides_usage


@every_dialect
@pytest.mark.parametrize("action", Action)
def test_a_clients_ace_words_are_never_passed_on(dialect: Dialect, action: Action) -> None:
    request = request_of(vllm_xargs={"ace_mode": "shadow", "ace_k": 9, "ace_new": 1, "mine": 1})
    xargs = said(dialect(request, decision_of(action)).body)["vllm_xargs"]
    assert xargs["mine"] == 1
    assert "ace_new" not in xargs
    assert xargs.get("ace_mode") != "shadow"
    assert xargs.get("ace_k") != 9


@every_dialect
@pytest.mark.parametrize(
    ("action", "xargs"),
    [(Action.SPECULATE, {"ace_mode": "prod", "ace_k": 4}), (Action.CONTROL, {"ace_mode": "off"})],
)
def test_speculation_and_control_are_said_aloud_and_ask_for_usage(
    dialect: Dialect, action: Action, xargs: Mapping[str, object]
) -> None:
    spelling = dialect(request_of(stream=True), decision_of(action))
    assert said(spelling.body) == {
        "model": "m1",
        "stream": True,
        "vllm_xargs": xargs,
        "stream_options": {"include_usage": True},
    }
    assert spelling.edited
    assert spelling.hides_usage


@every_dialect
@pytest.mark.parametrize(
    ("drafter", "words"),
    [
        ("ngram", {}),
        ("draft_model", {"ace_drafter": "draft_model"}),
        ("suffix", {"ace_drafter": "suffix", "ace_tenant": "search"}),
    ],
)
def test_another_drafter_is_named_and_the_tenant_only_to_one_that_learns(
    dialect: Dialect, drafter: str, words: Mapping[str, object]
) -> None:
    request = request_of(tenant="search", vllm_xargs={"ace_tenant": "another", "ace_drafter": "egale"})
    speculated = dialect(request, decision_of(Action.SPECULATE, drafter=drafter))
    assert said(speculated.body)["vllm_xargs"] == {"ace_mode": "prod", "ace_k": 4, **words}
    control = dialect(request, decision_of(Action.CONTROL, drafter=drafter))
    assert said(control.body)["vllm_xargs"] == {"ace_mode": "off"}


@every_dialect
@pytest.mark.parametrize(
    ("given", "sent", "hidden"),
    [
        (None, {"include_usage": True}, True),
        ({}, {"include_usage": True}, True),
        ({"include_usage": False, "x": 1}, {"include_usage": True, "x": 1}, True),
        ({"continuous_usage_stats": True}, {"include_usage": True, "continuous_usage_stats": False}, True),
        ({"include_usage": True}, {"include_usage": True}, False),
        ("wrong", "wrong", False),
    ],
)
def test_usage_is_asked_for_once_and_only_where_the_client_did_not(
    dialect: Dialect, given: object, sent: object, hidden: bool
) -> None:
    spelling = dialect(request_of(stream=True, stream_options=given), decision_of(Action.SPECULATE))
    assert said(spelling.body)["stream_options"] == sent
    assert spelling.hides_usage is hidden


@every_dialect
def test_an_answer_in_one_piece_has_its_usage_anyway(dialect: Dialect) -> None:
    spelling = dialect(request_of(), decision_of(Action.SPECULATE))
    assert "stream_options" not in said(spelling.body)
    assert not spelling.hides_usage


@every_dialect
def test_a_decision_for_another_executor_is_not_spelled(dialect: Dialect) -> None:
    request = request_of()
    assert dialect(request, decision_of(Action.SPECULATE, executor="replica")).body is request.body


@every_dialect
def test_control_of_a_loop_asks_a_stream_for_its_usage_and_nothing_else(dialect: Dialect) -> None:
    spelling = dialect(request_of(stream=True), decision_of(Action.CONTROL, "gateway_loop"))
    assert said(spelling.body) == {
        "model": "m1", "stream": True, "stream_options": {"include_usage": True}
    }  # fmt: skip
    assert spelling.edited
    assert spelling.hides_usage


@every_dialect
@pytest.mark.parametrize("fields", [{}, {"stream": True, "stream_options": {"include_usage": True}}])
def test_control_of_a_loop_leaves_alone_what_says_its_usage_anyway(
    dialect: Dialect, fields: Mapping[str, object]
) -> None:
    request = request_of(**fields)  # type: ignore[arg-type]
    spelling = dialect(request, decision_of(Action.CONTROL, "gateway_loop"))
    assert spelling.body is request.body
    assert not spelling.edited
