"""Mode off: bytes in, bytes out."""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from collections.abc import Callable

import pytest

from tests.fakes.raw_http import RawClient, ask, get, post
from tests.fakes.upstream import PATIENCE_S, Conversation, Script
from tests.gateway.proxy.harness import serving

ODD_REQUEST = (
    b'{ "x_future" : {"a":[1,null]}, "model":"m1", "big": 12345678901234567890123, "one": 1.0, "e": 1E5,\n'
    b'\t"min_p":0.1,"chat_template_kwargs":{"z":1,"a":2},"cache_salt":"s",'
    b'"text":"\xe6\x97\xa5\\u65e5 \xf0\x9f\x98\x80",'
    b'"vllm_xargs":{"theirs":1},"model":"m1"}  '
)
EVENTS = (
    'data: {"choices":[{"index":0,"delta":{"reasoning":"日本"}}]}',
    'data: {"choices":[{"index":0,"delta":{"reasoning_content":"😀","token_ids":[1,2]}}],"x":1.0}',
    'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"語"}}]}}]}',
    'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
    "data: [DONE]",
)


def streamed(*events: str, end: str = "\n", space: str = " ") -> bytes:
    return "".join(event.replace("data: ", f"data:{space}", 1) + end + end for event in events).encode()


STREAMS = {
    "LF": streamed(*EVENTS),
    "CRLF": streamed(*EVENTS, end="\r\n"),
    "CR": streamed(*EVENTS, end="\r"),
    "no space": streamed(*EVENTS, space=""),
    "comments": streamed(": ping", ":", "data: : keepalive", "id: 7\nevent: x\ndata: a\ndata: b", *EVENTS),
    "no last blank line": streamed(*EVENTS).rstrip(),
    "no done": streamed(*EVENTS[:-1]),
    "empty": b"",
}


def whole(text: bytes) -> Script:
    return lambda conversation: conversation.stream(text) if text else conversation.stream()


def byte_by_byte(text: bytes) -> Script:
    return lambda conversation: conversation.stream(*(text[i : i + 1] for i in range(len(text))))


@pytest.mark.parametrize("cut", [whole, byte_by_byte])
@pytest.mark.parametrize("text", STREAMS.values(), ids=STREAMS.keys())
def test_a_stream_through_the_gateway_equals_a_direct_one(
    text: bytes, cut: Callable[[bytes], Script]
) -> None:
    request = post(b'{"model":"m1","stream":true}')
    with serving(cut(text)) as (up, gateway):
        direct, through = ask(up.port, request), ask(gateway.port, request)
        ending = gateway.records.next_access().ending
    assert through.end_to_end == direct.end_to_end
    assert through.body == text
    assert ending == ("completed" if text else "backend_broke_off")


def chunked_json(conversation: Conversation) -> None:
    conversation.start_stream(content_type="application/json")
    conversation.chunk(b"{", b"}")
    conversation.end_stream()


def early_hints(conversation: Conversation) -> None:
    conversation.send(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
    conversation.answer(PLAIN)


PLAIN = b'{"choices":[],"usage":{"completion_tokens":3}}'
ANSWERS: dict[str, Script] = {
    "json": lambda c: c.answer(PLAIN),
    "repeated headers": lambda c: c.answer(PLAIN, headers=["Set-Cookie: a=1", "X-Odd:", "Set-Cookie: b=2"]),
    "hop-by-hop headers": lambda c: c.answer(PLAIN, headers=["Connection: x-hop", "Keep-Alive: timeout=5"]),
    "date and server": lambda c: c.answer(
        PLAIN, headers=["Date: Mon, 01 Jan 2024 00:00:00 GMT", "Server: fake/1", "Vary: *"]
    ),
    "error": lambda c: c.answer(b'{"error":{"message":"too long"}}', status="400 Bad Request"),
    "unusual status": lambda c: c.answer(PLAIN, status="529 Overloaded"),
    "not found": lambda c: c.answer(b"<html>", status="404 Not Found", headers=["content-type: text/html"]),
    "redirect": lambda c: c.answer(b"", status="307 Temporary", headers=["Location: http://elsewhere/"]),
    "no content": lambda c: c.send(b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n"),
    "not modified": lambda c: c.send(b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n"),
    "empty": lambda c: c.answer(b""),
    "chunked json": chunked_json,
    "gzip, grown": lambda c: c.answer(gzip.compress(b"x" * 34), headers=["Content-Encoding: gzip"]),
    "gzip, shrunk": lambda c: c.answer(gzip.compress(b"x" * 4096), headers=["Content-Encoding: gzip"]),
    "gzip, error": lambda c: c.answer(
        gzip.compress(b"{}"), status="400 Bad Request", headers=["Content-Encoding: gzip"]
    ),
    "head": lambda c: c.send(b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n"),
    "informational first": early_hints,
}


@pytest.mark.parametrize("script", ANSWERS.values(), ids=ANSWERS.keys())
def test_an_answer_through_the_gateway_equals_a_direct_one(
    script: Script, request: pytest.FixtureRequest
) -> None:
    is_head = request.node.callspec.id == "head"
    sent = get("/v1/things", method="HEAD") if is_head else post(b'{"model":"m1"}')
    with serving(script) as (up, gateway):
        direct, through = ask(up.port, sent), ask(gateway.port, sent)
    dropped = {"x-hop", "keep-alive"}
    status, headers, body, complete = direct.end_to_end
    assert through.end_to_end == (status, [(n, v) for n, v in headers if n not in dropped], body, complete)


def test_a_compressed_stream_arrives_event_by_event() -> None:
    squeeze = zlib.compressobj(wbits=31)
    first = squeeze.compress(b"data: 1\n\n") + squeeze.flush(zlib.Z_SYNC_FLUSH)
    rest = squeeze.compress(b"data: [DONE]\n\n") + squeeze.flush()
    read_first = threading.Event()

    def script(conversation: Conversation) -> None:
        conversation.start_stream("Content-Encoding: gzip")
        conversation.chunk(first)
        assert read_first.wait(PATIENCE_S)
        conversation.chunk(rest)
        conversation.end_stream()

    with serving(script) as (_, gateway), RawClient(gateway.port) as client:
        client.send(post(b'{"model":"m1","stream":true}', "Accept-Encoding: gzip"))
        _, headers = client.read_head()
        client.read_until(first)
        read_first.set()
    assert ("content-encoding", "gzip") in headers


def test_a_request_reaches_the_backend_byte_for_byte() -> None:
    with serving(Conversation.answer) as (up, gateway):
        ask(gateway.port, post(ODD_REQUEST, path="/v1/chat/completions?a=%2F&b=%20c"))
        received = up.requests[0]
    assert received.body == ODD_REQUEST
    assert (received.method, received.target) == ("POST", "/v1/chat/completions?a=%2F&b=%20c")
    assert received.values("content-length") == [str(len(ODD_REQUEST))]


def test_a_chunked_request_reaches_the_backend_whole_and_with_one_framing() -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with serving(Conversation.answer) as (up, gateway):
        answer = ask(gateway.port, head + b'6\r\n{"mode\r\n8\r\nl":"m1"}\r\n0\r\n\r\n')
        received = up.requests[0]
    assert answer.status == 200
    assert received.body == b'{"model":"m1"}'
    assert received.values("content-length") + received.values("transfer-encoding") == ["14"]


def test_a_large_body_is_relayed() -> None:
    body = json.dumps({"model": "m1", "image": "A" * 3_000_000}).encode()
    with serving(Conversation.answer) as (up, gateway):
        assert ask(gateway.port, post(body)).status == 200
        assert up.requests[0].body == body


def test_other_routes_and_methods_are_passed_through() -> None:
    with serving(Conversation.answer) as (up, gateway):
        ask(gateway.port, post(b"--x\r\nnot json", path="/v1/audio/transcriptions"))
        ask(gateway.port, get("/v1/files/my%20file?limit=2"))
        ask(gateway.port, get("/v1/files/7", method="DELETE"))
        ask(gateway.port, post(b'{"model":"m1"}', path="/v1/embeddings"))
    seen = [(request.method, request.target, request.body) for request in up.requests]
    assert seen == [
        ("POST", "/v1/audio/transcriptions", b"--x\r\nnot json"),
        ("GET", "/v1/files/my%20file?limit=2", b""),
        ("DELETE", "/v1/files/7", b""),
        ("POST", "/v1/embeddings", b'{"model":"m1"}'),
    ]


def test_off_leaves_an_access_record_and_no_stage() -> None:
    with serving(Conversation.answer) as (_, gateway):
        request = post(b'{"model":"m1"}', "Authorization: Bearer sk-TEST-GW", "traceparent: 00-a-b-01")
        ask(gateway.port, request)
        record = gateway.records.next_access()
        assert not gateway.records.stages
        assert not gateway.records.offered
    assert (record.tenant, record.model, record.backend, record.rule) == ("team-a", "m1", "b1", "all")
    assert (record.mode, record.action, record.status, record.ending) == ("off", "pass", 200, "completed")
    assert (record.method, record.path, record.traceparent) == ("POST", "/v1/chat/completions", "00-a-b-01")
    assert (record.retries, record.bytes_out) == (0, 2)
    assert record.overhead_s is not None
    assert record.first_byte_s is not None
    assert record.overhead_s <= record.first_byte_s <= record.duration_s


def test_the_request_id_is_accepted_sent_on_and_returned() -> None:
    with serving(lambda c: c.answer(headers=["X-Request-Id: the-backends-own"])) as (up, gateway):
        answer = ask(gateway.port, post(b'{"model":"m1"}', "X-Request-ID: my id/7"))
        assert gateway.records.next_access().request_id == "my id/7"
        assert up.requests[0].values("x-request-id") == ["my id/7"]
    assert answer.header("x-request-id") == "my id/7"


@pytest.mark.parametrize("given", ["", "x" * 129, "tab\there", "\xe9"])
def test_an_odd_request_id_is_replaced(given: str) -> None:
    with serving(Conversation.answer) as (up, gateway):
        answer = ask(gateway.port, post(b'{"model":"m1"}', f"X-Request-ID: {given}"))
        made = answer.header("x-request-id")
        assert up.requests[0].values("x-request-id") == [made]
    assert made is not None
    assert made.startswith("req-")


def test_a_clients_own_ace_words_never_reach_the_backend() -> None:
    xargs = b'{"ace_mode":"prod", "keep": 1234567890123456789012, "ace_k":9}'
    body = b'{"a": 1.0, "vllm_xargs" : ' + xargs + b',"model":"m1"}'
    with serving(Conversation.answer) as (up, gateway):
        ask(gateway.port, post(body))
        received = up.requests[0].body
    assert received == b'{"a": 1.0, "vllm_xargs" :{"keep": 1234567890123456789012},"model":"m1"}'
