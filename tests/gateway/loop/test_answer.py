"""What a client gets of an answer that was written in a loop: plain decoding's, in plain decoding's shape."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from tests.fakes.byte_target import SPECIAL, ByteTarget, ids_of
from tests.fakes.loop_runner import LoopRunner
from tests.fakes.raw_http import RawClient, ask, post
from tests.gateway.loop.harness import K, Loop, events, outline, right_by, said
from tests.gateway.proxy.harness import PLAIN_SECONDS

USAGE = {"stream": True, "stream_options": {"include_usage": True}}
ASKED: dict[str, dict[str, Any]] = {
    "whole": {},
    "streamed": {"stream": True},
    "streamed with usage": USAGE,
    "usage refused": {"stream": True, "stream_options": {"include_usage": False}},
    "completion": {"prompt": "Write."},
    "completion by ids": {"prompt": [1, 2, 301], **USAGE},
    "length": {"max_tokens": 9, **USAGE},
    "one token": {"max_tokens": 1, **USAGE},
    "newer name of the length": {"max_tokens": None, "max_completion_tokens": 7},
    "stop string": {"stop": "two", **USAGE},
    "stop string at once": {"stop": ["o"], "prompt": "Write.", **USAGE},
    "stop string in two emissions": {"stop": ["e two o"]},
    "stop string that never comes": {"stop": ["two onf", "x"], **USAGE},
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED.keys())
def test_the_answer_is_plain_decodings(
    loop: Loop, target: ByteTarget, runner: LoopRunner, asked: dict[str, Any]
) -> None:
    runner.reset(right_by(target.answer, [3, 0, 5, 1]))
    through, plain = loop.both(**asked)
    assert through == plain
    access, stage = loop.records()
    assert (access.ending, access.action, stage.reason) == ("completed", "speculate", None)
    assert stage.accepted_tokens or stage.completion_tokens == 1
    if plain.usage:
        counted = (stage.prompt_tokens, stage.completion_tokens)
        assert counted == (plain.usage["prompt_tokens"], plain.usage["completion_tokens"])


@pytest.mark.parametrize("accepted", range(K + 1))
def test_no_character_is_cut_wherever_emissions_end(
    loop: Loop, target: ByteTarget, runner: LoopRunner, accepted: int
) -> None:
    """BR-B05: emissions of every length, so that each ends inside characters of two, three and four bytes."""
    target.reset(ids_of("日本語 é 😀 ñ"), skips_special=True)
    runner.reset(right_by(target.answer, [accepted]))
    answer = loop.ask(stream=True)
    loop.records()
    texts = [chunk["choices"][0]["delta"]["content"] for chunk in events(answer)]
    assert "".join(texts) == "日本語 é 😀 ñ"
    assert not any("\ufffd" in text for text in texts)


@pytest.mark.parametrize("place", range(K + 1))
def test_nothing_follows_an_end_that_was_drafted(
    loop: Loop, target: ByteTarget, runner: LoopRunner, place: int
) -> None:
    """BR-B06: the end at each place of a draft that goes on behind it."""
    target.reset(ids_of("a" + "b" * place))
    runner.reset(lambda answer, k: [*(*target.answer, 256, 256)[len(answer) :], 98, 98][:k])
    through, plain = loop.both(**USAGE)
    assert through == plain
    _, stage = loop.records()
    assert (stage.completion_tokens, stage.accepted_tokens) == (place + 2, min(place + 1, K))


def test_a_drafted_end_that_the_target_does_not_choose_ends_nothing(
    loop: Loop, target: ByteTarget, runner: LoopRunner
) -> None:
    runner.reset(lambda answer, k: [256] * k)
    through, plain = loop.both(**USAGE)
    assert through == plain
    assert loop.records()[1].accepted_tokens == 1  # the last, which is the answer's own


@pytest.mark.parametrize("strategy", ["fanout"], indirect=True)
def test_special_tokens_are_no_text(loop: Loop, target: ByteTarget, runner: LoopRunner) -> None:
    """With `/detokenize` spelling them out, as vLLM's does."""
    target.reset((*ids_of("a"), SPECIAL, *ids_of("日"), SPECIAL, *ids_of("b")))
    runner.reset(right_by(target.answer, [2]))
    through, plain = loop.both(**USAGE)
    assert through == plain
    assert plain.text == "a日b"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", [{}, {"prompt": "Write."}], ids=["chat", "completion"])
def test_documents_have_the_members_of_plain_ones(loop: Loop, stream: bool, prompt: dict[str, Any]) -> None:
    through, plain = loop.both_raw(stop="t", **prompt, **(USAGE if stream else {}))
    assert (through.header("content-type"), through.status) == (plain.header("content-type"), 200)
    assert said(through) == said(plain)
    assert outline(through) == outline(plain)


def test_the_request_id_is_returned_and_names_the_answer(loop: Loop) -> None:
    body = json.dumps({"model": "m1", "prompt": "W", "max_tokens": 2}).encode()
    answer = ask(loop.gateway.port, post(body, "x-request-id: mine", path="/v1/completions"))
    assert answer.header("x-request-id") == "mine"
    assert json.loads(answer.body)["id"] == "cmpl-mine"


def test_a_loop_that_ends_well_tells_the_runner_how_long_the_answer_is(
    loop: Loop, target: ByteTarget, runner: LoopRunner
) -> None:
    loop.ask()
    (conversation,) = runner.conversations
    assert conversation.over.wait(timeout=10)
    assert conversation.answer_tokens == len(conversation.answer) == len(target.answer) + 1
    assert runner.authorizations == ["Bearer ace-runner-token-of-the-tests"]


def test_a_stop_string_lets_the_runner_go_without_an_answer(loop: Loop, runner: LoopRunner) -> None:
    loop.ask(stop="two")
    (conversation,) = runner.conversations
    assert conversation.over.wait(timeout=10)
    assert conversation.answer_tokens is None


def test_what_the_runner_is_told(loop: Loop, target: ByteTarget, runner: LoopRunner) -> None:
    loop.ask(max_tokens=11)
    (conversation,) = runner.conversations
    assert conversation.start == {
        "prompt_ids": [300, *ids_of("Write."), 301],
        "drafter": "ngram",
        "profile": "runner",
        "k": K,
        "tenant": "anonymous",
        "max_tokens": 11,
        "plain_seconds_per_token": PLAIN_SECONDS,
    }


def test_every_prompt_extends_the_last_by_what_the_target_said(
    loop: Loop, target: ByteTarget, runner: LoopRunner, strategy: str
) -> None:
    """BR-B03 and BR-B04: text never becomes ids again, and the prompt's ids are `/tokenize`'s, begun once."""
    runner.reset(right_by(target.answer, [2]))
    loop.ask(chat_template_kwargs={"thinking": False}, add_generation_prompt=False)
    (tokenized,) = target.calls("/tokenize")
    assert tokenized == {
        "model": "m1",
        "messages": [{"role": "user", "content": "Write."}],
        "add_generation_prompt": False,
        "chat_template_kwargs": {"thinking": False},
    }
    prompt = [300, *ids_of("Write."), 301]
    contexts = []
    for body in target.calls("verify"):
        if strategy == "fanout":
            contexts.append(body["prompt"][0])
        else:
            contexts.append(body["prompt"][: len(body["prompt"]) - body["vllm_xargs"]["ace_score"]])
    assert len(contexts) > 3
    assert all(context.count(300) == 1 for context in contexts)
    answer = [*prompt, *target.answer]
    assert all(context == answer[: len(context)] for context in contexts)
    assert [len(context) for context in contexts] == sorted({len(context) for context in contexts})


def test_text_is_spelled_beside_the_next_call(loop: Loop, target: ByteTarget) -> None:
    """The first token's text is held up until the second call has come."""
    second_call = asyncio.Event()
    verifications = 0

    async def speaks_up(path: str) -> None:
        nonlocal verifications
        verifications += path == "/v1/completions"
        if verifications >= 2:
            second_call.set()
        elif path == "/detokenize" and verifications == 1:
            await second_call.wait()

    target.reset(target.answer, speaks_up=speaks_up)
    assert loop.both(stream=True)[0].text == "one two one two"


@pytest.mark.parametrize("strategy", ["fanout"], indirect=True)
@pytest.mark.parametrize("held", ["/tokenize", "/detokenize", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_everything_at_once(
    loop: Loop, target: ByteTarget, runner: LoopRunner, held: str, stream: bool
) -> None:
    reached = threading.Event()

    async def speaks_up(path: str) -> None:
        if path == held:
            reached.set()
            await asyncio.Event().wait()

    target.reset(target.answer, speaks_up=speaks_up)
    body = json.dumps({"model": "m1", "messages": [], "stream": stream, "max_tokens": 5}).encode()
    with RawClient(loop.gateway.port) as client:
        client.send(post(body))
        assert reached.wait(timeout=10)
    access, stage = loop.records()
    assert (access.ending, stage.reason) == ("client_left", "client_left")
    assert target.gone.get(timeout=10) == held
    assert all(conversation.over.wait(timeout=10) for conversation in runner.conversations)
