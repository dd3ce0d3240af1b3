from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402 - after the skip

from draftrunner.drafters import make_drafters  # noqa: E402 - after the skip
from draftrunner.drafters.draft_model import SLOTS  # noqa: E402
from draftrunner.drafters.loading import DraftModel, footprint, load_draft_model  # noqa: E402
from draftrunner.errors import StartError  # noqa: E402
from draftrunner.profiles import PROFILES  # noqa: E402
from draftrunner.weights import (  # noqa: E402
    HOT_TOKEN_IDS,
    TOKEN_MAP_FILE,
    WEIGHTS_FILE,
    UnusableModel,
    find_draft_checkpoint,
    fingerprint,
)
from tests.fakes.tiny_lm import CONTEXT_LENGTH, build_tiny_lm  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_lm(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def loaded(folder: Path) -> DraftModel:
    return load_draft_model(str(folder), device="cpu", memory_gib=1.0)


def test_a_loaded_model_says_what_it_is(loaded: DraftModel, folder: Path) -> None:
    assert loaded.described() == {
        "name": "tiny",
        "fingerprint": fingerprint(find_draft_checkpoint(str(folder))),
        "vocabulary_size": len(loaded.tokenizer),
        "device": "cpu",
        "context_length": CONTEXT_LENGTH,
        "outgrown": 0,
    }
    assert loaded.announced().items() <= loaded.described().items()


def test_it_drafts_under_every_profile(loaded: DraftModel) -> None:
    drafters = make_drafters(loaded.drafter)
    assert set(drafters["draft_model"]) == set(PROFILES)
    assert len(drafters["draft_model"]["embedded"].open([5, 6, 7]).propose(4)) == 4


def test_ids_are_spelled_special_tokens_included(loaded: DraftModel) -> None:
    ids = loaded.tokenizer.encode("the fox", add_special_tokens=False)
    assert loaded.texts([[0, *ids], []]) == ["<|im_start|>the fox", ""]


def test_another_checkpoint_has_another_fingerprint(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    name = fingerprint(find_draft_checkpoint(str(folder)))
    assert fingerprint(find_draft_checkpoint(str(copy))) == name
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-4}))
    assert fingerprint(find_draft_checkpoint(str(copy))) != name


# --- what is refused -------------------------------------------------------------------------


def test_a_model_beyond_its_memory_is_refused_with_the_numbers(folder: Path) -> None:
    with pytest.raises(UnusableModel) as refused:
        load_draft_model(str(folder), device="cpu", memory_gib=0.001)
    needed = footprint(transformers.AutoConfig.from_pretrained(folder))
    assert f"may take {needed.total / 2**30:.2f} GiB" in str(refused.value)
    assert "Allowed are 0.00 GiB; --draft-memory allows more" in str(refused.value)


def test_the_footprint_is_what_is_allocated(loaded: DraftModel, folder: Path) -> None:
    needed = footprint(transformers.AutoConfig.from_pretrained(folder))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert needed.weights == sum(weight.numel() * 4 for weight in model.parameters())
    # Keys and values, of two layers with two heads of eight numbers.
    assert needed.caches == 2 * 2 * 2 * 8 * 4 * CONTEXT_LENGTH * SLOTS


def test_a_cuda_device_without_room_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(is_available=lambda: True, mem_get_info=lambda: (2**20, 2**34))
    monkeypatch.setattr(torch, "cuda", cuda)
    with pytest.raises(UnusableModel, match=r"The CUDA device has 0\.00 GiB free; --device cpu"):
        load_draft_model(str(folder), device="auto", memory_gib=1.0)


def test_a_device_that_is_not_there_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(is_available=lambda: False))
    with pytest.raises(StartError, match="--device cuda: torch finds no CUDA device here"):
        load_draft_model(str(folder), device="cuda", memory_gib=1.0)


def test_a_folder_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableModel, match=f"--draft-model '{tmp_path}' names no checkpoint"):
        load_draft_model(str(tmp_path), device="cpu", memory_gib=1.0)


def test_weights_that_cannot_be_read_are_named(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / "config.json").write_text(json.dumps({"model_type": "no-such-type"}))
    with pytest.raises(UnusableModel, match=f"cannot load {copy}"):
        load_draft_model(str(copy), device="cpu", memory_gib=1.0)


def test_missing_weights_are_named_and_not_made_up(folder: Path, tmp_path: Path) -> None:
    """transformers would put random numbers there, and the drafts would be noise."""
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    weights = load_file(copy / WEIGHTS_FILE)
    gone = [name for name in weights if ".mlp." in name][:1]
    save_file({name: weights[name] for name in weights if name not in gone}, copy / WEIGHTS_FILE)
    with pytest.raises(UnusableModel, match=f"lacks weights that its config.json asks for: {gone[0]}"):
        load_draft_model(str(copy), device="cpu", memory_gib=1.0)


def test_a_token_map_limits_the_proposals_and_its_rows_count_as_memory(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    save_file({HOT_TOKEN_IDS: torch.tensor([9, 4], dtype=torch.int32)}, copy / TOKEN_MAP_FILE)
    mapped = load_draft_model(str(copy), device="cpu", memory_gib=1.0)
    assert set(mapped.drafter.open([5, 6, 7]).propose(8)) <= {4, 9}
    config = transformers.AutoConfig.from_pretrained(copy)
    more = footprint(config, hot_ids=2).weights - footprint(config).weights
    assert more == 2 * config.hidden_size * 4


def test_a_token_map_that_cannot_be_read_is_named(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / TOKEN_MAP_FILE).write_bytes(b"no tensors")
    with pytest.raises(UnusableModel, match=f"cannot load {copy}"):
        load_draft_model(str(copy), device="cpu", memory_gib=1.0)
