from __future__ import annotations

import json
from typing import Any, Literal

import pytest

from gateway.loop.errors import GoPlain
from gateway.loop.request import COMPLETION_TOKENS, LoopRequest, read_loop_request
from gateway.policy.model import Facts
from gateway.proxy.intake import InferenceRequest

CHAT = {"model": "m1", "messages": [{"role": "user", "content": "Write."}]}


def read(
    body: dict[str, Any] | None = None, endpoint: Literal["chat", "completions"] = "chat", **more: Any
) -> LoopRequest:
    content = json.dumps({**(CHAT if body is None else body), **more}).encode()
    facts = Facts(request_id="r", endpoint=endpoint, model="m1")
    return read_loop_request(
        InferenceRequest(method="POST", target="/", headers=(), body=content, facts=facts, editable={})
    )


def test_a_chat_request() -> None:
    asked = read(
        temperature=0.5, top_p=None, top_k=3, seed=4, cache_salt="salt", stop="x", max_tokens=5,
        stream=True, stream_options={"include_usage": True}, user="u",
    )  # fmt: skip
    assert (asked.chat, asked.stream, asked.wants_usage, asked.max_tokens) == (True, True, True, 5)
    assert asked.prompt.payload == {**CHAT, "add_generation_prompt": True}
    assert asked.ask.sampling == {"temperature": 0.5, "top_p": None, "top_k": 3}
    assert (asked.ask.seed, asked.ask.cache_salt, asked.stop) == (4, "salt", ("x",))


def test_what_is_not_said_stays_unsaid() -> None:
    asked = read()
    assert (asked.ask.sampling, asked.ask.seed, asked.ask.cache_salt) == ({}, None, None)
    assert (asked.stop, asked.stream, asked.wants_usage) == ((), False, False)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, None),
        ({"max_tokens": 3}, 3),
        ({"max_tokens": 3, "max_completion_tokens": 4}, 4),
        ({"max_tokens": 3, "max_completion_tokens": None}, 3),
    ],
)
def test_how_long_a_chat_answer_may_be(more: dict[str, Any], expected: int | None) -> None:
    assert read(**more).max_tokens == expected


def test_a_completion_that_does_not_say_how_long_it_may_be_is_short() -> None:
    asked = read({"prompt": "Write."}, "completions")
    assert asked.max_tokens == COMPLETION_TOKENS
    assert asked.prompt.payload == {"model": None, "prompt": "Write.", "add_special_tokens": True}


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2, 3]]])
def test_a_prompt_of_ids_needs_no_question(prompt: object) -> None:
    assert read({"prompt": prompt}, "completions").prompt.ids == (1, 2, 3)


@pytest.mark.parametrize(
    "more",
    [
        {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": 1.0}, {"max_tokens": "5"},
        {"max_tokens": True}, {"max_completion_tokens": 0}, {"stop": 5}, {"stop": ""}, {"stop": [""]},
        {"stop": ["x", None]}, {"stop": {"x": 1}}, {"stream": "yes"}, {"stream": 1}, {"seed": 1.5},
        {"stream_options": {"include_usage": True}}, {"stream": True, "stream_options": []},
        {"stream": True, "stream_options": {"include_usage": "yes"}}, {"cache_salt": 5},
        {"messages": None}, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    ],
)  # fmt: skip
def test_what_the_backend_would_refuse_or_read_otherwise_is_left_to_it(more: dict[str, Any]) -> None:
    with pytest.raises(GoPlain, match="judge"):
        read(**more)


@pytest.mark.parametrize("prompt", [None, ["a", "b"], [[1], [2]], [], [1, "a"], 5])
def test_so_is_a_prompt_that_is_not_one_text(prompt: object) -> None:
    with pytest.raises(GoPlain, match="judge"):
        read({"prompt": prompt}, "completions")


def test_a_refusal_quotes_nothing() -> None:
    with pytest.raises(GoPlain) as refusal:
        read(stop=["secret", 5], messages="secret")
    assert "secret" not in str(refusal.value)
