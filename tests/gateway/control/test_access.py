"""Who is let in, and how everyone else is told."""

import asyncio

import pytest

from gateway.control.requests import MAX_BODY_BYTES
from tests.fakes.control import ADMIN, RUNNER, ControlPlane, error_of


def routes(control: ControlPlane) -> list[tuple[str, str]]:
    """Every method and path that the OpenAPI page lists."""
    paths = control.app.openapi()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


@pytest.mark.parametrize(
    "authorization", [None, "Bearer wrong", f"Bearer {RUNNER}", f"Basic {ADMIN}", ADMIN, ""]
)
async def test_without_the_admin_token_every_route_of_operators_answers_401(
    control: ControlPlane, authorization: str | None
) -> None:
    del control.http.headers["authorization"]
    headers = {} if authorization is None else {"authorization": authorization}
    asked = [(method, path) for method, path in routes(control) if path.startswith("/admin/")]
    assert len(asked) >= 15
    for method, path in asked:
        reply = await control.http.request(method, path, headers=headers, content=b"not json")
        error = error_of(reply, 401)
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert reply.headers["www-authenticate"] == "Bearer"


async def test_every_other_route_is_meant_to_be_open_or_is_the_runners(control: ControlPlane) -> None:
    others = {path for _, path in routes(control) if not path.startswith("/admin/")}
    assert others == {"/healthz", "/readyz", "/metrics", "/runner/v1/join"}


async def test_an_api_key_does_not_open_the_control_plane(control: ControlPlane) -> None:
    issued = await control.keys.issue(name="n", tenant="t")
    headers = {"authorization": f"Bearer {issued.secret}"}
    error_of(await control.http.get("/admin/v1/keys", headers=headers), 401)


async def test_only_the_runner_token_joins_runners(control: ControlPlane) -> None:
    body = {"url": "http://127.0.0.1:8090", "node": "n", "drafters": ["ngram"], "version": "1"}
    error_of(await control.http.post("/runner/v1/join", json=body), 401)
    headers = {"authorization": f"Bearer {RUNNER}"}
    assert (await control.http.post("/runner/v1/join", json=body, headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "mapping"),
        (b"null", "mapping"),
        (b"{}", "body: name is missing"),
        (b'{"name": 1, "url": "http://a"}', "body: name is 1. Allowed: text"),
        (b'{"name": "a", "url": "http://a", "kind": "vlm"}', "Did you mean 'vllm'?"),
        (b'{"name": "a", "url": "http://a", "kind": "vlm"}', "auto, openai, embedded, vllm, sglang"),
        (
            b'{"name": "a", "url": "http://a", "knid": "auto"}',
            "Did you mean 'kind'?",
        ),
        (
            b'{"name": "a", "url": "http://a", "state": "up"}',
            "Allowed: credential, discovery, kind, name, tokenizer, url, urls",
        ),
    ],
)
async def test_a_body_that_is_not_taken_says_where_and_what_is_allowed(
    control: ControlPlane, body: bytes, words: str
) -> None:
    reply = await control.http.post("/admin/v1/backends", content=body)
    error = error_of(reply, 400)
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    assert control.registry.snapshot().backends == ()


async def test_every_refused_field_is_named_and_the_first_is_the_param(control: ControlPlane) -> None:
    reply = await control.http.post("/admin/v1/keys", json={"tenant": 1, "scope": "all"})
    error = error_of(reply, 400)
    assert error["param"] == "name"
    assert len(error["message"].splitlines()) == 3


async def test_a_body_of_the_wrong_content_type_is_read_as_json(control: ControlPlane) -> None:
    reply = await control.http.post(
        "/admin/v1/keys", content=b'{"name": "n", "tenant": "t"}', headers={"content-type": "text/plain"}
    )
    assert reply.status_code == 201


async def test_a_body_without_end_is_cut_off(control: ControlPlane) -> None:
    reply = await control.http.post("/admin/v1/keys", content=b" " * (MAX_BODY_BYTES + 1))
    assert error_of(reply, 413)["code"] == "request_too_large"


async def test_a_path_that_does_not_exist_is_answered_in_the_same_shape(control: ControlPlane) -> None:
    error = error_of(await control.http.get("/admin/v1/nothing"), 404)
    assert error["code"] == "unknown_route"
    assert "/admin/v1/nothing" in error["message"]


async def test_a_trailing_slash_is_not_answered_with_a_redirect(control: ControlPlane) -> None:
    error_of(await control.http.post("/admin/v1/keys/", json={"name": "n", "tenant": "t"}), 404)


async def test_a_method_that_is_not_taken_says_which_are(control: ControlPlane) -> None:
    reply = await control.http.put("/admin/v1/summary")
    assert "Allowed: GET" in error_of(reply, 405)["message"]
    assert reply.headers["allow"] == "GET"


async def test_a_failure_of_ours_is_logged_and_not_shown(
    control: ControlPlane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(control.keys, "all", broken)
    error = error_of(await control.http.get("/admin/v1/keys"), 500)
    assert "secret detail" not in error["message"]
    assert "secret detail" in caplog.text


async def test_a_store_that_is_gone_is_answered_as_unavailable(control: ControlPlane) -> None:
    await control.store.close()
    data = control.policy_file.parent / "data"
    await asyncio.to_thread(data.rename, data.with_name("gone"))
    reply = await control.http.post("/admin/v1/keys", json={"name": "n", "tenant": "t"})
    assert error_of(reply, 503)["code"] == "store_unavailable"
    for path in ("/admin/v1/stages", "/admin/v1/summary"):
        error_of(await control.http.get(path), 503)
    assert await control.get("/admin/v1/backends") == {"backends": []}
