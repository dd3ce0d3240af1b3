"""off equals asking the backend directly: raw sockets, a real model server, headers included.

Only what differs between any two runs of one server is blotted out: ids, clocks and measured times.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.fakes.processes import Stack
from tests.fakes.raw_http import Answer, ask, get, post

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DIFFERS_BETWEEN_RUNS = re.compile(
    rb'"id":"[^"]*"|"created":\d+|"(?:\w+_ms|tokens_per_second)":[\d.e+-]+|"cached_tokens":\d+'
)


def port(url: str) -> int:
    return int(url.rpartition(":")[2])


def blotted(answer: Answer) -> tuple[int, list[tuple[str, str]], bytes, bool]:
    status, headers, body, whole = answer.end_to_end
    stable = [(n, "" if n in ("date", "content-length") else v) for n, v in headers]
    return status, stable, DIFFERS_BETWEEN_RUNS.sub(b"*", body), whole


CHAT = {"messages": [{"role": "user", "content": "one two one two é €"}], "max_tokens": 12, "temperature": 0}
TEXT = {"prompt": "one two one two", "max_tokens": 12, "temperature": 0.8, "seed": 7}
REQUESTS = {
    "chat": ("/v1/chat/completions", CHAT),
    "chat streamed": ("/v1/chat/completions", CHAT | {"stream": True}),
    "chat streamed with usage": (
        "/v1/chat/completions",
        CHAT | {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True},
    ),
    "completion": ("/v1/completions", TEXT | {"logprobs": 2}),
    "completion streamed": ("/v1/completions", TEXT | {"stream": True}),
    "several prompts": ("/v1/completions", TEXT | {"prompt": ["one two", "three"]}),
    "token ids": ("/v1/completions", TEXT | {"prompt": [5, 6, 7, 8]}),
    "refused": ("/v1/chat/completions", CHAT | {"n": 3}),
    "wrong type": ("/v1/chat/completions", CHAT | {"messages": "hello"}),
    "unknown field": ("/v1/chat/completions", CHAT | {"x_future": {"a": [1, None, 1e400]}}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_off_is_byte_exact(stack: Stack, keys: dict[str, str], name: str) -> None:
    path, body = REQUESTS[name]
    request = post(
        json.dumps({"model": stack.model} | body).encode(),
        f"Authorization: Bearer {keys['off']}",
        "X-Request-Id: byte-exact",
        path=path,
    )
    through = ask(port(stack.gateway.url), request)
    direct = ask(port(stack.backend.url), request)
    assert blotted(through) == blotted(direct)
    assert through.header("x-request-id") == "byte-exact"
    assert through.whole


def test_a_route_that_is_only_passed_through_is_byte_exact(stack: Stack, keys: dict[str, str]) -> None:
    request = get("/v1/no-such-route", f"Authorization: Bearer {keys['off']}")
    through, direct = ask(port(stack.gateway.url), request), ask(port(stack.backend.url), request)
    assert direct.status == 404
    assert blotted(through) == blotted(direct)
