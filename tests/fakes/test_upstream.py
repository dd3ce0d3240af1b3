from __future__ import annotations

import socket

import pytest

from tests.fakes.raw_http import RawClient, ask, get, post
from tests.fakes.upstream import PATIENCE_S, Conversation, Upstream


def test_what_was_received_is_kept_byte_for_byte() -> None:
    head = b"POST /v1/x?a=%20b HTTP/1.1\r\nX-Odd:  two  spaces \r\nx-odd: again\r\nContent-Length: 3\r\n\r\n"
    with Upstream() as up:
        ask(up.port, head + b"a\r\n")
        received = up.requests[0]
    assert (received.method, received.target, received.body) == ("POST", "/v1/x?a=%20b", b"a\r\n")
    assert received.header_lines == [b"X-Odd:  two  spaces ", b"x-odd: again", b"Content-Length: 3"]
    assert received.values("X-ODD") == ["two  spaces", "again"]


def test_a_chunked_request_body_is_put_together() -> None:
    with Upstream() as up:
        ask(up.port, b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n")
        assert up.requests[0].body == b"abcde"


def test_a_connection_is_kept_while_scripts_leave_it_open() -> None:
    with Upstream() as up, RawClient(up.port) as client:
        for _ in range(2):
            client.send(get("/"))
            assert client.read_answer().body == b"{}"
        assert [request.connection for request in up.requests] == [0, 0]


def test_scripts_send_any_bytes() -> None:
    def script(conversation: Conversation) -> None:
        conversation.send(b"HTTP/1.1 299 Odd\r\n", b"X: 1\r\n\r\n", b"abc")
        conversation.close()

    with Upstream(script) as up:
        answer = ask(up.port, get("/"))
    assert (answer.status, answer.headers, answer.body) == (299, [("x", "1")], b"abc")


def test_a_stream_that_is_closed_early_is_not_whole() -> None:
    def script(conversation: Conversation) -> None:
        conversation.start_stream()
        conversation.chunk(b"data: 1\n\n")
        conversation.close()

    with Upstream(script) as up:
        answer = ask(up.port, post(b"{}"))
    assert (answer.body, answer.whole) == (b"data: 1\n\n", False)


def test_a_reset_is_a_reset() -> None:
    with Upstream(Conversation.reset) as up, RawClient(up.port) as client:
        client.send(get("/"))
        with pytest.raises(ConnectionResetError):
            client.read_some()


def test_the_peer_hanging_up_is_noticed() -> None:
    def script(conversation: Conversation) -> None:
        conversation.wait_for_hang_up()

    with Upstream(script) as up:
        with RawClient(up.port) as client:
            client.send(get("/"))
            received = up.next_request()
        assert received.hung_up.wait(PATIENCE_S)


def test_a_stopped_upstream_refuses_connections() -> None:
    with Upstream() as up:
        up.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", up.port), timeout=5)
