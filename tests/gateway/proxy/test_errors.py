"""Bad input, and requests that never reach a backend: clear errors in OpenAI's shape."""

from __future__ import annotations

import json
import socket

import pytest

from gateway.fleet.model import BackendState
from gateway.proxy.handler import Limits
from tests.fakes.raw_http import Answer, RawClient, ask, get, post
from tests.fakes.upstream import Conversation, Upstream
from tests.gateway.proxy.harness import Gateway, backend_at, serving


def error_in(answer: Answer) -> dict[str, str]:
    """The error, after checking everything that all errors have in common."""
    assert answer.header("content-type") == "application/json"
    assert answer.header("x-request-id")
    error: dict[str, str] = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in error["message"]
    return error


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"model": "m1"} x', "line 1, column 17"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "is an array"),
        (b'"m1"', "is a string"),
        (b"null", "is null"),
        (b"7", "is a number"),
        (b"{}", "has no `model`"),
        (b'{"model": null}', "`model` is null"),
        (b'{"model": 7}', "`model` is a number"),
        (b'{"model": ["m1"]}', "`model` is an array"),
    ],
)
def test_a_body_that_is_no_request_is_a_400_that_says_why(path: str, body: bytes, said: str) -> None:
    with serving(Conversation.answer) as (up, gateway):
        answer = ask(gateway.port, post(body, path=path))
        assert gateway.records.next_access().ending == "invalid_request"
        assert not up.requests
    assert answer.status == 400
    assert said in error_in(answer)["message"]


@pytest.mark.parametrize("body", [b'{"model":"m1","x":NaN}', b'{"model":"m1","x":"\\ud800"}'])
def test_what_python_servers_take_beyond_the_standard_is_passed_on(body: bytes) -> None:
    with serving(Conversation.answer) as (up, gateway):
        assert ask(gateway.port, post(body)).status == 200
        assert up.requests[0].body == body


@pytest.mark.parametrize("temperature", ["1e400", "9" * 400, "NaN", "true", '"1"', "[]", "-1"])
def test_a_temperature_of_any_type_is_the_backends_to_refuse(temperature: str) -> None:
    body = f'{{"model":"m1","temperature":{temperature}}}'.encode()
    with serving(Conversation.answer) as (up, gateway):
        assert ask(gateway.port, post(body)).status == 200
        assert up.requests[0].body == body


def test_an_unknown_model_is_a_404_that_lists_the_known_ones() -> None:
    with serving(Conversation.answer) as (up, gateway):
        answers = [
            ask(gateway.port, post(b'{"model":"m2"}', path=p)) for p in ("/v1/completions", "/v1/embeddings")
        ]
        assert not up.requests
    for answer in answers:
        assert answer.status == 404
        error = error_in(answer)
        assert (error["code"], error["type"]) == ("model_not_found", "invalid_request_error")
        assert "'m2'" in error["message"]
        assert "'m1'" in error["message"]


def test_a_model_whose_backends_are_all_down_is_a_503_to_try_again() -> None:
    with Gateway([backend_at("http://127.0.0.1:1", state=BackendState.DOWN)]) as gateway:
        answer = ask(gateway.port, post(b'{"model":"m1"}'))
        assert gateway.records.next_access().ending == "no_backend_up"
    assert answer.status == 503
    assert answer.header("retry-after") == "5"
    assert "'b1'" in error_in(answer)["message"]


def test_a_route_that_names_no_model_needs_exactly_one_backend() -> None:
    with Upstream() as up, Gateway([backend_at(up, "a"), backend_at(up, "b")]) as gateway:
        answer = ask(gateway.port, get("/v1/files"))
        assert not up.requests
    assert answer.status == 400
    assert "2 are registered" in error_in(answer)["message"]


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br", "deflate, gzip"])
def test_a_compressed_body_is_a_415(encoding: str) -> None:
    with serving(Conversation.answer) as (up, gateway):
        answer = ask(gateway.port, post(b"\x1f\x8b", f"Content-Encoding: {encoding}"))
        assert not up.requests
    assert answer.status == 415
    assert "uncompressed" in error_in(answer)["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/server_info",
        "/collective_rpc",
        "/start_profile",
        "/metrics",
        "/",
        "/v2/x",
        "/V1/x",
        "/v1",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter/",
        "/v1/Load_LoRA_adapter",
        "/v1/%6Coad_lora_adapter",
        "/v1/loads",
        "/v1/../server_info",
        "/v1/x/..%2f..%2fserver_info",
        "/v1/%2e%2e/server_info",
        "/v1/%252e%252e/server_info",
        "/v1/%25252E./x",
        "/v1//server_info",
        "//v1/x",
        "/v1/./x",
        "/v1/x%5c..",
        "/v1/x%00",
    ],
)
def test_operator_routes_and_ambiguous_paths_never_reach_a_backend(path: str) -> None:
    with serving(Conversation.answer) as (up, gateway):
        answer = ask(gateway.port, post(b'{"model":"m1"}', path=path))
        assert not up.requests
    assert answer.status == 404
    assert error_in(answer)["code"] == "unknown_route"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_a_405_that_says_the_right_one(method: str, path: str, allowed: str) -> None:
    with serving(Conversation.answer) as (_, gateway):
        answer = ask(gateway.port, get(path, method=method))
    assert answer.status == 405
    assert answer.header("allow") == allowed
    error_in(answer)


def test_a_wrong_key_is_a_401_and_the_connection_stays_usable() -> None:
    with serving(Conversation.answer) as (up, gateway), RawClient(gateway.port) as client:
        client.send(post(b"x" * 70_000, "Authorization: Bearer wrong"))
        answer = client.read_answer()
        assert not up.requests
        client.send(post(b'{"model":"m1"}'))
        assert client.read_answer().status == 200
    assert answer.status == 401
    assert answer.header("www-authenticate") == "Bearer"
    assert error_in(answer)["code"] == "invalid_api_key"


def test_a_client_that_waits_for_leave_to_send_is_refused_without_it() -> None:
    head = post(b"9 bytes..", "Authorization: wrong", "Expect: 100-continue").removesuffix(b"9 bytes..")
    with (
        serving(Conversation.answer) as (_, gateway),
        socket.create_connection(("127.0.0.1", gateway.port)) as client,
    ):
        client.sendall(head)
        said = b"".join(iter(lambda: client.recv(65536), b""))
    assert said.startswith(b"HTTP/1.1 401")
    assert b"connection: close" in said


CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [post(b"x" * 1001), CHUNKED + b"3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n"],
    ids=["stated length", "chunked"],
)
def test_a_body_over_the_limit_is_a_413_and_the_connection_stays_usable(request_bytes: bytes) -> None:
    with (
        serving(Conversation.answer, limits=Limits(body_bytes=1000)) as (up, gateway),
        RawClient(gateway.port) as client,
    ):
        client.send(request_bytes)
        answer = client.read_answer()
        assert not up.requests
        client.send(post(b'{"model":"m1"}'))
        assert client.read_answer().status == 200
    assert answer.status == 413
    assert "1000 bytes" in error_in(answer)["message"]


def test_a_body_far_over_the_limit_closes_the_connection() -> None:
    limits = Limits(body_bytes=100_000)
    with serving(Conversation.answer, limits=limits) as (_, gateway), RawClient(gateway.port) as client:
        client.send(post(b"x" * 230_000))
        answer = client.read_answer()
        assert client.is_closed()
    assert answer.status == 413
    assert answer.header("connection") == "close"


def test_conflicting_framing_is_a_400() -> None:
    request = (
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    with serving(Conversation.answer) as (up, gateway):
        assert ask(gateway.port, request).status == 400
        assert not up.requests


def test_a_fault_of_our_own_is_a_500_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with serving(Conversation.answer) as (_, gateway):
        gateway.fleet = None  # type: ignore[assignment]
        answer = ask(gateway.port, post(b'{"model":"m1"}'))
        record = gateway.records.next_access()
    assert answer.status == 500
    assert error_in(answer)["code"] == record.ending == "internal_error"
    assert record.request_id in error_in(answer)["message"]
    assert record.request_id in caplog.text


def test_nobody_listening_is_a_502_and_reported() -> None:
    with Upstream() as up, Gateway([backend_at(up)]) as gateway:
        up.stop()
        answer = ask(gateway.port, post(b'{"model":"m1"}'))
        assert gateway.records.next_access().ending == "backend_unreachable"
        assert [name for name, _ in gateway.records.unreachable] == ["b1"]
    assert answer.status == 502
    assert "Connection refused" in error_in(answer)["message"]
    assert "127.0.0.1" not in error_in(answer)["message"]


def test_a_backend_that_speaks_no_http_is_a_502() -> None:
    def script(conversation: Conversation) -> None:
        conversation.send(b"SSH-2.0-x\r\n\r\n")
        conversation.close()

    with serving(script) as (_, gateway):
        answer = ask(gateway.port, post(b'{"model":"m1"}'))
    assert answer.status == 502
    assert "not HTTP" in error_in(answer)["message"]
