from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from draftrunner.drafters.loading import load_draft_model
from draftrunner.embedded.engine import Limits
from draftrunner.embedded.server import assemble, check_pair, run
from draftrunner.embedded.target import LanguageModel
from draftrunner.errors import StartError
from draftrunner.weights import Checkpoint, load_model, load_tokenizer


@pytest.fixture(scope="module")
def target(tiny_checkpoint: Checkpoint) -> LanguageModel:
    return LanguageModel(load_model(tiny_checkpoint, "float32"), end_ids=())


@pytest.fixture(scope="module")
def strange(tiny_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose tokenizer has one token more."""
    folder = Path(shutil.copytree(tiny_checkpoint.folder, tmp_path_factory.mktemp("models") / "strange"))
    tokenizer = load_tokenizer(tiny_checkpoint)
    tokenizer.add_tokens(["<tool>"])
    tokenizer.save_pretrained(folder)
    return folder


def test_a_draft_model_of_the_same_tokenizer_is_among_the_drafters(
    target: LanguageModel, tiny_checkpoint: Checkpoint
) -> None:
    draft_model = load_draft_model(str(tiny_checkpoint.folder), device="cpu", memory_gib=1.0)
    tokenizer = load_tokenizer(tiny_checkpoint)
    check_pair(target, tokenizer, draft_model)
    backend = assemble(
        target,
        tokenizer=tokenizer,
        engine_tokenizer=load_tokenizer(tiny_checkpoint),
        model_id="tiny",
        limits=Limits(),
        draft_model=draft_model.drafter,
    )
    assert set(backend.drafters) == {"draft_model", "ngram", "suffix"}


def test_a_draft_model_of_another_tokenizer_stops_the_start(
    tiny_checkpoint: Checkpoint, strange: Path
) -> None:
    draft_model = load_draft_model(str(strange), device="cpu", memory_gib=1.0)
    asked: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "dtype": "float32", "draft_model": draft_model}
    with pytest.raises(StartError, match=r"first at id \d+: no token of the target and the token '<tool>'"):
        run(model=str(tiny_checkpoint.folder), **asked)
