"""The policy over REST: in force, refused, explained."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.policy.stored import FileHistory, StoredPolicy
from gateway.policy.watch import PolicyHolder
from tests.fakes.control import ControlPlane, error_of
from tests.fakes.fleet import declared

POLICY = "/admin/v1/policy"


async def explain(control: ControlPlane, facts: dict[str, Any]) -> Any:
    reply = await control.http.post(f"{POLICY}/explain", json=facts)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_the_policy_in_force_is_shown(control: ControlPlane) -> None:
    shown = await control.get(POLICY)
    assert (shown["source"], shown["path"]) == ("file", str(control.policy_file))
    assert shown["revision"] == control.policy.current.revision
    assert shown["loaded_at"] == control.clock.now
    assert shown["error"] is None
    assert [rule["mode"] for rule in shown["policy"]["rules"]] == ["shadow", "prod"]


async def test_a_refused_file_is_shown_beside_the_policy_that_stays(control: ControlPlane) -> None:
    before = await control.get(POLICY)
    control.policy_file.write_text("version: 1\nrulse: []\n")
    for _ in range(2):
        control.policy.check_once()
    shown = await control.get(POLICY)
    assert f"{control.policy_file}:2" in shown["error"]
    assert {**shown, "error": None} == before


async def test_a_gateway_without_a_policy_file_says_default(control: ControlPlane) -> None:
    async with control.client_with(policy=PolicyHolder(None, control.clock)) as http:
        shown = (await http.get(POLICY)).json()
    assert (shown["source"], shown["path"], shown["revision"]) == ("default", None, "default")


async def test_a_decision_is_explained_for_every_backend_that_serves_the_model(control: ControlPlane) -> None:
    for name in ("a", "b"):
        await control.registry.add(declared(name=name, url="http://127.0.0.1:8100"))
    said = await explain(control, {"model": "m", "workload": "rag"})
    assert said["decision"]["mode"] == "shadow"
    assert said["decision"]["action"] == "would_speculate"
    assert said["trail"] == ["rag: applies, mode shadow, would_speculate"]
    assert said["backend"] == "a"
    assert [other["backend"] for other in said["backends"]] == ["a", "b"]


async def test_a_decision_is_explained_for_every_instance(control: ControlPlane) -> None:
    urls = ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    await control.registry.add(declared(name="a", urls=urls))
    said = await explain(control, {"model": "m", "workload": "rag"})
    assert [other["backend"] for other in said["backends"]] == [f"a@{url}" for url in urls]


async def test_without_a_backend_the_rules_are_still_explained(control: ControlPlane) -> None:
    said = await explain(control, {"model": "nobody-serves-this", "workload": "code"})
    assert (said["backend"], said["backends"]) == (None, [])
    assert said["decision"]["rule"] == "code"
    assert said["decision"]["reason"] == "no_executor"
    assert len(said["trail"]) == 2


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"modle": "m"}, "modle"),
        ({"workload": "poetry"}, "chat"),
        ({"temperature": "hot"}, "temperature"),
        ([], "facts"),
    ],
)
async def test_facts_that_are_not_known_are_refused(control: ControlPlane, facts: Any, words: str) -> None:
    reply = await control.http.post(f"{POLICY}/explain", json=facts)
    assert words in error_of(reply, 400)["message"]


TEXT = "version: 1   # the smallest\n"
OTHER = "version: 1\nrules:\n  - {name: all, mode: shadow}\n"


@pytest.fixture
async def stored(control: ControlPlane) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway that keeps its policy in the store."""
    policy = StoredPolicy(store=control.store, clock=control.clock)
    await policy.sync_once()
    async with control.client_with(policy=policy) as http:
        yield http


async def put(http: httpx.AsyncClient, text: str, based_on: str = "default", **more: str) -> httpx.Response:
    return await http.put(POLICY, json={"text": text, "based_on": based_on, "reason": "try", **more})


async def json_of(http: httpx.AsyncClient, path: str, **query: str) -> Any:
    reply = await http.get(POLICY + path, params=query)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_a_policy_that_is_put_is_in_force_with_its_text_as_written(stored: httpx.AsyncClient) -> None:
    empty = await json_of(stored, "")
    assert (empty["source"], empty["revision"], empty["number"], empty["text"]) == (
        "store",
        "default",
        None,
        None,
    )
    kept = (await put(stored, TEXT, author="ann")).json()
    shown = await json_of(stored, "")
    assert (shown["revision"], shown["number"], shown["text"]) == (kept["revision"], 1, TEXT)
    assert (kept["author"], kept["reason"], kept["source"]) == ("ann", "try", "store")


async def test_a_bad_policy_is_refused_with_its_lines(stored: httpx.AsyncClient) -> None:
    error = error_of(await put(stored, "version: 1\nrulse: 1\nx: 2\n"), 400)
    assert error["code"] == "policy_invalid"
    assert [line.partition(" ")[0] for line in error["message"].splitlines()] == ["policy:2:", "policy:3:"]
    assert (await json_of(stored, ""))["revision"] == "default"


async def test_a_policy_based_on_an_older_one_is_a_conflict(stored: httpx.AsyncClient) -> None:
    first = (await put(stored, TEXT)).json()
    error = error_of(await put(stored, OTHER), 409)
    assert f"{first['revision']} is in force, number 1" in error["message"]


async def test_history_diff_and_roll_back(stored: httpx.AsyncClient) -> None:
    first = (await put(stored, TEXT)).json()
    second = (await put(stored, OTHER, first["revision"])).json()
    back = await stored.post(f"{POLICY}/rollback", json={"revision": "1", "reason": "worse"})
    assert back.status_code == 200, back.text
    third = back.json()
    assert (third["number"], third["revision"], third["reason"]) == (
        3,
        first["revision"],
        "back to 1: worse",
    )
    assert (await json_of(stored, "/history"))["revisions"] == [third, second, first]
    assert (await json_of(stored, "/history", limit="1"))["revisions"] == [third]
    assert (await json_of(stored, f"/history/{second['revision']}"))["text"] == OTHER
    said = await json_of(stored, "/diff")
    assert (said["before"], said["after"]) == (second, third)
    assert f"--- policy 2 {second['revision']}" in said["diff"]
    assert "-  - {name: all, mode: shadow}" in said["diff"]
    same = await json_of(stored, "/diff", before="1", after=first["revision"])
    assert same["diff"] == ""


@pytest.mark.parametrize("path", ["/history/9", "/diff"])
async def test_what_has_never_been_in_force_is_not_found(stored: httpx.AsyncClient, path: str) -> None:
    error_of(await stored.get(POLICY + path), 404)


async def test_rolling_back_to_what_is_in_force_is_a_conflict(stored: httpx.AsyncClient) -> None:
    await put(stored, TEXT)
    reply = await stored.post(f"{POLICY}/rollback", json={"revision": "1", "reason": "r"})
    assert "already" in error_of(reply, 409)["message"]


async def test_where_a_file_is_the_source_writes_say_where_it_is(control: ControlPlane) -> None:
    await FileHistory(store=control.store, current=lambda: control.policy.current).keep_once()
    shown = await control.get(POLICY)
    assert (shown["number"], shown["text"]) == (1, control.policy_file.read_text())
    for reply in (
        await put(control.http, TEXT, shown["revision"]),
        await control.http.post(f"{POLICY}/rollback", json={"revision": "1", "reason": "r"}),
    ):
        assert str(control.policy_file) in error_of(reply, 409)["message"]


async def test_the_policy_is_shown_while_the_store_is_down(control: ControlPlane) -> None:
    await control.store.close()
    data = control.policy_file.parent / "data"
    await asyncio.to_thread(data.rename, data.with_name("gone"))
    shown = await control.get(POLICY)
    assert (shown["revision"], shown["number"]) == (control.policy.current.revision, None)
