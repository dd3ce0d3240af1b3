"""Every shipped policy NAME.yaml loads and does what NAME.expect.yaml says."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.fleet.model import Backend
from gateway.policy.decide import decide
from gateway.policy.explain import facts_from
from gateway.policy.load import load_policy
from probes.model import Capability, Finding, Support

FOLDER = Path(str(resources.files("policies")))
POLICIES = sorted(path for path in FOLDER.glob("*.yaml") if not path.name.endswith(".expect.yaml"))


def expectations(path: Path) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = yaml.safe_load(path.with_suffix(".expect.yaml").read_text())
    return listed


def cases() -> Iterator[Any]:
    for path in POLICIES:
        for number, case in enumerate(expectations(path), start=1):
            yield pytest.param(path, case, id=f"{path.stem}-{number}")


def backend(supports: list[str]) -> Backend:
    findings = {
        Capability(name): Finding(capability=Capability(name), support=Support.YES, evidence="expected")
        for name in supports
    }
    return Backend(name="b", url="http://127.0.0.1:1", findings=findings)


@pytest.mark.parametrize(("path", "case"), list(cases()))
def test_a_shipped_policy_answers_as_expected(path: Path, case: dict[str, Any]) -> None:
    decision = decide(
        load_policy(path).policy, facts_from(case["facts"]), backend(case.get("supports", [])), 0.0
    )
    found = {name: getattr(decision, name) for name in case["expect"]}
    assert found == case["expect"], decision.trail


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_every_rule_of_a_shipped_policy_is_expected_somewhere(path: Path) -> None:
    rules = {rule.name for rule in load_policy(path).policy.rules} | {"default"}
    assert rules == {case["expect"]["rule"] for case in expectations(path)}


def test_no_expectations_lack_their_policy() -> None:
    expected = {path.name.removesuffix(".expect.yaml") for path in FOLDER.glob("*.expect.yaml")}
    assert expected == {path.stem for path in POLICIES}
