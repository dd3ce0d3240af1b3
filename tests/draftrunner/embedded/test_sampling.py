from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from draftrunner.embedded.sampling import Row, Sampler, Sampling, token_logprob  # noqa: E402 - after the skip
from draftrunner.embedded.target import LanguageModel  # noqa: E402
from draftrunner.loop import step  # noqa: E402
from draftrunner.weights import Checkpoint, load_model  # noqa: E402
from tests.fakes.target import CachedTarget, ScriptedSession  # noqa: E402

DRAWS = 20_000
MIXED = [2.0, 1.0, 0.5, 0.0, -1.0, 1.9]


def row(*logits: float) -> Row:
    values: Row = np.array(logits, dtype=np.float32)
    return values


def sampling(temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, seed: int | None = 1) -> Sampling:
    return Sampling(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)


def probabilities(logits: Sequence[float], asked: Sampling) -> dict[int, float]:
    """What the draws should follow, straight from the definitions."""
    weights = {token: math.exp(logit / asked.temperature) for token, logit in enumerate(logits)}
    ranked = sorted(weights, key=lambda token: -weights[token])
    ranked = ranked[: asked.top_k or None]
    total = sum(weights[token] for token in ranked)
    kept, held = [], 0.0
    for token in ranked:
        if held >= asked.top_p:
            break
        kept.append(token)
        held += weights[token] / total
    total = sum(weights[token] for token in kept)
    return {token: weights[token] / total for token in kept}


def assert_follows(counts: Mapping[Any, int], expected: Mapping[Any, float]) -> None:
    """Chi-square at a level that a sound sampler fails once in a million times."""
    draws = sum(counts.values())
    assert set(counts) <= set(expected)
    distance = sum((counts.get(k, 0) - draws * p) ** 2 / (draws * p) for k, p in expected.items())
    freedom = len(expected) - 1
    # Wilson and Hilferty's approximation of the chi-square quantile.
    bound = freedom * (1 - 2 / (9 * freedom) + 4.75 * math.sqrt(2 / (9 * freedom))) ** 3
    assert distance < bound, (distance, bound, dict(counts))


def test_temperature_zero_takes_the_likeliest_token() -> None:
    sampler = Sampler(sampling(temperature=0.0))
    assert [sampler.choose(row(0.1, 3.0, 2.9), position) for position in range(4)] == [1] * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        sampling(),
        sampling(temperature=0.5),
        sampling(top_k=3),
        sampling(top_p=0.7),
        sampling(temperature=1.6, top_k=5, top_p=0.8, seed=-3),
        sampling(seed=None),
    ],
    ids=str,
)
def test_draws_follow_the_distribution(asked: Sampling) -> None:
    sampler = Sampler(asked)
    counts = Counter(sampler.choose(row(*MIXED), position) for position in range(DRAWS))
    assert_follows(counts, probabilities(MIXED, asked))


def test_draws_of_different_seeds_at_one_position_follow_the_distribution() -> None:
    draws = (Sampler(sampling(seed=seed)).choose(row(*MIXED), 5) for seed in range(DRAWS))
    assert_follows(Counter(draws), probabilities(MIXED, sampling()))


def test_neighbouring_positions_are_drawn_independently() -> None:
    sampler = Sampler(sampling())
    drawn = [sampler.choose(row(1.0, 0.5, 0.0), position) for position in range(DRAWS)]
    one = probabilities([1.0, 0.5, 0.0], sampling())
    pairs = Counter(zip(drawn[::2], drawn[1::2], strict=True))
    assert_follows(pairs, {(a, b): one[a] * one[b] for a, b in itertools.product(one, one)})


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    logits = row(*[0.0] * 1000)
    first, second = Sampler(sampling(seed=9)), Sampler(sampling(seed=9))
    forwards = [first.choose(logits, position) for position in range(20)]
    backwards = [second.choose(logits, position) for position in reversed(range(20))]
    assert forwards == backwards[::-1]
    assert forwards != [Sampler(sampling(seed=10)).choose(logits, position) for position in range(20)]


def test_without_a_seed_each_answer_is_drawn_anew() -> None:
    logits = row(*[0.0] * 1000)
    drawn = [[Sampler(sampling(seed=None)).choose(logits, p) for p in range(8)] for _ in range(2)]
    assert drawn[0] != drawn[1]


def test_sampling_leaves_every_global_generator_alone() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    Sampler(sampling(seed=None)).choose(row(*MIXED), 3)
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


@given(
    # Apart by more than float32 rounds away: of equal logits either may be among the top k.
    logits=st.lists(st.integers(-8000, 8000).map(lambda n: n / 1000), min_size=1, max_size=12, unique=True),
    top_p=st.floats(0.05, 1.0),
    top_k=st.integers(0, 12),
    position=st.integers(0, 10_000),
)
def test_only_tokens_that_the_request_allows_are_drawn(
    logits: list[float], top_p: float, top_k: int, position: int
) -> None:
    asked = sampling(temperature=0.9, top_p=top_p, top_k=top_k)
    drawn = Sampler(asked).choose(row(*logits), position)
    # Rounding decides for a token on the very edge of top_p.
    wider = sampling(temperature=0.9, top_p=min(top_p + 1e-6, 1.0), top_k=top_k)
    assert drawn in probabilities([float(np.float32(logit)) for logit in logits], wider)


def test_a_logprob_is_that_of_the_plain_distribution() -> None:
    expected = probabilities(MIXED, sampling())
    told = token_logprob(row(*MIXED), token=3, alternatives=2)
    assert told.logprob == pytest.approx(math.log(expected[3]))
    assert [token for token, _ in told.top] == [0, 5]
    assert [value for _, value in told.top] == pytest.approx([math.log(expected[0]), math.log(expected[5])])


def test_no_alternatives_are_told_unasked() -> None:
    assert token_logprob(row(*MIXED), token=0, alternatives=0).top == ()


@pytest.mark.slow
def test_what_the_loop_emits_with_drafts_follows_the_targets_own_distribution(
    tiny_checkpoint: Checkpoint,
) -> None:
    """Three tokens after a prompt, against the exact probabilities of a real model's sequences."""
    model = LanguageModel(load_model(tiny_checkpoint, "float32"), end_ids=())
    asked = sampling(temperature=0.8, top_k=3)
    prompt = (20, 305, 40, 41)
    rows: dict[tuple[int, ...], Row] = {}

    def follows(context: tuple[int, ...]) -> Row:
        if context not in rows:
            rows[context] = model.target(model.empty_cache()).prefill(context)
        return rows[context]

    def exact(context: tuple[int, ...], length: int) -> dict[tuple[int, ...], float]:
        if length == 0:
            return {(): 1.0}
        return {
            (token, *rest): p * q
            for token, p in probabilities(follows(context).tolist(), asked).items()
            for rest, q in exact((*context, token), length - 1).items()
        }

    expected = exact(prompt, 3)
    likeliest = max(expected, key=expected.__getitem__)

    def emitted(seed: int) -> tuple[int, ...]:
        sampler = Sampler(sampling(temperature=0.8, top_k=3, seed=seed))
        context = list(prompt)
        target = CachedTarget(follows, context)
        session = ScriptedSession(prompt, {i: likeliest[i:] for i in range(3)})
        while len(context) < len(prompt) + 3:
            step(
                target=target, context=context, session=session, k=3, choose=sampler.choose,
                ends=lambda _: False,
            )  # fmt: skip
        return tuple(context[len(prompt) :][:3])

    assert_follows(Counter(map(emitted, range(DRAWS))), expected)
