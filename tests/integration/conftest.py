from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.processes import Stack

POLICY = """
version: 1
rules:
  - {name: off, match: {tenant: off}, mode: off}
  - {name: shadow, match: {tenant: shadow}, mode: shadow, draft: ngram}
  - name: prod
    match: {tenant: prod}
    mode: prod
    experimental: true
    draft: ngram
    prod: {control: {fraction: 0}}
"""


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer model on disk."""
    pytest.importorskip("torch", reason="the embedded backend needs torch")
    from tests.fakes.tiny_lm import build_tiny_lm

    return build_tiny_lm(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def stack(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The three parts, with a rule for each mode chosen by tenant; shared by a module's tests."""
    with Stack(tmp_path_factory.mktemp("stack"), model=str(tiny_model), policy=POLICY) as running:
        yield running


@pytest.fixture(scope="module")
def keys(stack: Stack) -> dict[str, str]:
    """An API key for each mode."""
    return {mode: stack.key(mode) for mode in ("off", "shadow", "prod")}
