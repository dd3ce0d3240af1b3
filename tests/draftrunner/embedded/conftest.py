from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from draftrunner.weights import Checkpoint


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Tiny matrices are multiplied faster by one thread than by several that wait for one another."""
    if importlib.util.find_spec("torch"):
        import torch

        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Two random layers, their tokenizer and their chat template, on disk."""
    from draftrunner.weights import find_checkpoint
    from tests.fakes.tiny_lm import build_tiny_lm

    return find_checkpoint(str(build_tiny_lm(tmp_path_factory.mktemp("models") / "tiny")))
