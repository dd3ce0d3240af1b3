"""The fleet file over REST."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.fleet.file import FleetHolder
from gateway.fleet.model import Process
from gateway.fleet.processes import Sighting
from tests.fakes.control import ControlPlane, error_of, operation_of, readiness_parts
from tests.fakes.probing import ALIVE, REFUSED
from tests.gateway.control.test_backends import BACKENDS, add

FLEET = "/admin/v1/fleet"
TEXT = """\
version: 1
backends:
  - {name: a, url: "http://10.0.0.1:8000"}
  - {name: b, urls: ["http://10.0.0.2:8000", "http://10.0.0.3:8000"]}
"""


@pytest.fixture
async def following(control: ControlPlane, tmp_path: Path) -> FleetHolder:
    """What follows a fleet file that declares a and b."""
    path = tmp_path / "fleet.yaml"
    path.write_text(TEXT)
    holder = FleetHolder(
        path, declare=control.registry.declare, refused=control.registry.refused, clock=control.clock
    )
    await holder.declare_once()
    await control.registry.check_suspects_once()
    return holder


@pytest.fixture
def http(control: ControlPlane, following: FleetHolder) -> httpx.AsyncClient:
    operation = operation_of(**readiness_parts(control) | {"fleet": following})
    return control.client_with(fleet=following, operation=operation)


def entry(name: str, **values: Any) -> dict[str, Any]:
    return {"name": name, **(values or {"url": f"http://{name}:8000"})}


async def diff(http: httpx.AsyncClient, *backends: dict[str, Any]) -> Any:
    reply = await http.post(f"{FLEET}/diff", json={"version": 1, "backends": backends})
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_the_file_in_force_is_shown(
    control: ControlPlane, following: FleetHolder, http: httpx.AsyncClient
) -> None:
    assert following.current is not None
    assert (await http.get(FLEET)).json() == {
        "path": following.current.source,
        "revision": following.current.revision,
        "loaded_at": control.clock.now,
        "error": None,
        "backends": ["a", "b"],
    }


async def test_without_a_file_there_is_none(control: ControlPlane) -> None:
    shown = await control.get(FLEET)
    assert shown == {"path": None, "revision": None, "loaded_at": None, "error": None, "backends": []}


async def test_a_dry_run_says_what_would_change_and_changes_nothing(
    control: ControlPlane, http: httpx.AsyncClient
) -> None:
    await add(control, name="mine", url="http://10.0.0.9:8000")
    before = control.registry.all()
    found = await diff(
        http,
        entry("b", url="http://10.0.0.2:8000", kind="vllm"),
        entry("c"),
        entry("mine"),
    )
    urls = ["http://10.0.0.2:8000", "http://10.0.0.3:8000"]
    assert found["added"] == ["c"]
    assert found["changed"] == [
        {"name": "b", "fields": {"urls": [urls, urls[:1]], "kind": ["auto", "vllm"]}},
    ]
    assert found["removed"] == ["a"]
    assert "`ace backends remove mine`" in found["refused"][0]
    assert control.registry.all() == before


async def test_the_file_itself_would_change_nothing(http: httpx.AsyncClient) -> None:
    urls = ["http://10.0.0.2:8000", "http://10.0.0.3:8000/v1"]
    found = await diff(http, entry("a", url="http://10.0.0.1:8000/"), entry("b", urls=urls))
    assert found == {"added": [], "changed": [], "removed": [], "refused": []}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"version": 1, "backends": [{"name": "a", "knd": "vllm"}]}, "backends.0.knd is not a known key"),
        ({"version": 1, "backends": [{"name": "a"}]}, "either `url`, or `urls`"),
        ({"backends": []}, "version is missing"),
    ],
)
async def test_what_is_no_fleet_is_refused(control: ControlPlane, body: Any, words: str) -> None:
    assert words in error_of(await control.http.post(f"{FLEET}/diff", json=body), 400)["message"]


async def test_a_declared_backend_is_removed_in_its_file_only(http: httpx.AsyncClient) -> None:
    error = error_of(await http.delete(f"{BACKENDS}/a"), 409)
    assert "fleet.yaml" in error["message"]
    shown = (await http.get(f"{BACKENDS}/a")).json()
    assert shown["declared_by"].endswith("fleet.yaml")


async def test_a_refused_file_is_a_warning_and_takes_nothing_away(
    following: FleetHolder, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    (tmp_path / "fleet.yaml").write_text("version: 1\nbackend: []\n")
    for _ in range(2):
        following.check_once()
    ready = (await http.get("/readyz")).json()
    assert ready["ready"] is True
    assert "fleet.yaml:2" in ready["warnings"][0]
    assert "fleet.yaml:2" in (await http.get(FLEET)).json()["error"]


async def test_a_list_is_shown_with_each_instance(control: ControlPlane) -> None:
    urls = ["http://10.0.0.2:8000", "http://10.0.0.3:8000"]
    control.health.answers[urls[1]] = REFUSED
    reply = await control.http.post(BACKENDS, json={"name": "b", "urls": urls})
    assert reply.status_code == 201, reply.text
    await control.registry.check_health_once()
    shown = await control.get(f"{BACKENDS}/b")
    assert (shown["state"], shown["url"], shown["urls"]) == ("up", urls[0], urls)
    assert [(i["instance"], i["state"], i["state_reason"]) for i in shown["instances"]] == [
        (urls[0], "up", ""),
        (urls[1], "down", "connection refused"),
    ]


async def test_a_backend_that_needs_attention_is_named_to_anybody_without_its_address(
    control: ControlPlane,
) -> None:
    await add(control, name="b", url="http://10.0.0.2:8000")
    for started_at in (1000.0, 2000.0, 1000.0):
        seen = Sighting(process=Process(started_at=started_at))
        control.health.answer = replace(ALIVE, sighting=seen)
        await control.registry.check_health_once()
    ready = await control.get("/readyz")
    assert ready["warnings"] == ["backend b needs attention: see `ace backends show b`"]
    shown = await control.get(f"{BACKENDS}/b")
    assert "00:16:40" in shown["warnings"][0]
    loop = next(executor for executor in shown["executors"] if executor["name"] == "gateway_loop")
    assert (loop["possible"], "register each server by its own URL" in loop["sentence"]) == (False, True)
