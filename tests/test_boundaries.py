"""Who may import whom, and which tables must agree."""

import ast
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gateway
import probes
from draftrunner.profiles import PROFILES
from gateway.cli.backends import KINDS
from gateway.fleet.model import EngineKind
from gateway.proxy.dialects import DIALECTS
from gateway.shadow.profiles import PROFILES as REPLAYED_AS
from probes.suite import SUITES

ROOT = Path(__file__).parents[1]
OURS = {"gateway", "probes", "draftrunner", "policies", "tests"}
MAY_IMPORT = {
    "gateway": {"gateway", "probes", "policies"},
    "probes": {"probes"},
    "draftrunner": {"draftrunner"},
}
HEAVY = {"torch", "transformers", "openai"}


def imports(tree: ast.AST) -> Iterator[str]:
    """The top-level packages that a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "an import is written with its full name"
            yield str(node.module).partition(".")[0]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_one_way(package: str) -> None:
    sources = sorted((ROOT / package).rglob("*.py"))
    assert sources
    for source in sources:
        ours = OURS & set(imports(ast.parse(source.read_text(encoding="utf-8"))))
        assert ours <= MAY_IMPORT[package], f"{source} imports {sorted(ours - MAY_IMPORT[package])}"


@pytest.mark.slow
def test_no_module_of_the_gateway_or_of_the_probes_loads_torch_transformers_or_openai() -> None:
    modules = [
        module.name
        for package in (gateway, probes)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        # Alembic imports these itself, while it migrates.
        if ".migrations." not in module.name
    ]
    code = f"import sys, {', '.join(modules)}; print(sorted({HEAVY} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_every_engine_kind_is_complete() -> None:
    kinds = {str(kind) for kind in EngineKind}
    assert kinds == set(map(str, SUITES)) == set(map(str, DIALECTS)) == set(map(str, REPLAYED_AS))


def test_the_draft_runner_knows_every_profile_that_it_is_asked_for() -> None:
    assert set(REPLAYED_AS.values()) <= set(PROFILES)


def test_the_command_line_knows_every_engine_kind() -> None:
    assert {"auto", *map(str, EngineKind)} <= set(KINDS)
