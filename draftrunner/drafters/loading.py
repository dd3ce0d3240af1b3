"""From `--draft-model` to a drafter: the checkpoint found, its memory checked, its weights loaded."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase

from draftrunner.drafters.draft_model import SLOTS, DraftModelDrafter, check_draftable, usable_context
from draftrunner.errors import StartError
from draftrunner.weights import (
    Checkpoint,
    UnusableModel,
    find_draft_checkpoint,
    fingerprint,
    load_draft,
    load_token_map,
    load_tokenizer,
    loading,
)

_BYTES = 4
"""Of a number: drafting is in float32, so that replay and live drafting agree."""

_GIB = 2**30

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """A draft model in memory.

    Attributes:
        drafter: Proposes with it.
        tokenizer: The one that its ids belong to.
        name: What records and pages call it.
        fingerprint: Of its weights and configuration; another checkpoint has another.
        device: Where it computes: `cpu` or `cuda`.
        vocabulary_size: How many token ids it reads; those that its tokenizer lacks are padding.
        _decoding: A tokenizer serves one thread at a time.
    """

    drafter: DraftModelDrafter
    tokenizer: PreTrainedTokenizerBase
    name: str
    fingerprint: str
    device: str
    vocabulary_size: int
    _decoding: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def announced(self) -> dict[str, Any]:
        """What gateways are told of it, as JSON members."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "vocabulary_size": len(self.tokenizer),
        }

    def described(self) -> dict[str, Any]:
        """What operators may want to know besides."""
        return self.announced() | {
            "device": self.device,
            "context_length": self.drafter.context_length,
            "outgrown": self.drafter.outgrown,
        }

    def texts(self, lists: Sequence[Sequence[int]]) -> list[str]:
        """The text of each list of ids, special tokens included, as a server's /detokenize spells it."""
        with self._decoding:
            return [str(self.tokenizer.decode(list(ids), skip_special_tokens=False)) for ids in lists]


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes that a draft model will take, at most."""

    weights: int
    caches: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.caches


def load_draft_model(model: str, *, device: str, memory_gib: float) -> DraftModel:
    """Load what `--draft-model` names, in float32.

    Args:
        model: `demo`, or a folder with a transformers checkpoint and its tokenizer.
        device: `auto` (CUDA where there is one), `cpu` or `cuda`.
        memory_gib: Refuse to load what may take more.

    Raises:
        StartError: It cannot be found, does not fit into the memory, or cannot be drafted with.
    """
    checkpoint = find_draft_checkpoint(model)
    place = _device(device)
    hot_ids = load_token_map(checkpoint)
    _check_memory(
        checkpoint.weights,
        place,
        int(memory_gib * _GIB),
        hot_ids=0 if hot_ids is None else len(hot_ids),
    )
    tokenizer = load_tokenizer(checkpoint.tokenizer)
    loaded: Any = load_draft(checkpoint, "float32")
    drafter = DraftModelDrafter(loaded.to(place), known_ids=len(tokenizer), hot_ids=hot_ids)
    logger.info("draft model %s on %s", checkpoint.weights.model_id, place)
    return DraftModel(
        drafter=drafter,
        tokenizer=tokenizer,
        name=checkpoint.weights.model_id,
        fingerprint=fingerprint(checkpoint),
        device=place,
        vocabulary_size=loaded.get_input_embeddings().num_embeddings,
    )


def footprint(config: Any, *, hot_ids: int = 0) -> Footprint:
    """What a model of this configuration takes, with all its slots full.

    Args:
        config: Of the model.
        hot_ids: How many ids its token map holds; their rows of the output layer are copied.
    """
    with torch.device("meta"):
        shapes: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    position = 2 * text.num_hidden_layers * heads * head_size
    return Footprint(
        weights=_BYTES * (sum(weight.numel() for weight in shapes.parameters()) + hot_ids * text.hidden_size),
        caches=_BYTES * position * usable_context(text) * SLOTS,
    )


def _device(asked: str) -> str:
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if asked == "cuda" and not torch.cuda.is_available():
        raise StartError("--device cuda: torch finds no CUDA device here. Use --device cpu or auto.")
    return asked


def _check_memory(checkpoint: Checkpoint, device: str, allowed: int, *, hot_ids: int) -> None:
    with loading(checkpoint):
        config = AutoConfig.from_pretrained(checkpoint.folder, local_files_only=True)
    check_draftable(config.get_text_config())
    needed = footprint(config, hot_ids=hot_ids)
    takes = (
        f"the draft model {checkpoint.model_id} may take {_gib(needed.total)}: {_gib(needed.weights)} of "
        f"weights, {_gib(needed.caches)} for {SLOTS} answers"
    )
    if needed.total > allowed:
        raise UnusableModel(f"{takes}. Allowed are {_gib(allowed)}; --draft-memory allows more.")
    if device == "cuda" and needed.total > (free := torch.cuda.mem_get_info()[0]):
        raise UnusableModel(f"{takes}. The CUDA device has {_gib(free)} free; --device cpu uses none of it.")


def _gib(count: int) -> str:
    return f"{count / _GIB:.2f} GiB"
