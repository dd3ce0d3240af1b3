"""Language models without downloads: two random layers with a tokenizer, and one that recites a script."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT_LENGTH = 512
VOCABULARY_SIZE = 400

_FastTokenizer: Any = PreTrainedTokenizerFast
_FAVOURED = [282, 346, 381, 389, 393]
"""` qu`, ` six`, ` over`, ` fait`, ` answer`: their text is tokenised back to the same ids."""
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ('system', 'user', 'assistant') %}"
    "{{ raise_exception('unknown role') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_CORPUS = [
    "the quick brown fox jumps over the lazy dog and the dog sleeps in the sun",
    "def add(first, second):\n    return first + second\n",
    "user assistant system question answer one two three four five six seven",
    "Il fait très froid en hiver, 3 € le thé à Zürich.",
]


def build_tiny_lm(folder: Path) -> Path:
    """Save a small random Llama and its tokenizer as `folder`, loadable by path."""
    tokenizer = _trained_tokenizer()
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_LENGTH,
        initializer_range=0.4,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model: Any = LlamaForCausalLM(config)
    with torch.no_grad():
        # A few tokens are favoured, and the last ones weigh more than the distant: answers then repeat
        # themselves, greedy or sampled, and some of the drafts copied from them are accepted.
        model.lm_head.weight[_FAVOURED] *= 6
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight *= 0.3
    model.save_pretrained(folder)
    return folder


def _trained_tokenizer() -> Any:
    """A byte-level BPE: any text can be spelled, and rare characters take several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    fast = _FastTokenizer(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = _CHAT_TEMPLATE
    return fast


class MarkovModel:
    """Takes the place of a transformers model whose logits depend on the last token alone.

    Args:
        logits: Row t holds those after token t; shape [vocab, vocab].
    """

    def __init__(self, logits: torch.Tensor) -> None:
        text_config = SimpleNamespace(
            num_hidden_layers=1, max_position_embeddings=CONTEXT_LENGTH, vocab_size=len(logits)
        )
        self.config = SimpleNamespace(get_text_config=lambda: text_config)
        self._logits = logits

    def __call__(
        self, *, input_ids: torch.Tensor, cache: Any, use_cache: bool, logits_to_keep: int
    ) -> SimpleNamespace:
        states = torch.zeros(1, 1, input_ids.shape[1], 1)
        cache.update(states, states, 0)
        return SimpleNamespace(logits=self._logits[input_ids[:, -logits_to_keep:]])


def drifted(model: Any, share: float) -> Any:
    """The same model, its weights off by `share` of their spread: it often agrees with what it was."""
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight += share * weight.std() * torch.randn(weight.shape, generator=noise)
    return model


class ScriptedModel:
    """Takes the place of a transformers model, and predicts a script by position whatever it is fed.

    With `gated`, every forward waits for `let`.

    Attributes:
        fed: The tokens of every forward so far.
    """

    def __init__(self, script: Sequence[int], *, vocabulary_size: int, gated: bool = False) -> None:
        self.fed: list[list[int]] = []
        text_config = SimpleNamespace(
            num_hidden_layers=1, max_position_embeddings=CONTEXT_LENGTH, vocab_size=vocabulary_size
        )
        self.config = SimpleNamespace(get_text_config=lambda: text_config)
        self._script = list(script)
        self._vocabulary_size = vocabulary_size
        self._permits = threading.Semaphore(0) if gated else None

    def let(self, forwards: int) -> None:
        """Allow this many forwards more."""
        assert self._permits is not None, "the model is not gated"
        self._permits.release(forwards)

    def __call__(
        self, *, input_ids: torch.Tensor, cache: Any, use_cache: bool, logits_to_keep: int
    ) -> SimpleNamespace:
        if self._permits is not None:
            self._permits.acquire()
        self.fed.append(input_ids[0].tolist())
        begin = cache.get_seq_length()
        states = torch.zeros(1, 1, input_ids.shape[1], 1)
        cache.update(states, states, 0)
        logits = torch.zeros(1, input_ids.shape[1], self._vocabulary_size)
        for row in range(input_ids.shape[1]):
            position = begin + row + 1
            if position < len(self._script):
                logits[0, row, self._script[position]] = 10.0
        return SimpleNamespace(logits=logits[:, -logits_to_keep:])
