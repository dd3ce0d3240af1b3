"""A draft scored by the engine says what the engine alone would have said, and costs one forward."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

import draftrunner.loop
from draftrunner.drafters.ngram import NgramDrafter
from draftrunner.embedded.generation import Ask
from draftrunner.embedded.prefixes import CHUNK
from draftrunner.embedded.prompts import Tokenizer
from draftrunner.embedded.sampling import Sampler, Sampling
from draftrunner.embedded.target import LanguageModel
from draftrunner.profiles import EMBEDDED
from draftrunner.remote_loop import Task, draft_answer
from draftrunner.verify import Verdict, verify
from draftrunner.weights import Checkpoint, load_model, load_tokenizer
from tests.fakes.engine_runs import GREEDY, EngineRun, running_engine
from tests.fakes.lines import TargetLine
from tests.fakes.tiny_lm import CONTEXT_LENGTH, MarkovModel

pytestmark = pytest.mark.slow

LOOKAHEADS = [1, 3, 5, 8]
SAMPLED = Sampling(temperature=0.8, top_p=0.95, top_k=0, seed=11)
TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "def add(first, second):\n    return first + second\n" * 2,
    "the quick brown fox jumps over the lazy dog and sleeps " * 10,
]


class ScoringLine(TargetLine):
    """Has its drafts scored by an engine.

    Attributes:
        cached: For each call, how much of its context was not computed again.
    """

    def __init__(self, run: EngineRun, ask: Ask) -> None:
        super().__init__(len, ask.prompt, stops=ask.end_ids)
        self.cached: list[int] = []
        self._run = run
        self._ask = ask

    def choices(self, context: tuple[int, ...], draft: Sequence[int]) -> list[int]:
        answer = self._run.answer(
            dataclasses.replace(self._ask, max_tokens=1), prompt=(*context, *draft), draft_length=len(draft)
        )
        assert answer.finish is not None
        self.cached.append(answer.finish.cached_tokens)
        return list(answer.choices)


def looped(run: EngineRun, ask: Ask, k: int, line: ScoringLine | None = None) -> list[int]:
    """The answer to `ask` from the draft runner's loop, its drafts scored by the engine."""
    task = Task(prompt=ask.prompt, k=k, max_tokens=ask.max_tokens, plain_seconds_per_token=None)
    session = NgramDrafter(EMBEDDED).open(ask.prompt)
    return draft_answer(task, session, line or ScoringLine(run, ask), clock=float)


@pytest.fixture(scope="module")
def tiny(tiny_checkpoint: Checkpoint) -> LanguageModel:
    return LanguageModel(load_model(tiny_checkpoint, "float32"), end_ids=())


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Checkpoint) -> Tokenizer:
    return Tokenizer(load_tokenizer(tiny_checkpoint))


@pytest.fixture(scope="module")
def run(tiny: LanguageModel, tokenizer: Tokenizer) -> Iterator[EngineRun]:
    with running_engine(tiny, tokenizer.decode) as running:
        yield running


@pytest.fixture(scope="module")
def asks(tokenizer: Tokenizer) -> list[Ask]:
    """Every text, greedy and sampled; one is longer than a forward."""
    return [
        Ask(prompt=tuple(tokenizer.encode(text, add_special_tokens=True)), max_tokens=60, sampling=sampling)
        for text in TEXTS
        for sampling in (GREEDY, SAMPLED)
    ]


@pytest.fixture(scope="module")
def plain(run: EngineRun, asks: list[Ask]) -> list[list[int]]:
    return [run.answer(ask).token_ids for ask in asks]


# --- the same answers ------------------------------------------------------------------------


@pytest.mark.parametrize("k", LOOKAHEADS)
def test_looped_ids_equal_plain_ids_greedy_and_with_a_seed(
    run: EngineRun, asks: list[Ask], plain: list[list[int]], k: int
) -> None:
    lines = [ScoringLine(run, ask) for ask in asks]
    assert [looped(run, ask, k, line) for ask, line in zip(asks, lines, strict=True)] == plain
    assert sum(done.accepted for line in lines for done in line.steps) > 0, "without drafts it shows little"


def test_an_end_of_sequence_ends_a_looped_answer_where_it_ends_a_plain_one(
    run: EngineRun, asks: list[Ask], plain: list[list[int]]
) -> None:
    for ask, ids in zip(asks, plain, strict=True):
        ending = dataclasses.replace(ask, end_ids=frozenset(ids[20:22]))
        assert looped(run, ending, 5) == run.answer(ending).token_ids
        assert looped(run, ending, 5)[-1] in ending.end_ids


def test_every_choice_is_made_after_the_draft_before_it(run: EngineRun, asks: list[Ask]) -> None:
    draft = [40, 300, 41, 7]
    for ask in asks:
        scored = run.answer(ask, max_tokens=1, prompt=(*ask.prompt, *draft), draft_length=len(draft))
        alone = [
            run.answer(ask, max_tokens=1, prompt=(*ask.prompt, *draft[:place])).token_ids[0]
            for place in range(len(draft) + 1)
        ]
        assert list(scored.choices) == alone
        assert scored.token_ids == alone[-1:]


def test_answers_looped_in_parallel_equal_answers_alone(
    run: EngineRun, asks: list[Ask], plain: list[list[int]]
) -> None:
    lines = [ScoringLine(run, ask) for ask in asks * 2]
    with ThreadPoolExecutor(len(lines)) as pool:
        answers = pool.map(lambda ask, line: looped(run, ask, 3, line), asks * 2, lines)
        assert list(answers) == plain * 2
    for line in lines:
        assert_nothing_is_computed_twice(line)


def test_an_answer_may_be_looped_up_to_the_contexts_end(run: EngineRun, asks: list[Ask]) -> None:
    ask = dataclasses.replace(asks[0], max_tokens=CONTEXT_LENGTH - len(asks[0].prompt))
    assert looped(run, ask, 8) == run.answer(ask).token_ids


def test_choices_one_position_late_would_be_seen(
    run: EngineRun, asks: list[Ask], plain: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted fault."""
    in_time = Sampler.choose

    def late(sampler: Sampler, row: Any, position: int) -> int:
        return in_time(sampler, row, position + 1)

    monkeypatch.setattr(Sampler, "choose", late)
    assert looped(run, asks[1], 3) != plain[1]


# --- the cost --------------------------------------------------------------------------------


def assert_nothing_is_computed_twice(line: ScoringLine) -> None:
    lengths = [
        len(line.answer) - sum(len(done.tokens) for done in line.steps[i:]) for i in range(len(line.steps))
    ]
    prompt_length = line.cached[1] + 1 - lengths[1]
    assert line.cached[1:] == [prompt_length + length - 1 for length in lengths[1:]]


@pytest.mark.parametrize("k", [1, 8])
def test_a_growing_context_is_never_computed_again(run: EngineRun, asks: list[Ask], k: int) -> None:
    for ask in asks:
        line = ScoringLine(run, ask)
        looped(run, ask, k, line)
        assert_nothing_is_computed_twice(line)


def test_a_context_that_is_no_longer_kept_is_computed_again(
    tiny: LanguageModel, tokenizer: Tokenizer, asks: list[Ask], plain: list[list[int]]
) -> None:
    with running_engine(tiny, tokenizer.decode, kept_context_tokens=0) as forgetful:
        lines = [ScoringLine(forgetful, ask) for ask in asks]
        assert [looped(forgetful, ask, 5, line) for ask, line in zip(asks, lines, strict=True)] == plain
        assert {cached for line in lines for cached in line.cached} == {0}


def test_scored_and_answered_prompts_share_their_prefixes_to_the_last_bit(
    tiny: LanguageModel, tokenizer: Tokenizer, run: EngineRun, asks: list[Ask]
) -> None:
    """Of a scoring only what is computed as any prompt is may be shared: never what stands by a draft."""
    long = asks[-1]
    whole_chunks = (len(long.prompt) - 1) // CHUNK * CHUNK
    fresh = run.answer(long, alternatives=1)
    for draft_length, shared in ((0, whole_chunks), (3, 0)):
        with running_engine(tiny, tokenizer.decode, kept_prefix_tokens=4 * CHUNK) as sharing:
            sharing.answer(long, max_tokens=1, draft_length=draft_length)
            reusing = sharing.answer(long, alternatives=1)
            assert reusing.finish is not None
            assert reusing.finish.cached_tokens == shared
            assert reusing.logprobs == fresh.logprobs
            line = ScoringLine(
                sharing, dataclasses.replace(long, max_tokens=2, end_ids=frozenset(range(400)))
            )
            looped(sharing, long, 5, line)
            assert line.cached[0] in {whole_chunks, len(long.prompt) - 1}


# --- in distribution -------------------------------------------------------------------------

LOGITS = [
    [3.0, 1.0, 0.0, 0.5, 1.5],
    [0.0, 3.5, 0.0, 1.0, 0.5],
    [0.0, 0.0, 1.0, 1.0, 3.0],
    [0.5, 0.0, 4.0, 0.0, 2.0],
    [0.0, 1.0, 0.0, 3.0, 1.0],
]
TOKENS = range(len(LOGITS))


class LikeliestSession:
    """Drafts the likeliest token after each."""

    def __init__(self) -> None:
        self._last = 0

    def propose(self, k: int) -> list[int]:
        draft = [self._last]
        for _ in range(k):
            draft.append(max(TOKENS, key=LOGITS[draft[-1]].__getitem__))
        return draft[1:]

    def extend(self, tokens: Sequence[int]) -> None:
        self._last = tokens[-1]

    def close(self) -> None:
        """Holds nothing."""


class DrawingLine(ScoringLine):
    """Asks for each draft with a seed of its own, which is what asking without one means."""

    def __init__(self, run: EngineRun, ask: Ask, source: random.Random) -> None:
        super().__init__(run, ask)
        self._source = source

    def choices(self, context: tuple[int, ...], draft: Sequence[int]) -> list[int]:
        fresh = dataclasses.replace(self._ask.sampling, seed=self._source.getrandbits(63))
        self._ask = dataclasses.replace(self._ask, sampling=fresh)
        return super().choices(context, draft)


CRITICAL_AT_ONE_IN_A_MILLION = 64.6
"""For 20 degrees of freedom: of the tokens that may follow each of five, one is not free."""


def test_twenty_thousand_sampled_tokens_pass_a_chi_square_test() -> None:
    assert chi_square(sampled_transitions(20_000)) < CRITICAL_AT_ONE_IN_A_MILLION


def test_two_thousand_are_enough_to_see_a_lossy_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusts_the_draft(draft: Sequence[int], choose: Callable[[int], int]) -> Verdict:
        return verify(draft, lambda i: choose(i) if i == len(draft) else draft[i])

    monkeypatch.setattr(draftrunner.loop, "verify", trusts_the_draft)
    assert chi_square(sampled_transitions(2_000)) > CRITICAL_AT_ONE_IN_A_MILLION


def sampled_transitions(count: int) -> Counter[tuple[int, int]]:
    """At least `count` looped tokens, each with the one before it, which is all that this target looks at."""
    model: Any = MarkovModel(torch.tensor(LOGITS))
    transitions: Counter[tuple[int, int]] = Counter()
    source = random.Random(20240)
    ask = Ask(prompt=(0,), max_tokens=500, sampling=dataclasses.replace(SAMPLED, temperature=0.9, top_p=1.0))
    with running_engine(LanguageModel(model, end_ids=()), lambda ids: "") as run:
        while transitions.total() < count:
            line = DrawingLine(run, ask, source)
            task = Task(prompt=ask.prompt, k=8, max_tokens=ask.max_tokens, plain_seconds_per_token=None)
            answer = draft_answer(task, LikeliestSession(), line, clock=float)
            transitions.update(pairwise([*ask.prompt, *answer]))
    return transitions


def chi_square(transitions: Counter[tuple[int, int]]) -> float:
    """How far the counts are from the target's probabilities."""
    probabilities = torch.softmax(torch.tensor(LOGITS, dtype=torch.float64) / 0.9, dim=1)
    total = 0.0
    for before in TOKENS:
        times = sum(transitions[before, after] for after in TOKENS)
        for after in TOKENS:
            expected = times * float(probabilities[before, after])
            total += (transitions[before, after] - expected) ** 2 / expected
    return total
