"""What whatever runs the gateway asks: alive, ready, counted, documented."""

import asyncio
from pathlib import Path

import pytest

from gateway.control.app import create_operations_app
from gateway.control.operation import Readiness
from gateway.drain import Drain
from gateway.fleet.file import FleetHolder
from gateway.fleet.registry import Registry
from gateway.keys import KeyRing
from gateway.store.store import Store
from tests.fakes.control import RUNNER, ControlPlane, client_of, error_of, operation_of, readiness_parts
from tests.fakes.probing import ScriptedHealth, ScriptedProbe, examiner_of
from tests.fakes.stores import store_url


async def test_a_process_that_answers_is_alive(control: ControlPlane) -> None:
    assert await control.get("/healthz") == {"status": "ok"}


async def test_a_gateway_that_has_read_everything_is_ready(control: ControlPlane) -> None:
    assert await control.get("/readyz") == {"ready": True, "reasons": [], "warnings": []}


async def test_a_store_that_goes_down_later_is_named_and_takes_nothing_away(control: ControlPlane) -> None:
    await control.store.close()
    data = control.policy_file.parent / "data"
    await asyncio.to_thread(data.rename, data.with_name("gone"))
    await control.registry.sync_once()
    ready = await control.get("/readyz")
    assert (ready["ready"], ready["reasons"]) == (True, [])
    assert "unable to open database file" in ready["warnings"][0]


async def test_a_refused_policy_file_is_named_and_takes_nothing_away(control: ControlPlane) -> None:
    control.policy_file.write_text("version: 2\n")
    for _ in range(2):
        control.policy.check_once()
    ready = await control.get("/readyz")
    assert ready["ready"] is True
    assert "policy.yaml:1" in ready["warnings"][0]


async def test_what_has_not_been_read_yet_is_a_reason(control: ControlPlane, tmp_path: Path) -> None:
    store = Store(store_url(tmp_path / "other"))
    clock = control.clock
    registry = Registry(
        store=store, examiner=examiner_of(ScriptedProbe(), ScriptedHealth(), clock), clock=clock, owner="x"
    )
    keys = KeyRing(store=store, clock=clock, anonymous_allowed=True)
    readiness = Readiness(
        store=store,
        registry=registry,
        keys=keys,
        policy=control.policy,
        fleet=FleetHolder(None, declare=registry.declare, refused=registry.refused, clock=clock),
        overlays=control.overlays,
        drain=Drain(),
    )
    assert [reason.split()[1] for reason in readiness.reasons()] == ["store's", "backends", "keys"]
    await store.migrate()
    await registry.sync_once()
    await keys.sync_once()
    assert list(readiness.reasons()) == []
    await store.close()


async def test_a_gateway_that_is_not_ready_answers_503(control: ControlPlane) -> None:
    unread = KeyRing(store=control.store, clock=control.clock, anonymous_allowed=True)
    operation = operation_of(**readiness_parts(control) | {"keys": unread})
    async with control.client_with(operation=operation) as http:
        reply = await http.get("/readyz")
    assert reply.status_code == 503
    assert reply.json()["reasons"] == ["the keys have not been read from the store yet"]


async def test_a_gateway_that_drains_is_alive_and_not_ready(control: ControlPlane) -> None:
    drain = Drain(delay_s=60)
    async with client_of(
        create_operations_app(operation_of(**readiness_parts(control), drain=drain))
    ) as http:
        assert (await http.get("/readyz")).status_code == 200
        drain.begin(lambda: None)
        reply = await http.get("/readyz")
        assert (reply.status_code, reply.json()["reasons"]) == (503, ["this process is stopping"])
        assert (await http.get("/healthz")).status_code == 200


async def test_the_operations_port_has_its_three_routes_and_asks_for_no_key(control: ControlPlane) -> None:
    app = create_operations_app(operation_of(**readiness_parts(control)))
    async with client_of(app) as http:
        http.headers.clear()
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await http.get(path)).status_code == 200
        for path in ("/admin/v1/backends", "/docs", "/openapi.json", "/v1/models", "/"):
            error = error_of(await http.get(path), 404)
            assert error["message"].endswith("This port has /healthz, /readyz and /metrics.")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_with_an_operations_port_the_main_port_has_none_of_its_routes(
    control: ControlPlane, path: str
) -> None:
    async with control.client_with(operation=None) as http:
        error = error_of(await http.get(path), 404)
        assert "are at ACE_OPERATIONS_PORT" in error["message"]
        assert (await http.get("/admin/v1/backends")).status_code == 200


async def test_metrics_are_given_as_prometheus_reads_them(control: ControlPlane) -> None:
    reply = await control.http.get("/metrics")
    assert reply.text == "ace_requests_total 1.0\n"
    assert reply.headers["content-type"].startswith("text/plain; version=")


async def test_the_api_describes_itself(control: ControlPlane) -> None:
    described = await control.get("/openapi.json")
    add = described["paths"]["/admin/v1/backends"]["post"]
    body = add["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == {
        *("name", "url", "urls", "discovery", "kind", "credential", "tokenizer")
    }
    assert body["additionalProperties"] is False
    assert add["security"] == [{"admin token": []}]
    asked = described["paths"]["/admin/v1/stages"]["get"]["parameters"]
    assert [parameter["name"] for parameter in asked] == [
        *("limit", "mode", "action", "model", "request_id", "after")
    ]
    page = await control.http.get("/docs")
    assert page.status_code == 200
    assert "text/html" in page.headers["content-type"]


@pytest.mark.parametrize(
    "draft_model", [None, {"name": "small", "fingerprint": "f00d", "vocabulary_size": 49_152}]
)
async def test_a_runner_that_joins_is_shown(
    control: ControlPlane, draft_model: dict[str, object] | None
) -> None:
    body = {
        "url": "http://127.0.0.1:8090/",
        "node": "n1",
        "drafters": ["ngram"],
        "version": "1",
        "draft_model": draft_model,
    }
    headers = {"authorization": f"Bearer {RUNNER}"}
    joined = await control.http.post("/runner/v1/join", json=body, headers=headers)
    assert joined.status_code == 200
    expected = {
        **body,
        "url": "http://127.0.0.1:8090",
        "joined_at": control.clock.now,
        "seen_at": control.clock.now,
        "live": True,
    }
    assert await control.get("/admin/v1/runners") == {"runners": [expected]}
    control.clock.advance(60)
    assert (await control.get("/admin/v1/runners"))["runners"][0]["live"] is False


async def test_a_runner_with_a_forbidden_url_does_not_join(control: ControlPlane) -> None:
    body = {"url": "http://169.254.169.254", "node": "n", "drafters": [], "version": "1"}
    headers = {"authorization": f"Bearer {RUNNER}"}
    error_of(await control.http.post("/runner/v1/join", json=body, headers=headers), 400)
    assert await control.get("/admin/v1/runners") == {"runners": []}
