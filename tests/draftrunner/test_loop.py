from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftrunner.drafters.ngram import NgramDrafter
from draftrunner.loop import step
from draftrunner.model import Step
from draftrunner.profiles import EMBEDDED
from tests.fakes.target import (
    CachedTarget,
    Ending,
    ScriptedSession,
    generate,
    greedy,
    keyed_sampler,
    markov,
    own_choice,
    scripted,
)

PROMPT = [1, 2, 3]
EOS = 99
K = 4


def speculated(
    script: Sequence[int], drafts: dict[int, list[int]], *, most: int = 1000, stops: Sequence[int] = ()
) -> tuple[list[int], list[Step]]:
    """The answer and its steps, when the target says `script` and `drafts[n]` is proposed after n tokens."""
    session = ScriptedSession(PROMPT, drafts)
    ending = Ending(most=min(most, len(script)), stops=frozenset(stops))
    answer, steps = generate(scripted(PROMPT, script), own_choice, PROMPT, ending, session=session, k=K)
    assert session.seen == PROMPT + answer, "drafter and target have seen the same tokens"
    return answer, steps


def target_only(script: Sequence[int], *, most: int = 1000, stops: Sequence[int] = ()) -> list[int]:
    ending = Ending(most=min(most, len(script)), stops=frozenset(stops))
    return generate(scripted(PROMPT, script), own_choice, PROMPT, ending)[0]


# --- BR-B06: an end-of-sequence inside a block -----------------------------------------------


def script_ending_at(position: int, end: int = EOS) -> list[int]:
    """One token from prefill, then a block of K+1 with `end` at `position`; the target talks on after it."""
    return [20, *(end if i == position else 30 + i for i in range(K + 1)), 40, 41]


@pytest.mark.parametrize("position", range(K + 1))
def test_an_accepted_end_of_sequence_ends_the_answer_wherever_it_stands(position: int) -> None:
    script = script_ending_at(position)
    answer, steps = speculated(script, {1: script[1 : 1 + K]}, stops=[EOS])
    assert answer == target_only(script, stops=[EOS]) == script[: position + 2]
    assert steps == [Step(drafted=K, accepted=min(position + 1, K), tokens=tuple(answer[1:]))]


@pytest.mark.parametrize("position", range(K))
def test_a_drafts_end_of_sequence_ends_nothing_by_itself(position: int) -> None:
    script = [20, 30, 31, 32, 33, 34, 40]
    draft = [EOS if i == position else script[1 + i] for i in range(K)]
    answer, steps = speculated(script, {1: draft}, stops=[EOS])
    assert answer == target_only(script, stops=[EOS]) == script
    assert steps[0] == Step(drafted=K, accepted=position, tokens=tuple(script[1 : position + 2]))


@pytest.mark.parametrize("position", range(K + 1))
def test_an_ignored_end_of_sequence_is_a_token_like_any_other(position: int) -> None:
    script = script_ending_at(position)
    answer, steps = speculated(script, {1: script[1 : 1 + K]})
    assert answer == target_only(script) == script
    assert steps[0] == Step(drafted=K, accepted=K, tokens=tuple(script[1 : K + 2]))


@pytest.mark.parametrize("position", range(K + 1))
@pytest.mark.parametrize("end", [7, 8, 9])
def test_any_of_several_stop_ids_ends_the_answer(end: int, position: int) -> None:
    script = script_ending_at(position, end)
    answer, steps = speculated(script, {1: script[1 : 1 + K]}, stops=[7, 8, 9])
    assert answer == target_only(script, stops=[7, 8, 9]) == script[: position + 2]
    assert steps[0].accepted == min(position + 1, K)


def test_the_first_of_two_stop_ids_in_a_block_is_the_last_token() -> None:
    script = [20, 30, 8, 9, 33, 34]
    answer, steps = speculated(script, {1: [30, 8, 9, 33]}, stops=[8, 9])
    assert answer == [20, 30, 8]
    assert steps == [Step(drafted=4, accepted=2, tokens=(30, 8))]


@pytest.mark.parametrize("most", range(2, K + 3))
def test_a_token_limit_cuts_a_block_and_what_it_accepted(most: int) -> None:
    script = [20, 30, 31, 32, 33, 34, 35]
    answer, steps = speculated(script, {1: [30, 31, 32, 33]}, most=most)
    assert answer == target_only(script, most=most) == script[:most]
    assert steps == [Step(drafted=4, accepted=min(most - 1, K), tokens=tuple(script[1:most]))]


def test_an_answer_that_ends_with_its_first_token_takes_no_pass() -> None:
    assert speculated([EOS, 1, 2], {1: [1]}, stops=[EOS]) == ([EOS], [])


# --- cache and positions ---------------------------------------------------------------------


@pytest.mark.parametrize("agreeing", range(K + 1))
def test_rejected_tokens_leave_the_cache(agreeing: int) -> None:
    truth = [30, 31, 32, 33, 34]
    draft = [*truth[:agreeing], *[0] * (K - agreeing)]
    context = [*PROMPT, 20]
    target = CachedTarget(scripted(PROMPT, [20, *truth]), context)
    session = ScriptedSession(context, {0: draft})
    done = step(
        target=target, context=context, session=session, k=K, choose=own_choice, ends=lambda token: False
    )
    assert done == Step(drafted=K, accepted=agreeing, tokens=tuple(truth[: agreeing + 1]))
    assert target.cache == context[:-1]
    assert session.seen == context


def test_without_a_session_or_with_k_0_a_pass_is_plain() -> None:
    never_asked = ScriptedSession(PROMPT, {1: [30]})
    for session, k in ((None, K), (never_asked, 0)):
        ending = Ending(most=3)
        answer, steps = generate(
            scripted(PROMPT, [20, 30, 31]), own_choice, PROMPT, ending, session=session, k=k
        )
        assert answer == [20, 30, 31]
        assert steps == [Step(0, 0, (30,)), Step(0, 0, (31,))]


def test_each_choice_is_made_for_the_position_of_its_token() -> None:
    """Noise keyed by position would otherwise differ between plain and speculated runs."""
    asked: list[int] = []

    def choose(tokens_before: int, position: int) -> int:
        assert position == tokens_before
        asked.append(position)
        return position

    session = ScriptedSession(PROMPT, {1: [4, 5, 0, 0], 4: [7, 8]})
    generate(len, choose, PROMPT, Ending(most=8), session=session, k=K)
    assert asked == list(range(3, 11)), "once each, in order"


prompts = st.lists(st.integers(0, 5), min_size=1, max_size=20)


@given(
    prompt=prompts,
    seed=st.integers(0, 10_000),
    order=st.integers(1, 3),
    k=st.integers(1, 8),
    temperature=st.sampled_from([0.0, 0.5, 1.5]),
)
@settings(deadline=None)
def test_speculated_ids_are_the_targets_own_greedy_or_sampled(
    prompt: list[int], seed: int, order: int, k: int, temperature: float
) -> None:
    rule = markov(seed, order=order, vocabulary=6)
    choose = keyed_sampler(seed, temperature) if temperature else greedy
    stops = frozenset({seed % 6}) if seed % 3 else frozenset[int]()
    plain, _ = generate(rule, choose, prompt, Ending(most=40, stops=stops))
    session = NgramDrafter(EMBEDDED).open(prompt)
    fast, _ = generate(rule, choose, prompt, Ending(most=40, stops=stops), session=session, k=k)
    assert fast == plain


# --- BR-B03: text is not the inverse of ids --------------------------------------------------

PIECES = {1: "he", 2: "llo", 3: "hello", 4: " ", 5: "  ", 6: "he llo"}


def decode(ids: Sequence[int]) -> str:
    return "".join(PIECES[token] for token in ids)


def encode(text: str) -> list[int]:
    """As tokenizers do: the longest piece first, so it never gives "he" + "llo" for "hello"."""
    ids = []
    while text:
        token = max(
            (t for t, piece in PIECES.items() if text.startswith(piece)), key=lambda t: len(PIECES[t])
        )
        ids.append(token)
        text = text[len(PIECES[token]) :]
    return ids


def test_generated_ids_are_appended_and_never_tokenised_again() -> None:
    prompt = encode("hello  hello")
    script = [4, 4, 1, 2, 4, 4, 1, 2, 4, 1, 4, 2, 4, 4, 1, 2]
    assert encode(decode(prompt + script)) != prompt + script, (
        "the answer is not how a tokenizer would cut it"
    )
    context = [*prompt, script[0]]
    target = CachedTarget(scripted(prompt, script), context)
    session = NgramDrafter(EMBEDDED).open(prompt)
    session.extend(script[:1])
    ending = Ending(most=len(script) - 1)
    steps = []
    while not ending.over:
        steps.append(
            step(target=target, context=context, session=session, k=3, choose=own_choice, ends=ending)
        )
    assert context == prompt + script
    assert sum(done.accepted for done in steps) > 0
    for shorter, longer in itertools.pairwise(target.contexts):
        assert longer[: len(shorter)] == shorter
        assert len(longer) > len(shorter)
