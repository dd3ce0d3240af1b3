from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import draftrunner.loop
from draftrunner.drafters.ngram import NgramDrafter
from draftrunner.drafters.suffix import SuffixDrafter
from draftrunner.model import Drafter, Step
from draftrunner.profiles import EMBEDDED, RUNNER
from draftrunner.remote_loop import (
    PASSES_BEFORE_JUDGED,
    SECONDS_BEFORE_JUDGED,
    Choices,
    Task,
    draft_answer,
)
from draftrunner.replay import replay
from draftrunner.verify import Verdict, verify
from tests.fakes.lines import TargetLine
from tests.fakes.target import (
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


def task(
    prompt: Sequence[int] = PROMPT, *, k: int = K, max_tokens: int = 1000, plain: float | None = None
) -> Task:
    return Task(prompt=prompt, k=k, max_tokens=max_tokens, plain_seconds_per_token=plain)


def no_time() -> float:
    return 0.0


def speculated(
    script: Sequence[int],
    drafts: dict[int, list[int]],
    *,
    stops: Sequence[int] = (),
    max_tokens: int | None = None,
) -> TargetLine:
    """What a line saw of an answer whose target says `script`, with `drafts[n]` proposed after n tokens."""
    session = ScriptedSession(PROMPT, drafts)
    line = TargetLine(scripted(PROMPT, script), PROMPT, stops=frozenset(stops))
    most = len(script) if max_tokens is None else max_tokens
    answer = draft_answer(task(max_tokens=most), session, line, no_time)
    assert answer == line.answer
    assert session.seen == PROMPT + answer, "drafter and target have seen the same tokens"
    return line


# --- what is emitted is what the target alone would emit -------------------------------------

tokens = st.integers(0, 3)


@given(
    prompt=st.lists(tokens, min_size=1, max_size=5),
    seed=st.integers(0, 10_000),
    drafts=st.dictionaries(st.integers(0, 12), st.lists(tokens, max_size=6)),
    stops=st.frozensets(tokens, max_size=1),
    k=st.integers(0, 6),
    max_tokens=st.integers(1, 12),
)
@settings(deadline=None)
def test_whatever_is_drafted_the_answer_is_the_targets_own(
    prompt: list[int],
    seed: int,
    drafts: dict[int, list[int]],
    stops: frozenset[int],
    k: int,
    max_tokens: int,
) -> None:
    rule = markov(seed, order=2, vocabulary=4)

    def choose(context: tuple[int, ...]) -> int:
        return greedy(rule(context), len(context))

    alone, _ = generate(choose, own_choice, prompt, Ending(most=max_tokens, stops=stops))
    line = TargetLine(choose, prompt, stops=stops)
    answer = draft_answer(
        task(prompt, k=k, max_tokens=max_tokens), ScriptedSession(prompt, drafts), line, no_time
    )
    assert answer == line.answer == alone
    assert line.slower_than_plain is False
    check_book_keeping(line, k, max_tokens)


def check_book_keeping(line: TargetLine, k: int, max_tokens: int) -> None:
    """Each pass says of its draft what the emitted tokens show."""
    emitted = 0
    for done, draft in zip(line.steps, line.drafts, strict=True):
        assert done.drafted == len(draft) <= min(k, max(max_tokens - emitted - 1, 0))
        assert list(done.tokens[: done.accepted]) == draft[: done.accepted]
        assert len(done.tokens) in {done.accepted, done.accepted + 1}
        emitted += len(done.tokens)


@given(
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=20),
    seed=st.integers(0, 10_000),
    k=st.integers(1, 8),
    temperature=st.sampled_from([0.0, 0.5, 1.5]),
)
@settings(deadline=None)
def test_a_sampling_target_with_noise_by_position_says_what_it_says_alone(
    prompt: list[int], seed: int, k: int, temperature: float
) -> None:
    rule = markov(seed, order=2, vocabulary=6)
    pick = keyed_sampler(seed, temperature) if temperature else greedy
    alone, _ = generate(rule, pick, prompt, Ending(most=40))
    line = TargetLine(lambda context: pick(rule(context), len(context)), prompt)
    session = NgramDrafter(EMBEDDED).open(prompt)
    assert draft_answer(task(prompt, k=k, max_tokens=40), session, line, no_time) == alone


def test_a_choice_after_a_rejected_draft_is_never_emitted() -> None:
    script = [20, 30, 31, 32]

    def misled(context: tuple[int, ...]) -> int:
        return script[len(context) - len(PROMPT)] + (7 in context)

    line = TargetLine(misled, PROMPT)
    session = ScriptedSession(PROMPT, {1: [30, 7]})
    assert draft_answer(task(max_tokens=4), session, line, no_time) == script


def accepts_the_last_unseen(draft: Sequence[int], choose: Callable[[int], int]) -> Verdict:
    """A lossy rule: whatever is drafted last is taken for the target's choice."""
    return verify(draft, lambda i: draft[i] if i == len(draft) - 1 else choose(i))


def test_a_lossy_rule_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draftrunner.loop, "verify", accepts_the_last_unseen)
    script = [20, 30, 31, 32]
    line = TargetLine(scripted(PROMPT, script), PROMPT)
    session = ScriptedSession(PROMPT, {1: [30, 7]})
    assert draft_answer(task(max_tokens=4), session, line, no_time) != script


# --- how answers end -------------------------------------------------------------------------


def test_the_first_pass_is_the_prefill_and_drafts_nothing() -> None:
    line = speculated([20, 30, 31], {0: [20, 30], 1: [30]})
    assert line.drafts[0] == []
    assert line.steps[0] == Step(drafted=0, accepted=0, tokens=(20,))


@pytest.mark.parametrize("position", range(K + 1))
def test_nothing_follows_an_end_accepted_inside_a_draft(position: int) -> None:
    """BR-B06: the target agrees with the drafts beyond the end, too."""
    script = [20, *(EOS if i == position else 30 + i for i in range(K + 1)), 40, 41]
    line = speculated(script, {1: script[1 : 1 + K]}, stops=[EOS])
    assert line.answer == script[: position + 2]
    assert line.steps[1:] == [Step(drafted=K, accepted=min(position + 1, K), tokens=tuple(line.answer[1:]))]


def test_an_end_that_only_the_draft_proposes_ends_nothing() -> None:
    script = [20, 30, 31, 32, 33]
    line = speculated(script, {1: [30, EOS, 32, 33]}, stops=[EOS])
    assert line.answer == script
    assert line.steps[1] == Step(drafted=3, accepted=1, tokens=(30, 31))


def test_an_answer_that_ends_with_its_first_token_takes_no_other_pass() -> None:
    assert speculated([EOS, 1, 2], {1: [1]}, stops=[EOS]).steps == [Step(0, 0, (EOS,))]


@pytest.mark.parametrize("most", range(1, K + 3))
def test_no_draft_could_come_after_the_last_token_allowed(most: int) -> None:
    script = [20, 30, 31, 32, 33, 34, 35]
    line = speculated(script, {1: [30, 31, 32, 33]}, max_tokens=most)
    assert line.answer == script[:most]
    assert [len(draft) for draft in line.drafts[1:2]] == [min(most - 2, K)] * (most > 1)


def test_who_calls_the_target_may_end_the_answer_before_the_last_token_emitted() -> None:
    script = [20, 30, 31, 32, 33]
    line = TargetLine(scripted(PROMPT, script), PROMPT, over_after=2)
    session = ScriptedSession(PROMPT, {1: [30, 31]})
    assert draft_answer(task(max_tokens=5), session, line, no_time) == [20, 30]
    assert line.answer == [20, 30, 31, 32]


def test_what_the_line_raises_is_the_callers() -> None:
    class Broken(TargetLine):
        def verify(self, done: Step | None, draft: Sequence[int]) -> Choices:
            raise ConnectionResetError

    line = Broken(len, PROMPT)
    with pytest.raises(ConnectionResetError):
        draft_answer(task(), ScriptedSession(PROMPT, {}), line, no_time)


# --- it counts as replay does ----------------------------------------------------------------


@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("seed", range(4))
def test_replay_counts_what_the_loop_counted(seed: int, k: int) -> None:
    """For an answer that ends by itself."""
    rule = markov(seed, order=1, vocabulary=30)
    pick = keyed_sampler(seed, 0.4)
    prompt = [1, 2, 3, 4]

    def choose(context: tuple[int, ...]) -> int:
        return EOS if len(context) == 150 else pick(rule(context), len(context))

    line = TargetLine(choose, prompt, stops=frozenset({EOS}))
    drafter = NgramDrafter(EMBEDDED)
    answer = draft_answer(task(prompt, k=k), drafter.open(prompt), line, no_time)
    would_be = replay(prompt, answer, drafter, [k])[k]
    passes = line.steps[1:]
    assert answer[-1] == EOS
    assert would_be.passes == len(passes) < len(answer) - 1
    assert would_be.per_step_drafted == tuple(done.drafted for done in passes if done.drafted)
    assert would_be.per_step_accepted == tuple(done.accepted for done in passes if done.drafted)


@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("drafter", [NgramDrafter(RUNNER), SuffixDrafter(RUNNER)], ids=["ngram", "suffix"])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 40, 43, 47])
def test_replay_counts_what_the_loop_counted_up_to_the_token_limit(
    max_tokens: int, drafter: Drafter, k: int
) -> None:
    """The loop drafts nothing that the limit leaves no room for."""
    prompt = [1, 2, 3, 4]
    line = TargetLine(scripted(prompt, [7, 8, 9, 7] * 20), prompt)
    answer = draft_answer(task(prompt, k=k, max_tokens=max_tokens), drafter.open(prompt), line, no_time)
    would_be = replay(prompt, answer, drafter, [k], max_tokens=max_tokens)[k]
    passes = line.steps[1:]
    assert len(answer) == max_tokens
    assert would_be.passes == len(passes)
    assert would_be.per_step_drafted == tuple(done.drafted for done in passes if done.drafted)
    assert would_be.per_step_accepted == tuple(done.accepted for done in passes if done.drafted)


# --- slower than plain -----------------------------------------------------------------------


def gives_up_after(
    *, seconds_per_pass: float, plain: float | None, drafts: dict[int, list[int]] | None = None
) -> int | None:
    """Passes after the prefill until the loop gives up; None if it never does."""
    line = TargetLine(scripted(PROMPT, list(range(10, 60))), PROMPT)
    session = ScriptedSession(PROMPT, drafts or {})
    answer = draft_answer(
        task(max_tokens=50, plain=plain), session, line, lambda: len(line.drafts) * seconds_per_pass
    )
    assert answer == list(range(10, 10 + len(answer)))
    return len(line.steps) - 1 if line.slower_than_plain else None


def test_an_answer_slower_than_plain_is_given_back() -> None:
    assert gives_up_after(seconds_per_pass=1.0, plain=0.9) == PASSES_BEFORE_JUDGED


def test_an_answer_faster_than_plain_is_not() -> None:
    assert gives_up_after(seconds_per_pass=1.0, plain=1.1) is None


def test_without_knowing_what_plain_takes_no_answer_is_slow() -> None:
    assert gives_up_after(seconds_per_pass=1000.0, plain=None) is None


def test_a_young_answer_is_not_judged() -> None:
    passes = 2 * PASSES_BEFORE_JUDGED
    seconds_per_pass = SECONDS_BEFORE_JUDGED / passes
    assert gives_up_after(seconds_per_pass=seconds_per_pass, plain=seconds_per_pass / 2) == passes


def test_accepted_drafts_count_as_tokens() -> None:
    agreeing = {n: list(range(10 + n, 10 + n + K)) for n in range(1, 50)}
    assert gives_up_after(seconds_per_pass=1.0, plain=0.3, drafts=agreeing) is None
    assert gives_up_after(seconds_per_pass=1.0, plain=0.3) == PASSES_BEFORE_JUDGED
