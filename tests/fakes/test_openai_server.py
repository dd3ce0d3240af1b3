from __future__ import annotations

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
