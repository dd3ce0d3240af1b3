from __future__ import annotations

import httpx

from tests.fakes.byte_tap import ByteTap
from tests.fakes.raw_http import RawClient, post
from tests.fakes.upstream import Conversation, Upstream

PIECES = (b"data: \xf0\x9f", b"\x98\x80\n\n", b"data: [DONE]\n\n")


def test_bytes_pass_both_ways_as_they_are_and_requests_are_kept() -> None:
    body = b'{"model" : "m" }\r\n\r\n'
    with Upstream(lambda c: c.stream(*PIECES)) as upstream, ByteTap(upstream.port) as tap:
        with httpx.Client(base_url=tap.url) as client:
            for number in range(2):
                answer = client.post("/v1/chat/completions", content=body + b"%d" % number)
                assert answer.content == b"".join(PIECES)
            client.post("/tokenize", content=b"{}")
        bodies = [request.body for request in upstream.requests]
    assert [request.body for request in tap.requests("/v1/chat/completions")] == bodies[:2]
    assert [(request.method, request.body) for request in tap.requests("/tokenize")] == [("POST", b"{}")]


def test_a_client_that_leaves_is_gone_for_the_server_too() -> None:
    with Upstream(Conversation.wait_for_hang_up) as upstream, ByteTap(upstream.port) as tap:
        with RawClient(int(tap.url.rpartition(":")[2])) as client:
            client.send(post(b"{}"))
            upstream.next_request()
        assert upstream.requests[0].hung_up.wait(10)
