"""A transformers model as the loop's target: one sequence, its KV cache, and logits on request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from draftrunner.embedded.kv import KvCache
from draftrunner.embedded.sampling import Row
from draftrunner.errors import StartError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CACHEABLE = {"full_attention", "sliding_attention", "chunked_attention"}


class LanguageModel:
    """A causal language model and the facts that serving it needs.

    Attributes:
        context_length: Most positions that it can hold.
        vocabulary_size: Token ids are below this.
        end_ids: Its end-of-sequence tokens.
    """

    def __init__(self, model: PreTrainedModel, *, end_ids: Iterable[int]) -> None:
        """Wrap `model`.

        Raises:
            StartError: It has no context length, or some of its layers keep a state that cannot be cut
                back to an earlier position.
        """
        config: Any = model.config.get_text_config()
        _check_attention(config)
        self._model = model
        self._layer_count: int = config.num_hidden_layers
        self.context_length: int = config.max_position_embeddings
        self.vocabulary_size: int = config.vocab_size
        self.end_ids = frozenset(end_ids)

    def empty_cache(self) -> KvCache:
        """Return a cache for a new sequence."""
        return KvCache.empty(self._layer_count)

    def target(self, cache: KvCache) -> CachedTarget:
        """Return the target that continues from what `cache` holds."""
        return CachedTarget(self._model, cache)


class CachedTarget:
    """Scores tokens after everything that its cache holds.

    Attributes:
        cache: Keys and values of every token fed and not forgotten.
    """

    def __init__(self, model: PreTrainedModel, cache: KvCache) -> None:
        self._model = model
        self.cache = cache

    def score(self, tokens: Sequence[int]) -> list[Row]:
        """Feed `tokens`; row i holds the logits that follow `tokens[:i + 1]`."""
        return self._forward(tokens, rows=len(tokens))

    def last_rows(self, tokens: Sequence[int], count: int) -> list[Row]:
        """Feed `tokens` and return the logits that follow each of the last `count`."""
        return self._forward(tokens, rows=count)

    def prefill(self, tokens: Sequence[int]) -> Row:
        """Feed `tokens` and return the logits that follow the last."""
        (row,) = self._forward(tokens, rows=1)
        return row

    def rewind(self, length: int) -> None:
        """Forget every cached position from `length` on."""
        self.cache.cut(length)

    @torch.inference_mode()
    def _forward(self, tokens: Sequence[int], rows: int) -> list[Row]:
        output = self._model(
            input_ids=torch.tensor([tokens]), cache=self.cache, use_cache=True, logits_to_keep=rows
        )
        return list(output.logits[0].float().numpy())  # shape: [rows, vocab]


def _check_attention(config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or ())
    if unsuited := sorted(kinds - _CACHEABLE):
        raise StartError(
            f"this model has layers of kind {', '.join(unsuited)}, whose state cannot be cut back when a "
            f"draft is rejected. Kinds that can be served: {', '.join(sorted(_CACHEABLE))}."
        )
    if not hasattr(config, "max_position_embeddings"):
        raise StartError(
            "this model's config.json has no max_position_embeddings, so its context length is not known. "
            "Models with ordinary attention have one; others cannot be served."
        )
