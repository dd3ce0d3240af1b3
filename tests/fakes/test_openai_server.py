from __future__ import annotations

from typing import Any

import httpx

from tests.fakes.openai_server import OpenAIServer
from tests.fakes.served import served


def test_it_goes_on_as_the_text_went_on_before() -> None:
    server = OpenAIServer()
    with served(server.app) as url:
        body = {"model": "m", "prompt": "a b c a b", "max_tokens": 3, "return_token_ids": True}
        answer = httpx.post(f"{url}/v1/completions", json=body).json()
    choice = answer["choices"][0]
    assert choice["text"] == " c a b"
    assert choice["token_ids"] == server.ids_of("c a b")
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 3}
    assert server.generated == 3
    assert server.asked == [("/v1/completions", body)]


def test_a_stream_says_what_the_whole_answer_says() -> None:
    server = OpenAIServer()
    body = {"messages": [{"role": "user", "content": "a b a"}], "max_tokens": 4}
    with served(server.app) as url:
        whole = httpx.post(f"{url}/v1/chat/completions", json=body).json()
        stream = httpx.post(f"{url}/v1/chat/completions", json=body | {"stream": True}).text
    text = whole["choices"][0]["message"]["content"]
    assert [line for line in stream.splitlines() if f'"content": "{text[:2]}' in line]
    assert stream.endswith("data: [DONE]\n\n")


def test_what_it_cannot_do_is_ignored_or_refused() -> None:
    body = {"prompt": "a", "max_tokens": 1, "return_token_ids": True}
    for strict, status in ((False, 200), (True, 400)):
        server = OpenAIServer(strict=strict).without("return_token_ids")
        with served(server.app) as url:
            reply = httpx.post(f"{url}/v1/completions", json=body)
        assert reply.status_code == status
        assert "token_ids" not in reply.text.replace("return_token_ids", "")


def test_it_wants_its_key_and_quotes_another() -> None:
    with served(OpenAIServer(key="right").app) as url:
        refused = httpx.get(f"{url}/v1/models", headers={"authorization": "Bearer wrong-key"})
        taken = httpx.get(f"{url}/v1/models", headers={"authorization": "Bearer right"})
    assert (refused.status_code, taken.status_code) == (401, 200)
    assert "wrong-key" in refused.text


def test_it_turns_ids_back_into_their_text() -> None:
    server = OpenAIServer()
    with served(server.app) as url:
        ids = httpx.post(f"{url}/tokenize", json={"prompt": "a b"}).json()["tokens"]
        assert httpx.post(f"{url}/detokenize", json={"tokens": ids}).json() == {"prompt": " a b"}


def completed(url: str, **asked: object) -> dict[str, Any]:
    body = {"prompt": "a b c a b", "max_tokens": 4, "temperature": 0, "return_token_ids": True, **asked}
    answer: dict[str, Any] = httpx.post(f"{url}/v1/completions", json=body).json()
    return answer


def ids_of(answer: dict[str, Any]) -> list[int]:
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids


def test_draws_are_keyed_by_seed_and_position() -> None:
    with served(OpenAIServer().app) as url:
        one, again, other = (ids_of(completed(url, temperature=1, seed=seed)) for seed in (7, 7, 8))
        unseeded = [ids_of(completed(url, temperature=1)) for _ in range(2)]
    assert one == again != other
    assert unseeded[0] != unseeded[1]


def test_a_score_holds_the_choices_of_plain_decoding() -> None:
    for how in ({"temperature": 0}, {"temperature": 1, "seed": 7}):
        with served(OpenAIServer().app) as url:
            plain = completed(url, **how)
            prompt, written = plain["choices"][0]["prompt_token_ids"], ids_of(plain)
            asked = {"prompt": prompt + written[:3], "max_tokens": 1, "vllm_xargs": {"ace_score": 3}}
            scored = completed(url, **how, **asked)
        assert scored["ace_score"] == {"choices": written, "ends": [False] * 4}


def test_a_penalty_keeps_it_from_copying() -> None:
    with served(OpenAIServer().app) as url:
        plain, neutral, penalised = (
            ids_of(completed(url, **fields))
            for fields in ({}, {"repetition_penalty": 1.0}, {"repetition_penalty": 1.2})
        )
    assert plain == neutral != penalised
    with served(OpenAIServer().without("neutral_defaults").app) as url:
        assert ids_of(completed(url)) == penalised
        assert ids_of(completed(url, repetition_penalty=1.0)) == plain
