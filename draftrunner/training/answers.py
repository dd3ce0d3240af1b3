"""The demo model's own answers to the training prompts, with its likeliest tokens at every position."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from draftrunner.embedded.kv import KvCache

TOP = 16
"""How many of the likeliest tokens are kept at each position, and sampled from."""

MOST_TOKENS = 200
"""Longest answer, in tokens."""

BATCH = 64
"""Answers that are generated at once."""

_TENSORS = ("prompt", "answer", "top_ids", "top_probabilities")


@dataclass(frozen=True, slots=True)
class Answered:
    """One prompt and the target's answer to it.

    Attributes:
        workload: Of the prompt.
        sampled: Whether the answer was sampled (temperature 0.7); else it is greedy.
        prompt: Token ids. shape: [p]
        answer: Token ids, an end-of-sequence included. shape: [a]
        top_ids: The likeliest tokens at each position of the answer, best first. shape: [a, TOP]
        top_probabilities: What the target gave them at temperature 1. shape: [a, TOP]
    """

    workload: str
    sampled: bool
    prompt: torch.Tensor
    answer: torch.Tensor
    top_ids: torch.Tensor
    top_probabilities: torch.Tensor


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the target: token ids of a prompt, and the temperature of the answer."""

    workload: str
    prompt: tuple[int, ...]
    temperature: float


def answer_all(
    model: Any, questions: Sequence[Question], *, ends: frozenset[int], seed: int
) -> Iterator[Answered]:
    """Answer every question, those of like length together; they come out in another order."""
    generator = torch.Generator().manual_seed(seed)
    # Answers end together when their tasks are alike: rows that have ended are computed to no use.
    ordered = sorted(questions, key=lambda question: (question.workload, len(question.prompt)))
    for start in range(0, len(ordered), BATCH):
        yield from _answer_batch(model, ordered[start : start + BATCH], ends, generator)


@torch.inference_mode()
def _answer_batch(
    model: Any, questions: Sequence[Question], ends: frozenset[int], generator: torch.Generator
) -> list[Answered]:
    tokens, mask = _left_padded([question.prompt for question in questions])
    temperatures = torch.tensor([question.temperature for question in questions])[:, None]
    end_ids = torch.tensor(sorted(ends))
    cache = KvCache.empty(model.config.num_hidden_layers)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    over = torch.zeros(len(questions), dtype=torch.bool)
    chosen, top_ids, top_probabilities = [], [], []
    for _ in range(MOST_TOKENS):
        logits = model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]  # shape: [batch, vocab]
        top = logits.float().log_softmax(-1).topk(TOP)
        tokens = top.indices.gather(1, _choice(top.values, temperatures, generator))
        chosen.append(tokens)
        top_ids.append(top.indices.int())
        top_probabilities.append(top.values.exp().half())
        over |= torch.isin(tokens[:, 0], end_ids)
        if over.all():
            break
        mask = torch.cat([mask, mask.new_ones(len(questions), 1)], dim=1)
        positions = positions[:, -1:] + 1
    answers = torch.cat(chosen, dim=1)
    ids, probabilities = torch.stack(top_ids, dim=1), torch.stack(top_probabilities, dim=1)
    return [
        Answered(
            workload=question.workload,
            sampled=question.temperature > 0,
            prompt=torch.tensor(question.prompt, dtype=torch.int32),
            answer=answers[row, :length].int(),
            top_ids=ids[row, :length],
            top_probabilities=probabilities[row, :length],
        )
        for row, question in enumerate(questions)
        for length in [_length(answers[row], end_ids)]
    ]


def _choice(
    log_probabilities: torch.Tensor, temperatures: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """Index of the sampled token in each row, by Gumbel noise; temperature 0 takes the first."""
    uniform = torch.rand(log_probabilities.shape, generator=generator).clamp(min=1e-9)
    return (log_probabilities - temperatures * (-uniform.log()).log()).argmax(-1, keepdim=True)


def _left_padded(prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, prompts))
    tokens = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return tokens, mask


def _length(answer: torch.Tensor, end_ids: torch.Tensor) -> int:
    """Tokens up to the first end-of-sequence, that included."""
    ended = torch.isin(answer, end_ids).nonzero()
    return int(ended[0]) + 1 if len(ended) else len(answer)


def save(answers: Sequence[Answered], path: Path) -> None:
    """Write answers whole or not at all."""
    unfinished = path.with_suffix(".unfinished")
    tensors = {
        f"{number}.{part}": getattr(answered, part).contiguous()
        for number, answered in enumerate(answers)
        for part in _TENSORS
    }
    labels = [[answered.workload, answered.sampled] for answered in answers]
    save_file(tensors, unfinished, metadata={"labels": json.dumps(labels)})
    unfinished.rename(path)


def load(path: Path) -> list[Answered]:
    """Read what `save` wrote."""
    with safe_open(path, framework="pt") as file:
        labels = json.loads(file.metadata()["labels"])
        return [
            Answered(workload, sampled, *(file.get_tensor(f"{number}.{part}") for part in _TENSORS))
            for number, (workload, sampled) in enumerate(labels)
        ]
