"""Where two answers part: how undecided the target itself is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gateway.demo.client import Answer
from gateway.demo.measure import Trial
from gateway.evidence.identity import first_difference

Complete = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Posts a `/v1/completions` body and returns the answer."""


def undecided(trials: Iterable[Trial], *, model: str, complete: Complete) -> dict[str, Sequence[float]]:
    """For every answer that parts from its off answer, by request id: the two best log-probabilities there.

    Args:
        trials: What was answered.
        model: The model that answered.
        complete: Asks the backend itself, plainly.
    """
    best = {}
    for trial in trials:
        for answer in trial.answers.values():
            position = first_difference(trial.off.ids, answer.ids)
            if position is not None:
                best[answer.request_id] = _best_two(answer, position, model, complete)
    return best


def _best_two(answer: Answer, position: int, model: str, complete: Complete) -> Sequence[float]:
    reply = complete(
        {
            "model": model,
            "prompt": [*answer.prompt_ids, *answer.ids[:position]],
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": 2,
        }
    )
    logprobs: Mapping[str, float] = reply["choices"][0]["logprobs"]["top_logprobs"][0]
    return sorted(logprobs.values(), reverse=True)[:2]
