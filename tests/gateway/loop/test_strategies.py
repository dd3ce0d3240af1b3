from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gateway.errors import BackendError, BackendHungUp, BackendUnreachable
from gateway.loop.strategies import LONGEST_CONTEXT, STRATEGIES, Choices, Strategy, TargetAsk
from gateway.proxy.upstream import BackendPool, Timeouts
from tests.fakes.byte_target import END, TURN, ByteTarget, ids_of
from tests.fakes.upstream import Conversation, Upstream
from tests.gateway.proxy.harness import backend_at

ASK = TargetAsk(model="m1", sampling={"temperature": 0.7, "top_p": 0.9}, seed=7, cache_salt="salt")
PROMPT = (*ids_of("Write."), TURN)


@pytest.fixture
async def pool() -> AsyncIterator[BackendPool]:
    pool = BackendPool(timeouts=Timeouts())
    yield pool
    await pool.close()


def made(name: str, pool: BackendPool, url: str, ask: TargetAsk = ASK) -> Strategy:
    return STRATEGIES[name](pool=pool, backend=backend_at(url, credential=None), ask=ask)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("drafted", ["", "b", "bcx", "bcde"])
async def test_it_says_what_the_target_chooses_with_and_without_the_draft(
    name: str, drafted: str, byte_target: tuple[ByteTarget, str], pool: BackendPool
) -> None:
    target, url = byte_target
    target.reset(ids_of("abcd"))
    context, draft = (*PROMPT, *ids_of("a")), ids_of(drafted)
    choices = await made(name, pool, url).choices(context, draft)
    expected = [target.choice([*context, *draft[:taken]]) for taken in range(len(draft) + 1)]
    assert list(choices.ids) == expected
    assert list(choices.ends) == [token == END for token in expected]
    assert len(target.asked) == 1


@pytest.mark.parametrize("name", STRATEGIES)
async def test_every_call_repeats_how_the_client_wants_tokens_chosen(
    name: str, byte_target: tuple[ByteTarget, str], pool: BackendPool
) -> None:
    target, url = byte_target
    target.reset(ids_of("abcd"))
    await made(name, pool, url).choices(PROMPT, ids_of("ab"))
    (body,) = target.calls("verify")
    stated = {"model": "m1", "temperature": 0.7, "top_p": 0.9, "seed": 7, "cache_salt": "salt"}
    assert body.items() >= (stated | {"max_tokens": 1}).items()
    assert "stream" not in body


@pytest.mark.parametrize("name", STRATEGIES)
async def test_what_the_client_did_not_say_is_not_said(
    name: str, byte_target: tuple[ByteTarget, str], pool: BackendPool
) -> None:
    target, url = byte_target
    target.reset(ids_of("abcd"))
    await made(name, pool, url, TargetAsk(model="m1")).choices(PROMPT, ())
    assert not {"temperature", "top_p", "seed", "cache_salt"} & target.asked[0][1].keys()


def test_every_strategy_has_a_limit() -> None:
    assert LONGEST_CONTEXT.keys() == STRATEGIES.keys()


def choice(index: object = 0, ids: object = (5,), **more: Any) -> dict[str, Any]:
    return {"index": index, "token_ids": ids, "finish_reason": "length", "text": "x", **more}


UNUSABLE: dict[str, list[object]] = {
    "fanout": [
        [], {}, {"choices": None}, {"choices": [choice()]}, {"choices": [choice(), "x"]},
        {"choices": [choice(), choice()]}, {"choices": [choice(), choice(2)]},
        {"choices": [choice(), choice(True)]}, {"choices": [choice(), choice(1, ids=None)]},
        {"choices": [choice(), choice(1, ids=[])]}, {"choices": [choice(), choice(1, ids=[-1])]},
        # The prompt comes back before the answer (BR-B05).
        {"choices": [choice(), choice(1, ids=[*PROMPT, 5])]}, {"choices": [choice(), choice(1, ids=["5"])]},
        {"choices": [choice(), choice(1), choice(2)]},
    ],
    "scored": [
        [], {}, {"ace_score": None}, {"ace_score": {"choices": [1, 2]}},
        {"ace_score": {"choices": [1], "ends": [False]}}, {"ace_score": {"choices": [1, 2], "ends": [False]}},
        {"ace_score": {"choices": [1, None], "ends": [False, False]}},
        {"ace_score": {"choices": [1, 2], "ends": [False, 1]}},
        {"ace_score": {"choices": [1, 2], "ends": {}}},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "answer"), [(name, answer) for name, answers in UNUSABLE.items() for answer in answers]
)
async def test_anything_but_one_choice_for_each_position_is_an_error(
    name: str, answer: object, pool: BackendPool
) -> None:
    with (
        Upstream(lambda conversation: conversation.answer(json.dumps(answer).encode())) as upstream,
        pytest.raises(BackendError),
    ):
        await made(name, pool, upstream.url).choices(PROMPT, (1,))


BROKEN: dict[str, tuple[Callable[[Conversation], object], type[BackendError]]] = {
    "refused": (lambda conversation: conversation.answer(status="400 Bad Request"), BackendError),
    "no JSON": (lambda conversation: conversation.answer(b"<html>"), BackendError),
    "no HTTP": (lambda conversation: conversation.send(b"SSH-2.0\r\n\r\n"), BackendError),
    "cut": (lambda conversation: conversation.close(), BackendError),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(("script", "kind"), BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_target_is_an_error_of_its_kind(
    name: str, script: Callable[[Conversation], object], kind: type[BackendError], pool: BackendPool
) -> None:
    with Upstream(script) as upstream, pytest.raises(kind) as raised:
        await made(name, pool, upstream.url).choices(PROMPT, (1,))
    assert "b1" in str(raised.value)


@pytest.mark.parametrize("name", STRATEGIES)
async def test_a_target_that_is_away_is_unreachable(name: str, pool: BackendPool) -> None:
    with pytest.raises(BackendUnreachable):
        await made(name, pool, "http://127.0.0.1:9").choices(PROMPT, ())


async def test_a_kept_connection_that_has_closed_is_replaced_once(pool: BackendPool) -> None:
    def script(conversation: Conversation) -> None:
        if conversation.request.connection == 0 and len(upstream.requests) > 1:
            conversation.close()
        else:
            conversation.answer(json.dumps({"choices": [choice()]}).encode())

    with Upstream(script) as upstream:
        fanout = made("fanout", pool, upstream.url)
        answers = [await fanout.choices(PROMPT, ()) for _ in range(2)]
    assert answers == [Choices(ids=(5,), ends=(False,), silent=(False,))] * 2
    assert upstream.connections == 2


async def test_one_that_closes_again_is_an_error(pool: BackendPool) -> None:
    def script(conversation: Conversation) -> None:
        if len(upstream.requests) > 1:
            conversation.close()
        else:
            conversation.answer(json.dumps({"choices": [choice()]}).encode())

    with Upstream(script) as upstream:
        fanout = made("fanout", pool, upstream.url)
        await fanout.choices(PROMPT, ())
        with pytest.raises(BackendError) as raised:
            await fanout.choices(PROMPT, ())
    assert not isinstance(raised.value, BackendHungUp)
    assert len(upstream.requests) == 3


async def test_the_backends_own_key_is_sent(pool: BackendPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARGET_KEY", "sk-TEST-TARGET")
    with Upstream(
        lambda conversation: conversation.answer(json.dumps({"choices": [choice()]}).encode())
    ) as up:
        backend = backend_at(up, credential="env:TARGET_KEY")
        await STRATEGIES["fanout"](pool=pool, backend=backend, ask=ASK).choices(PROMPT, ())
        assert up.requests[0].values("authorization") == ["Bearer sk-TEST-TARGET"]


async def test_fanout_tells_which_choices_have_no_text_of_their_own(pool: BackendPool) -> None:
    """And takes the choices by their index, in whatever order they come."""
    answer = {"choices": [choice(1, ids=[6], text="", finish_reason="stop"), choice(0, text="x")]}
    with Upstream(lambda conversation: conversation.answer(json.dumps(answer).encode())) as upstream:
        choices = await made("fanout", pool, upstream.url).choices(PROMPT, (5,))
    assert choices == Choices(ids=(5, 6), ends=(False, True), silent=(False, True))
