"""The target's own choice of the next token, with noise that depends on nothing but (seed, position).

Sampling is done by the Gumbel-max trick: the chosen token is the argmax of `logit / temperature +
noise`, and the noise of every vocabulary entry is read from a counter-based generator keyed by the
seed and the position. So a draw never depends on what else is in flight, on how many tokens a
forward carried or on whether they had been drafted: speculated and plain runs choose the same ids.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float32]
"""Logits of one position, shape [vocab]."""

Ids = npt.NDArray[np.intp]
Scores = npt.NDArray[np.float64]

_GREEDY_BELOW = 1e-5
"""Temperatures below this overflow when divided by, and mean greedy decoding anyway."""

_SEED_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a request wants its tokens chosen.

    Attributes:
        temperature: 0 takes the most likely token.
        top_p: Only the smallest set of most likely tokens that holds this probability is drawn from.
        top_k: Only this many most likely tokens are drawn from; 0 for all. Applied before top_p.
        seed: Key of the noise; None draws a fresh one per answer.
    """

    temperature: float
    top_p: float
    top_k: int
    seed: int | None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of an emitted token before temperature, and the most likely alternatives."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Sampler:
    """Chooses the tokens of one answer."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        seed = int.from_bytes(os.urandom(_SEED_BITS // 8)) if sampling.seed is None else sampling.seed
        self._key = seed % 2**_SEED_BITS

    def choose(self, row: Row, position: int) -> int:
        """Return the token for `position` of the context, given the logits there. Pure for a given seed."""
        if self._sampling.temperature < _GREEDY_BELOW:
            return int(row.argmax())
        scores = row.astype(np.float64) / self._sampling.temperature
        kept = _kept(scores, self._sampling)
        noise = _exponential_noise(self._key, position, scores.size)
        return int(kept[np.argmax(scores[kept] - np.log(noise[kept]))])


def token_logprob(row: Row, token: int, alternatives: int) -> TokenLogprob:
    """Return what the target thought of `token`, and its `alternatives` most likely tokens in order."""
    logprobs = row.astype(np.float64)
    logprobs -= logprobs.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    likely = _largest(logprobs, alternatives)
    return TokenLogprob(token, float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in likely))


def _exponential_noise(key: int, position: int, size: int) -> Scores:
    """Exponential noise; minus its logarithm is Gumbel noise.

    In double precision, because the draw is decided by the smallest values: 24 bits would make
    unlikely tokens visibly too frequent.
    """
    # The generator counts up the low words, so that positions never share a number.
    generator = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, position]))
    return generator.standard_exponential(size)


def _kept(scores: Scores, sampling: Sampling) -> Ids:
    """Ids of the tokens that may be drawn."""
    kept = _largest(scores, sampling.top_k) if sampling.top_k > 0 else np.arange(scores.size)
    if sampling.top_p < 1.0:
        kept = kept[_nucleus(scores[kept], sampling.top_p)]
    return kept


def _largest(scores: Scores, count: int) -> Ids:
    """Ids of the `count` largest scores, largest first."""
    count = min(count, scores.size)
    found: Ids = np.argpartition(-scores, count - 1)[:count] if count else np.arange(0)
    return found[np.argsort(-scores[found], kind="stable")]


def _nucleus(scores: Scores, top_p: float) -> Ids:
    """Indices of the smallest set of most likely entries whose probability reaches `top_p`."""
    probabilities = np.exp(scores - scores.max())
    probabilities /= probabilities.sum()
    # What is this unlikely cannot be in the set, and need not be sorted.
    candidates = np.flatnonzero(probabilities >= (1.0 - top_p) / probabilities.size)
    order = candidates[np.argsort(-probabilities[candidates], kind="stable")]
    before = np.cumsum(probabilities[order]) - probabilities[order]
    reached: Ids = order[before < top_p]
    return reached
