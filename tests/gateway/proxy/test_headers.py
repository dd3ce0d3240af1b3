from __future__ import annotations

from pathlib import Path

import pytest

from gateway.proxy.headers import accepted_request_id, to_backend
from tests.fakes.raw_http import ask, post
from tests.fakes.upstream import Conversation, Upstream
from tests.gateway.proxy.harness import Gateway, backend_at, serving

FROM_CLIENT = (
    "Authorization: Bearer sk-TEST-GW",
    "Cookie: session=1",
    "Proxy-Authorization: Basic eA==",
    "X-Api-Key: sk-TEST-GW",
    "Api-Key: sk-TEST-GW",
    "Connection: close, x-hop",
    "X-Hop: 1",
    "TE: trailers",
    "Keep-Alive: timeout=5",
    "Upgrade: h2c",
    "Expect: 100-continue",
    "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "X-Request-Id: r1",
    "X-Tenant: t",
    "User-Agent: client/1",
    "Accept: */*",
    "Accept-Encoding: gzip, br",
    "X-Twice: 1",
    "x-twice: 2",
    "X-Name: 日本",
)


def test_exactly_the_clients_end_to_end_headers_reach_the_backend() -> None:
    request = post(b'{"model":"m1"}').decode()
    lines = request.replace("\r\n\r\n", "\r\n" + "\r\n".join(FROM_CLIENT) + "\r\n\r\n").encode()
    with serving(Conversation.answer) as (up, gateway):
        ask(gateway.port, lines)
        received = up.requests[0]
    split = [line.decode().partition(": ") for line in received.header_lines]
    assert sorted((name.lower(), value) for name, _, value in split) == [
        ("accept", "*/*"),
        ("accept-encoding", "gzip, br"),
        ("content-length", "14"),
        ("content-type", "application/json"),
        ("host", f"127.0.0.1:{up.port}"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("user-agent", "client/1"),
        ("x-name", "日本"),
        ("x-request-id", "r1"),
        ("x-tenant", "t"),
        ("x-twice", "1"),
        ("x-twice", "2"),
    ]


def test_nothing_is_added_to_a_bare_request() -> None:
    with serving(Conversation.answer) as (up, gateway):
        ask(gateway.port, b"GET /v1/things HTTP/1.1\r\nHost: x\r\n\r\n")
        names = [line.partition(b":")[0].lower() for line in up.requests[0].header_lines]
    assert sorted(names) == [b"host", b"x-request-id"]


def test_each_backend_gets_its_own_key_and_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("key-of-b\n")
    monkeypatch.setenv("KEY_OF_A", "key-of-a")
    with Upstream(lambda c: c.answer(status="503 Busy")) as a, Upstream() as b:
        backends = [
            backend_at(a, "a", credential="env:KEY_OF_A"),
            backend_at(b, "b", credential=f"file:{key_file}"),
        ]
        with Gateway(backends) as gateway:
            answer = ask(gateway.port, post(b'{"model":"m1"}', "Authorization: Bearer sk-TEST-GW"))
        assert answer.status == 200
        assert a.requests[0].values("authorization") == ["Bearer key-of-a"]
        assert b.requests[0].values("authorization") == ["Bearer key-of-b"]


def test_a_backend_whose_key_cannot_be_read_is_not_called() -> None:
    with Upstream() as up, Gateway([backend_at(up, credential="env:NOT_SET_ANYWHERE")]) as gateway:
        answer = ask(gateway.port, post(b'{"model":"m1"}'))
        assert gateway.records.next_access().ending == "backend_credential_missing"
        assert not up.requests
    assert answer.status == 502
    assert b"env:NOT_SET_ANYWHERE" in answer.body


@pytest.mark.parametrize(
    ("given", "accepted"),
    [
        (b"a", "a"),
        (b" a b ", "a b"),
        (b"~" * 128, "~" * 128),
        (b"", None),
        (b"a" * 129, None),
        (b"\x7f", None),
    ],
)
def test_a_request_id_is_accepted_when_short_and_printable(given: bytes, accepted: str | None) -> None:
    assert accepted_request_id(((b"X-Request-Id", given),)) == accepted


def test_bytes_that_are_not_utf_8_are_kept_as_latin_1() -> None:
    assert to_backend(((b"x-a", b"\xe9"),), "r", readable=False) == (("x-a", "\xe9"), ("x-request-id", "r"))
