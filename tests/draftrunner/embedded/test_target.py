from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from draftrunner.embedded.kv import KvCache  # noqa: E402 - after the skip
from draftrunner.embedded.target import LanguageModel  # noqa: E402
from draftrunner.errors import StartError  # noqa: E402

SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "initializer_range": 0.4,
}
SEQUENCE = [(7 * i * i + 3) % 50 for i in range(150)]


def random_model(config: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return transformers.AutoModelForCausalLM.from_config(config).eval()


MODELS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "sliding window": lambda: transformers.MistralConfig(**SMALL, sliding_window=5),
    "mixed windows": lambda: transformers.Gemma3TextConfig(
        **SMALL,
        head_dim=8,
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "learned positions": lambda: transformers.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=256, initializer_range=0.4
    ),
}


@pytest.fixture(scope="module", params=list(MODELS))
def raw_model(request: pytest.FixtureRequest) -> Any:
    return random_model(MODELS[request.param]())


def whole(raw_model: Any, tokens: list[int]) -> Any:
    """Logits of every position in one forward without a cache."""
    with torch.inference_mode():
        return raw_model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def served(raw_model: Any) -> LanguageModel:
    return LanguageModel(raw_model, end_ids=())


@pytest.mark.parametrize("width", [1, 2, 6, 17])
def test_scoring_in_pieces_equals_scoring_at_once(raw_model: Any, width: int) -> None:
    model = served(raw_model)
    target = model.target(model.empty_cache())
    rows = [target.prefill(SEQUENCE[:11])]
    for begin in range(11, 100, width):
        rows += target.score(SEQUENCE[begin : begin + width])
    expected = whole(raw_model, SEQUENCE[: 10 + len(rows)])[10:]
    np.testing.assert_allclose(np.stack(rows), expected, atol=2e-4)


@pytest.mark.parametrize("kept", [1, 4, 9, 140])
def test_what_was_cut_leaves_no_trace(raw_model: Any, kept: int) -> None:
    model = served(raw_model)
    target = model.target(model.empty_cache())
    target.prefill(SEQUENCE[:kept])
    target.score([1, 2, 3, 4, 5, 6])
    target.rewind(kept)
    continued = target.score(SEQUENCE[kept : kept + 6])
    np.testing.assert_allclose(np.stack(continued), whole(raw_model, SEQUENCE[: kept + 6])[kept:], atol=2e-4)


def test_a_fork_continues_on_its_own(raw_model: Any) -> None:
    model = served(raw_model)
    original = model.empty_cache()
    model.target(original).prefill(SEQUENCE[:20])
    fork = original.fork(12, capacity=12)
    model.target(original).score([1, 2, 3])
    continued = model.target(fork).score(SEQUENCE[12:40])
    np.testing.assert_allclose(np.stack(continued), whole(raw_model, SEQUENCE[:40])[12:], atol=2e-4)
    assert (original.length, fork.length) == (23, 40)


def test_cutting_moves_no_memory() -> None:
    model = served(random_model(MODELS["llama"]()))
    cache = model.empty_cache()
    model.target(cache).prefill(SEQUENCE[:20])
    buffers = [layer._key_buffer.data_ptr() for layer in cache._growing]
    cache.cut(5)
    model.target(cache).score(SEQUENCE[5:15])
    assert buffers == [layer._key_buffer.data_ptr() for layer in cache._growing]


def test_a_cache_starts_empty() -> None:
    assert KvCache.empty(layer_count=2).length == 0


def test_a_model_is_known_by_its_context_vocabulary_and_ends() -> None:
    model = LanguageModel(random_model(MODELS["llama"]()), end_ids=[3, 4])
    assert (model.context_length, model.vocabulary_size, model.end_ids) == (256, 50, frozenset({3, 4}))


def test_a_model_with_a_state_that_cannot_be_cut_back_is_refused() -> None:
    config = MODELS["llama"]()
    config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(StartError, match=r"linear_attention.*can be served: .*full_attention"):
        LanguageModel(random_model(config), end_ids=())


def test_a_model_without_a_context_length_is_refused() -> None:
    config = SimpleNamespace(num_hidden_layers=1, vocab_size=50)
    unbounded: Any = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: config))
    with pytest.raises(StartError, match="max_position_embeddings"):
        LanguageModel(unbounded, end_ids=())
