from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import orjson
import pytest

from gateway.proxy.json_calls import ids_in, json_call, read_object


class Reply:
    """An answer that comes in pieces of four bytes, and counts those that were read."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.read = 0

    async def chunks(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._body), 4):
            self.read += 1
            yield self._body[start : start + 4]


async def read(reply: Reply, limit: int = 100) -> dict[str, Any] | None:
    return await read_object(cast(Any, reply), limit=limit)


def test_a_call_says_that_it_sends_json_and_wants_it_uncompressed() -> None:
    call = json_call("/tokenize", {"prompt": "x"})
    assert (call.method, call.target, orjson.loads(call.body)) == ("POST", "/tokenize", {"prompt": "x"})
    assert dict(call.headers)["content-type"] == dict(call.headers)["accept"] == "application/json"
    assert dict(call.headers)["accept-encoding"] == "identity"


async def test_an_object_is_put_together_from_its_pieces() -> None:
    assert await read(Reply(b'{"tokens": [1, 2]}')) == {"tokens": [1, 2]}


@pytest.mark.parametrize("body", [b"", b"[1, 2]", b'{"cut": ', b"<html>", b"\xff\xfe"])
async def test_any_other_body_is_none(body: bytes) -> None:
    assert await read(Reply(body)) is None


async def test_nothing_is_read_beyond_the_limit() -> None:
    reply = Reply(orjson.dumps({"tokens": list(range(1000))}))
    assert await read(reply, limit=40) is None
    assert reply.read == 11


@pytest.mark.parametrize("value", [None, "12", {"a": 1}, [1, -1], [1, "2"], [1, True], [1.0]])
def test_what_is_no_list_of_ids_is_none(value: object) -> None:
    assert ids_in(value) is None
