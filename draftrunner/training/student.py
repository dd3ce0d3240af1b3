"""The draft model: a tiny Llama that starts from the target's embeddings and learns its answers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from draftrunner.training.answers import Answered

CONTEXT_LENGTH = 2048
"""Answers that are trained on are shorter; relative positions make it carry further."""

_EMBEDDING_SPREAD = 0.04
"""Standard deviation of the first embeddings."""

_STRANGERS = 4096
"""Tokens that nobody thought likely and that an update teaches to be unlikely, drawn anew each time.

All others are left out of it: the full vocabulary would be four fifths of the work.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What decides how good the model becomes, next to its data.

    Attributes:
        hidden: Width; the shared embedding of 49,152 tokens is nearly all of the model.
        layers: Attention layers. Copying from the context takes at least two.
        copy_steps: Updates, the first ones, that also teach to copy random tokens that repeat
            themselves: without them it is long before the model copies.
        epochs: Passes over the answers.
        rate: Highest learning rate.
        batch_tokens: Tokens of an update, padding included.
        seed: Of the first weights and of the order of the answers.
    """

    hidden: int = 128
    layers: int = 4
    copy_steps: int = 200
    epochs: int = 5
    rate: float = 2e-3
    batch_tokens: int = 1536
    seed: int = 0


def make_student(target: Any, recipe: Recipe) -> Any:
    """Return a small model of the target's vocabulary, its embeddings the target's in fewer dimensions."""
    torch.manual_seed(recipe.seed)
    config = target.config
    student: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=recipe.hidden,
            intermediate_size=4 * recipe.hidden,
            num_hidden_layers=recipe.layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=CONTEXT_LENGTH,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
            pad_token_id=config.pad_token_id,
        )
    )
    with torch.no_grad():
        student.get_input_embeddings().weight.copy_(
            _principal_components(target.get_input_embeddings().weight.float(), recipe.hidden)
        )
    return student


def _principal_components(rows: torch.Tensor, count: int) -> torch.Tensor:
    centred = rows - rows.mean(0)  # shape: [vocab, wide]
    _, directions = torch.linalg.eigh(centred.T @ centred)  # ascending
    components = centred @ directions[:, -count:]  # shape: [vocab, count]
    # Also used as output weights: any larger, and each token would be sure that it follows itself.
    scaled: torch.Tensor = components * (_EMBEDDING_SPREAD / components.std())
    return scaled


def train(student: Any, answers: Sequence[Answered], recipe: Recipe, say: Callable[[str], None]) -> None:
    """Teach `student` to give the target's probabilities at every position of every answer."""
    draw = random.Random(recipe.seed)  # noqa: S311 - to be the same each time
    epochs = [_groups(answers, recipe.batch_tokens, draw) for _ in range(recipe.epochs)]
    optimizer = torch.optim.AdamW(_weight_groups(student, recipe), betas=(0.9, 0.98), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _warm_then_cosine(sum(map(len, epochs))))
    generator = torch.Generator().manual_seed(recipe.seed)
    student.train()

    def update(loss: torch.Tensor, *others: torch.Tensor) -> float:
        optimizer.zero_grad(set_to_none=True)
        sum(others, loss).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss.item()

    repetitions = _repetitions(answers, recipe, generator)
    for epoch, groups in enumerate(epochs):
        losses = [
            update(
                _answer_loss(student, _padded(group), generator),
                *(_copy_loss(student, tokens) for tokens in islice(repetitions, 1)),
            )
            for group in groups
        ]
        say(f"epoch {epoch + 1} of {recipe.epochs}: loss {sum(losses) / len(losses):.3f}")
    student.eval()


def _weight_groups(student: Any, recipe: Recipe) -> list[dict[str, Any]]:
    """The embeddings, which are good from the start, and whose rows are each seen seldom, learn slowly."""
    embeddings = student.get_input_embeddings().weight
    others = [weight for weight in student.parameters() if weight is not embeddings]
    return [
        {"params": [embeddings], "lr": recipe.rate / 2, "weight_decay": 0.0},
        {"params": [weight for weight in others if weight.ndim > 1], "lr": recipe.rate, "weight_decay": 0.05},
        {"params": [weight for weight in others if weight.ndim == 1], "lr": recipe.rate, "weight_decay": 0.0},
    ]


def _warm_then_cosine(steps: int, warm: int = 50) -> Callable[[int], float]:
    def share(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))

    return share


def _repetitions(
    answers: Sequence[Answered], recipe: Recipe, generator: torch.Generator, length: int = 96
) -> Iterator[torch.Tensor]:
    """Token sequences that say twice what has no other pattern (shape: [rows, 2 * length])."""
    common = torch.cat([answered.prompt for answered in answers]).long()
    for _ in range(recipe.copy_steps):
        picks = torch.randint(len(common), (recipe.batch_tokens // (4 * length), length), generator=generator)
        once = common[picks]
        yield torch.cat([once, once], dim=1)


def _copy_loss(student: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the second half of each row, but for its first token."""
    half = tokens.shape[1] // 2
    hidden = _hidden_states(student, tokens)[:, half:-1]
    known, targets = torch.unique(tokens[:, half + 1 :], return_inverse=True)
    return functional.cross_entropy(_logits(student, hidden.flatten(0, 1), known), targets.flatten())


@dataclass(frozen=True, slots=True)
class _Batch:
    """Answers of like length, padded on the right.

    Attributes:
        tokens: Prompts and answers. shape: [rows, longest]
        places: Indices into the flattened tokens: each is followed by an answer token. shape: [n]
        top_ids: The target's likeliest tokens at each place. shape: [n, TOP]
        top_probabilities: Their shares; a row sums to 1. shape: [n, TOP]
    """

    tokens: torch.Tensor
    places: torch.Tensor
    top_ids: torch.Tensor
    top_probabilities: torch.Tensor


def _groups(answers: Sequence[Answered], batch_tokens: int, draw: random.Random) -> list[list[Answered]]:
    """All answers in groups of like length; which share one, and their order, is drawn anew each time."""

    def length(answered: Answered) -> int:
        return len(answered.prompt) + len(answered.answer)

    # Lengths within sixteen of one another count as equal, so that groups differ between epochs.
    ordered = sorted(answers, key=lambda answered: (length(answered) // 16, draw.random()))
    groups: list[list[Answered]] = [[]]
    for answered in ordered:
        if groups[-1] and (len(groups[-1]) + 1) * length(answered) > batch_tokens:
            groups.append([])
        groups[-1].append(answered)
    draw.shuffle(groups)
    return groups


def _padded(group: Sequence[Answered]) -> _Batch:
    whole = [torch.cat([answered.prompt, answered.answer]).long() for answered in group]
    tokens = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True)
    places = torch.cat(
        [
            row * tokens.shape[1] + len(answered.prompt) - 1 + torch.arange(len(answered.answer))
            for row, answered in enumerate(group)
        ]
    )
    probabilities = torch.cat([answered.top_probabilities for answered in group]).float()
    return _Batch(
        tokens=tokens,
        places=places,
        top_ids=torch.cat([answered.top_ids for answered in group]).long(),
        top_probabilities=probabilities / probabilities.sum(-1, keepdim=True),
    )


def _answer_loss(student: Any, batch: _Batch, generator: torch.Generator) -> torch.Tensor:
    """Cross-entropy against the target's own probabilities, among the likely tokens and some strangers."""
    hidden = _hidden_states(student, batch.tokens).flatten(0, 1)[batch.places]
    strangers = torch.randint(student.config.vocab_size, (_STRANGERS,), generator=generator)
    known, places = torch.unique(torch.cat([batch.top_ids.flatten(), strangers]), return_inverse=True)
    logits = _logits(student, hidden, known)  # shape: [n, known]
    top = places[: batch.top_ids.numel()].view_as(batch.top_ids)
    expected = (batch.top_probabilities * logits.gather(1, top)).sum(-1)
    return (logits.logsumexp(-1) - expected).mean()


def _hidden_states(student: Any, tokens: torch.Tensor) -> torch.Tensor:
    """No mask is needed: padding stands on the right, where no token looks."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states: torch.Tensor = student.model(input_ids=tokens, use_cache=False).last_hidden_state
    return states


def _logits(student: Any, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The logits of `tokens` alone (shape: [n, tokens])."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits: torch.Tensor = hidden @ student.lm_head.weight[tokens].T
    return logits.float()


@torch.inference_mode()
def agreement(student: Any, answers: Sequence[Answered]) -> dict[tuple[str, bool], float]:
    """Share of answer tokens that the student's likeliest token equals, by (workload, sampled)."""
    agreed: dict[tuple[str, bool], list[float]] = {}
    for answered in answers:
        tokens = torch.cat([answered.prompt, answered.answer]).long()
        hidden = student.model(input_ids=tokens[None], use_cache=False).last_hidden_state[0]
        guesses = student.lm_head(hidden[len(answered.prompt) - 1 : -1]).argmax(-1)
        agreed.setdefault((answered.workload, answered.sampled), []).extend(
            (guesses == answered.answer).float().tolist()
        )
    return {key: sum(hits) / len(hits) for key, hits in sorted(agreed.items())}
