"""The policy over REST: in force, refused, explained."""

from typing import Any

import pytest

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
