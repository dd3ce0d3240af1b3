from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from draftrunner.embedded.target import LanguageModel
    from draftrunner.weights import Checkpoint


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Two random layers, their tokenizer and their chat template, on disk."""
    from draftrunner.weights import find_checkpoint
    from tests.fakes.tiny_lm import build_tiny_lm

    return find_checkpoint(str(build_tiny_lm(tmp_path_factory.mktemp("models") / "tiny")))
