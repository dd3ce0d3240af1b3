from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.fakes.byte_target import BEGIN, END, SPECIAL, TURN, ByteTarget, ids_of
from tests.fakes.served import served


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[ByteTarget, httpx.Client]]:
    target = ByteTarget()
    with served(target.app) as url, httpx.Client(base_url=url, trust_env=False) as client:
        yield target, client


@pytest.fixture
def target(server: tuple[ByteTarget, httpx.Client]) -> ByteTarget:
    server[0].reset((*ids_of("日"), SPECIAL, *ids_of("ab")))
    return server[0]


@pytest.fixture
def client(server: tuple[ByteTarget, httpx.Client]) -> httpx.Client:
    return server[1]


def complete(client: httpx.Client, **body: Any) -> Any:
    return client.post("/v1/completions", json={"prompt": "x", **body}).raise_for_status().json()


def test_it_continues_only_what_it_would_have_said(target: ByteTarget) -> None:
    prompt = [BEGIN, TURN]
    assert target.choice(prompt) == target.answer[0]
    assert target.choice([*prompt, *target.answer]) == END
    assert target.choice([*prompt, *target.answer, END]) != END
    assert target.choice([*prompt, 5]) not in (target.answer[0], target.answer[1])


def test_plain_decoding_is_an_engines(target: ByteTarget, client: httpx.Client) -> None:
    answer = complete(client)
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("日ab", "stop")
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}
    assert complete(client, max_tokens=2)["choices"][0]["text"] == "\ufffd"
    stopped = complete(client, stop=["a"])
    assert (stopped["choices"][0]["text"], stopped["choices"][0]["stop_reason"]) == ("日", "a")
    assert stopped["usage"]["completion_tokens"] == 5


def test_a_stream_says_the_same_with_ids_when_asked(target: ByteTarget, client: httpx.Client) -> None:
    body = {"prompt": [TURN], "stream": True, "return_token_ids": True}
    lines = [line for line in client.post("/v1/completions", json=body).text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    choices = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
    assert [choice["token_ids"] for choice in choices] == [[token] for token in (*target.answer, END)]
    assert "".join(choice["text"] for choice in choices) == "日ab"


def test_a_stream_can_break_off(target: ByteTarget, client: httpx.Client) -> None:
    target.breaks_off = 4
    text = client.post("/v1/completions", json={"prompt": [TURN], "stream": True}).text
    assert "日" in text
    assert "[DONE]" not in text


def test_it_verifies_in_both_ways(target: ByteTarget, client: httpx.Client) -> None:
    draft = [target.answer[0], 5]
    prompts = [[TURN], [TURN, draft[0]], [TURN, *draft]]
    expected = [target.choice(prompt) for prompt in prompts]
    fanned = complete(client, prompt=prompts, max_tokens=1, return_token_ids=True)["choices"]
    by_index = sorted(fanned, key=lambda choice: int(choice["index"]))
    assert [choice["token_ids"] for choice in by_index] == [[token] for token in expected]
    scored = complete(client, prompt=[TURN, *draft], max_tokens=1, vllm_xargs={"ace_score": 2})
    assert scored["ace_score"] == {"choices": expected, "ends": [False, False, False]}
    assert [len(target.calls(kind)) for kind in ("verify", "plain")] == [2, 0]


def test_an_end_and_a_special_token_have_no_text(target: ByteTarget, client: httpx.Client) -> None:
    contexts = [[TURN, *target.answer[:3]], [TURN, *target.answer]]
    choices = complete(client, prompt=contexts, max_tokens=1)["choices"]
    by_index = sorted(choices, key=lambda choice: int(choice["index"]))
    assert [(choice["text"], choice["finish_reason"]) for choice in by_index] == [
        ("", "length"),
        ("", "stop"),
    ]


@pytest.mark.parametrize(("skips", "text"), [(False, "日<special>"), (True, "日")])
def test_it_spells_ids(target: ByteTarget, client: httpx.Client, skips: bool, text: str) -> None:
    target.skips_special = skips
    body = {"tokens": target.answer[:4], "skip_special_tokens": True}
    assert client.post("/detokenize", json=body).json() == {"prompt": text}


def test_it_can_refuse_and_miss_routes(target: ByteTarget, client: httpx.Client) -> None:
    target.refuses, target.missing = (lambda body: 429), frozenset({"/tokenize"})
    assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 429
    assert client.post("/tokenize", json={"prompt": "x"}).status_code == 404


def test_it_notices_who_leaves(target: ByteTarget, client: httpx.Client) -> None:
    async def never(path: str) -> None:
        await asyncio.Event().wait()

    target.speaks_up = never
    with pytest.raises(httpx.ReadTimeout):
        client.post("/tokenize", json={"prompt": "x"}, timeout=0.05)
    assert target.gone.get(timeout=10) == "/tokenize"
