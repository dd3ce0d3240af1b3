"""Overlays and kills over REST."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.control import ControlPlane, error_of
from tests.fakes.fleet import declared

OVERLAYS = "/admin/v1/overlays"
KILL = "/admin/v1/kill"
FACTS = {"model": "m", "workload": "code", "tenant": "search"}


async def posted(control: ControlPlane, path: str, **body: Any) -> Any:
    reply = await control.http.post(path, json=body)
    assert reply.status_code == 201, reply.text
    return reply.json()


async def decision(control: ControlPlane) -> Any:
    said = await control.http.post("/admin/v1/policy/explain", json=FACTS)
    return said.json()["decision"]


async def test_nothing_is_killed_at_first(control: ControlPlane) -> None:
    switch = {"file": str(control.overlays.switch.file), "thrown": False, "error": None}
    assert await control.get(KILL) == {"active": False, "kills": [], "read": True, "switch": switch}
    assert await control.get(OVERLAYS) == {"overlays": [], "read": True, "switch": switch}


async def test_a_kill_is_in_force_shown_and_lifted(control: ControlPlane) -> None:
    made = await posted(control, KILL, tenant="search", reason="too slow", author="ann", lasts="1h")
    assert made["scope"] == {"tenant": "search", "model": None, "backend": None, "rule": None}
    assert (made["kind"], made["author"], made["reason"]) == ("kill", "ann", "too slow")
    assert made["expires_at"] == control.clock.now + 3600
    assert (await control.get(KILL))["kills"] == [made]
    assert (await control.get(OVERLAYS))["overlays"] == [made]
    lifted = await control.http.delete(f"{OVERLAYS}/{made['id']}", params={"author": "bob"})
    assert lifted.status_code == 204
    assert (await control.get(KILL))["active"] is False
    assert (await control.get(OVERLAYS))["overlays"] == []
    (old,) = (await control.get(OVERLAYS, all="true"))["overlays"]
    assert (old["holds"], old["lifted_by"]) == (False, "bob")


async def test_an_empty_body_kills_everything(control: ControlPlane) -> None:
    made = await posted(control, KILL)
    assert set(made["scope"].values()) == {None}
    assert (made["author"], made["expires_at"]) == ("admin", None)


async def test_all_kills_are_lifted_at_once_and_the_switch_is_not(control: ControlPlane) -> None:
    await posted(control, KILL)
    await posted(control, KILL, model="m")
    control.overlays.switch.file.write_text("tenant search")
    await control.overlays.look_once()
    left = (await control.http.delete(KILL)).json()
    assert [kill["author"] for kill in left["kills"]] == [str(control.overlays.switch.file)]
    assert (left["active"], left["switch"]["thrown"]) == (True, True)


async def test_an_explanation_names_the_overlay(control: ControlPlane) -> None:
    await control.registry.add(declared(name="a", url="http://127.0.0.1:8100"))
    demotion = await posted(
        control, OVERLAYS, kind="demote", scope={"rule": "code"}, value="shadow", reason="worse", author="ann"
    )
    assert (await decision(control))["mode"] == "shadow"
    kill = await posted(control, KILL, reason="too slow", author="ann")
    killed = await decision(control)
    assert (killed["action"], killed["reason"]) == ("skip", "killed")
    assert killed["detail"] == f"kill of everything ({kill['id']}, by ann): too slow"
    assert (await control.http.delete(f"{OVERLAYS}/{demotion['id']}")).status_code == 204
    assert (await decision(control))["mode"] == "prod"


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (KILL, {"tenat": "a"}, "tenat"),
        (KILL, {"rule": "code"}, "rule"),
        (KILL, {"tenant": ""}, "tenant"),
        (KILL, {"reason": "two\nlines"}, "reason"),
        (KILL, {"author": "nul\0"}, "author"),
        (KILL, {"lasts": "soon"}, "60s, 10m, 2h"),
        (KILL, {"lasts": 0}, "lasts"),
        (OVERLAYS, {"kind": "promote", "reason": "r"}, "kind"),
        (OVERLAYS, {"kind": "demote", "scope": {"rule": "code"}, "value": "off"}, "reason"),
        (OVERLAYS, {"kind": "demote", "value": "off", "reason": "r"}, "names the rule"),
        (
            OVERLAYS,
            {"kind": "demote", "scope": {"rule": "c"}, "value": "prod", "reason": "r"},
            "shadow or off",
        ),
        (OVERLAYS, {"kind": "lookahead", "scope": {"rule": "c"}, "value": 17, "reason": "r"}, "1 to 16"),
        (OVERLAYS, {"kind": "lookahead", "scope": {"rule": "c"}, "value": True, "reason": "r"}, "value"),
        (OVERLAYS, {"kind": "kill", "scope": {"rule": "c"}, "reason": "r"}, "tenants, models and backends"),
    ],
)
async def test_what_is_not_an_overlay_is_refused_and_nothing_changes(
    control: ControlPlane, path: str, body: Any, words: str
) -> None:
    reply = await control.http.post(path, json=body)
    assert words in error_of(reply, 400)["message"]
    assert (await control.get(OVERLAYS, all="true"))["overlays"] == []


async def test_an_id_that_is_not_known_is_said_so(control: ControlPlane) -> None:
    reply = await control.http.delete(f"{OVERLAYS}/nope")
    assert "'nope'" in error_of(reply, 404)["message"]


async def test_a_kill_with_the_store_down_names_the_file_to_touch(control: ControlPlane) -> None:
    await control.store.close()
    data = control.policy_file.parent / "data"
    await asyncio.to_thread(data.rename, data.with_name("gone"))
    error = error_of(await control.http.post(KILL, json={}), 503)
    assert error["code"] == "kill_not_stored"
    assert error["message"].startswith("NOTHING WAS KILLED")
    assert f"touch {control.overlays.switch.file}" in error["message"]


async def test_a_switch_that_is_not_understood_is_warned_of(control: ControlPlane) -> None:
    control.overlays.switch.file.write_text("tennant search")
    await control.overlays.look_once()
    ready = await control.get("/readyz")
    assert ready["ready"] is True
    assert "line 1 is 'tennant search'" in ready["warnings"][0]
    shown = await control.get(KILL)
    assert shown["active"] is True
    assert "so everything is killed" in shown["switch"]["error"]
