from __future__ import annotations

import json

import pytest

from gateway.fleet.model import BackendState
from tests.fakes.raw_http import ask, get
from tests.gateway.proxy.harness import Gateway, backend_at

FLEET = [
    backend_at("http://127.0.0.1:1", "a", models=("m1", "org/m2")),
    backend_at("http://127.0.0.1:1", "b", models=("m1", "m3"), probed_at=None),
    backend_at("http://127.0.0.1:1", "c", models=("m4",), state=BackendState.DOWN),
]


def card(model: str, created: int) -> dict[str, object]:
    return {"id": model, "object": "model", "created": created, "owned_by": "ace-gateway"}


def test_models_are_those_of_all_backends_that_are_up() -> None:
    with Gateway(FLEET) as gateway:
        answer = ask(gateway.port, get("/v1/models"))
        record = gateway.records.next_access()
    assert json.loads(answer.body) == {
        "object": "list",
        "data": [card("m1", 1_700_000_000), card("org/m2", 1_700_000_000), card("m3", 0)],
    }
    assert answer.header("content-type") == "application/json"
    assert answer.header("x-request-id") == record.request_id
    assert (record.status, record.ending) == (200, "completed")


@pytest.mark.parametrize("path", ["/v1/models/org/m2", "/v1/models/org%2Fm2"])
def test_one_model_is_shown_by_its_id(path: str) -> None:
    with Gateway(FLEET) as gateway:
        answer = ask(gateway.port, get(path))
    assert json.loads(answer.body) == card("org/m2", 1_700_000_000)


def test_a_model_that_is_not_up_is_not_found() -> None:
    with Gateway(FLEET) as gateway:
        answer = ask(gateway.port, get("/v1/models/m4"))
    assert answer.status == 404
    assert json.loads(answer.body)["error"]["code"] == "model_not_found"


def test_head_has_no_body() -> None:
    with Gateway(FLEET) as gateway:
        answer = ask(gateway.port, get("/v1/models", method="HEAD"))
    assert (answer.status, answer.body) == (200, b"")


def test_the_list_needs_a_valid_key() -> None:
    with Gateway(FLEET) as gateway:
        assert ask(gateway.port, get("/v1/models", "Authorization: Bearer wrong")).status == 401
