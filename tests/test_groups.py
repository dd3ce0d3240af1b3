"""Every test belongs to one group that a make target runs and CI calls; none may fall between them."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = re.findall(r"^make (test\S*)$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.M)
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]
MARKS = [line.partition(":")[0] for line in SETTINGS["ini_options"]["markers"]]
EVERY_MIX = [
    frozenset(mix) for count in range(len(MARKS) + 1) for mix in itertools.combinations(MARKS, count)
]


def recipe(target: str) -> str:
    """The commands of a make target."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.M)
    assert found is not None, f"the Makefile has no target {target}"
    return found[1]


def runs(target: str, marks: frozenset[str]) -> bool:
    """Whether a target's selection takes a test with these marks."""
    selection = re.search(r"-m '([^']+)'", recipe(target))
    assert selection is not None, f"{target} selects no tests by their marks"
    return Expression.compile(selection[1]).evaluate(lambda name, /, **_: name in marks)


def test_ci_calls_every_group_of_tests() -> None:
    assert TARGETS == ["test", "test-integration", "test-vllm", "test-ops"]


@pytest.mark.parametrize("marks", EVERY_MIX, ids=lambda marks: "+".join(sorted(marks)) or "unmarked")
def test_one_target_runs_a_test_whatever_its_marks(marks: frozenset[str]) -> None:
    running = [target for target in TARGETS if runs(target, marks)]
    assert len(running) == 1, f"a test marked {sorted(marks)} is run by {running}"


def test_a_skip_that_is_not_allowed_fails_every_group() -> None:
    assert re.search(r"^PYTEST := .* --only-skip tests/allowed_skips.txt$", MAKEFILE, re.M)
    assert all("$(PYTEST)" in recipe(target) for target in TARGETS)


@pytest.mark.parametrize("group", ["integration", "vllm", "ops"])
def test_a_folder_of_a_group_holds_no_test_of_another(group: str) -> None:
    files = sorted((ROOT / "tests" / group).rglob("test_*.py"))
    assert files
    for file in files:
        marks = re.search(r"^pytestmark = .*$", file.read_text(encoding="utf-8"), re.M)
        assert marks is not None, f"{file} has no pytestmark"
        assert f"pytest.mark.{group}" in marks[0], f"{file} is not marked {group}"
