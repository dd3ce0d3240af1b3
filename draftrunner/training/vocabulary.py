"""Which tokens the draft model may propose: the frequent ones (FR-Spec, Zhao et al. 2025).

A small model spends most of a forward on scoring the vocabulary, and its rare tokens hardly ever come up.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftrunner.training.answers import Answered


def hot_token_ids(answers: Sequence[Answered], *, vocabulary_size: int, count: int) -> torch.Tensor:
    """Return the `count` tokens that the target gave most probability to, ascending (shape: [count]).

    Tokens that it never thought likely come last, those with low ids first: tokenizers that learnt by
    merging pairs number the frequent ones low.
    """
    mass = torch.zeros(vocabulary_size, dtype=torch.float64)
    for answered in answers:
        mass.scatter_add_(0, answered.top_ids.flatten().long(), answered.top_probabilities.flatten().double())
    return mass.sort(descending=True, stable=True).indices[:count].sort().values
