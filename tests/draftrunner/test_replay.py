"""Replay = reality: replaying a finished answer counts what a live run of the loop counted.

The live side counts from the loop's `Step` values. It shares nothing with replay but the drafter.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import draftrunner.loop
import draftrunner.replay
from draftrunner.drafters.ngram import NgramDrafter
from draftrunner.drafters.suffix import SuffixDrafter
from draftrunner.model import NOBODY, Drafter, DraftSession, Origin, Profile, Step
from draftrunner.profiles import EMBEDDED
from draftrunner.replay import UNKNOWN_ID, Abandoned, Replayed, replay
from draftrunner.verify import Verdict, verify
from tests.fakes.target import (
    Ending,
    GuessingDrafter,
    Logits,
    ScriptedSession,
    generate,
    greedy,
    keyed_sampler,
    markov,
    own_choice,
    scripted,
)

KS = range(1, 9)
Choose = Callable[[Logits, int], int]


@dataclass(frozen=True)
class Counts:
    """What is compared."""

    passes: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    passes_by_drafts: dict[int, int]

    @classmethod
    def live(cls, steps: Sequence[Step]) -> Counts:
        verified = [step for step in steps if step.drafted]
        return cls(
            passes=len(steps),
            drafted=tuple(step.drafted for step in verified),
            accepted=tuple(step.accepted for step in verified),
            passes_by_drafts=dict(Counter(step.drafted for step in steps)),
        )

    @classmethod
    def replayed(cls, replayed: Replayed) -> Counts:
        return cls(
            passes=replayed.passes,
            drafted=replayed.per_step_drafted,
            accepted=replayed.per_step_accepted,
            passes_by_drafts=replayed.passes_by_drafts,
        )


@dataclass(frozen=True)
class Scene:
    """A deterministic target with a prompt and an end, and the drafter that is measured on it."""

    rule: Callable[[tuple[int, ...]], Logits]
    choose: Choose
    prompt: tuple[int, ...]
    most: int
    stops: frozenset[int]
    drafter: Drafter
    origin: Origin = NOBODY

    def live(self, k: int) -> tuple[list[int], Counts]:
        ending = Ending(most=self.most, stops=self.stops)
        session = self.drafter.open(self.prompt, self.origin)
        answer, steps = generate(self.rule, self.choose, self.prompt, ending, session=session, k=k)
        return answer, Counts.live(steps)

    def differing_ks(self) -> list[int]:
        """The lookaheads for which replay does not count what the live run did."""
        answer, _ = self.live(k=0)
        curve = replay(self.prompt, answer, self.drafter, KS, self.origin)
        return [k for k in KS if self.live(k) != (answer, Counts.replayed(curve[k]))]


RULE = markov(7, order=2, vocabulary=5)
LOOPING = Scene(
    rule=RULE,
    choose=keyed_sampler(7, 0.4),
    prompt=(1, 2, 3, 1, 2),
    most=60,
    stops=frozenset(),
    drafter=NgramDrafter(EMBEDDED),
)
GUESSED = dataclasses.replace(LOOPING, drafter=GuessingDrafter(RULE, context_length=58))
"""A draft model that knows the target well, and whose context ends before the answer."""


def copying(profile: Profile, answers: Sequence[Sequence[int]]) -> SuffixDrafter:
    """A drafter that learnt `answers` for TENANT, at 0, 1, 2 and so on."""
    drafter = SuffixDrafter(profile, now=iter(range(1000)).__next__)
    for answer in answers:
        drafter.learn(answer, Origin(tenant=TENANT))
    return drafter


TENANT = "somebody"
COPIED = dataclasses.replace(
    LOOPING, drafter=copying(EMBEDDED, [LOOPING.live(k=0)[0]]), origin=Origin(tenant=TENANT)
)
"""Copies from the very same answer, given before."""
PLANTED = {"one pass for all": LOOPING, "guessed": GUESSED, "a pass for each": COPIED}

repetitive_prompts = st.builds(
    lambda piece, times, rest: (*(piece * times), *rest),
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.integers(1, 4),
    st.lists(st.integers(0, 5), max_size=6),
)
profiles = st.builds(
    lambda min_n, more, **other: Profile(name="any", min_n=min_n, max_n=min_n + more, **other),
    min_n=st.integers(1, 3),
    more=st.integers(0, 2),
    tie=st.sampled_from(["earliest", "latest"]),
    pad_to_k=st.booleans(),
    max_tree_depth=st.integers(2, 24),
    max_spec_factor=st.floats(0, 3),
    min_token_prob=st.floats(0, 1),
)
earlier_answers = st.lists(st.lists(st.integers(0, 5), max_size=40), max_size=8)
ways_to_choose = st.one_of(
    st.just(greedy),
    st.builds(keyed_sampler, st.integers(0, 1000), st.sampled_from([0.2, 0.8, 2.0])),
)
rules = st.builds(markov, st.integers(0, 10_000), order=st.integers(1, 3), vocabulary=st.just(6))
scenes = st.builds(
    Scene,
    rule=rules,
    choose=ways_to_choose,
    prompt=repetitive_prompts,
    most=st.integers(1, 60),
    stops=st.frozensets(st.integers(0, 5), max_size=2),
    drafter=st.one_of(
        st.builds(NgramDrafter, profiles),
        st.builds(GuessingDrafter, rules, st.integers(1, 80)),
        st.builds(copying, profiles, earlier_answers),
    ),
    origin=st.builds(Origin, tenant=st.just(TENANT), as_of=st.none() | st.integers(0, 8)),
)


@pytest.mark.slow
@given(scene=scenes)
@settings(deadline=None, max_examples=300)
def test_replay_counts_what_a_live_run_counts(scene: Scene) -> None:
    assert scene.differing_ks() == []


@pytest.mark.parametrize("scene", PLANTED.values(), ids=PLANTED)
def test_the_scenes_for_planted_faults_accept_and_reject_at_every_lookahead(scene: Scene) -> None:
    """Otherwise the tests below would show nothing."""
    for k in KS:
        counts = scene.live(k)[1]
        assert 0 < sum(counts.accepted) < sum(counts.drafted)
    assert scene.differing_ks() == []


# --- planted faults: each must be seen -------------------------------------------------------


def agrees_one_more(draft: Sequence[int], answer: Sequence[int]) -> int:
    """Counts the correction as accepted."""
    length = 0
    while length < min(len(draft), len(answer)) and draft[length] == answer[length]:
        length += 1
    return min(length + 1, len(draft), len(answer))


def agrees_one_less(draft: Sequence[int], answer: Sequence[int]) -> int:
    return max(0, agrees_one_more(draft, answer) - 2)


@pytest.mark.parametrize("fault", [agrees_one_more, agrees_one_less])
def test_an_off_by_one_planted_in_replays_agreement_is_seen(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[Sequence[int], Sequence[int]], int]
) -> None:
    monkeypatch.setattr(draftrunner.replay, "_agreeing", fault)
    assert all(scene.differing_ks() for scene in PLANTED.values())


def walks_without_the_bonus_token(positions: Sequence[draftrunner.replay._Position], k: int) -> Replayed:
    """Starts the next pass one token early after an accepted draft."""
    visited = []
    start = 0
    while start < len(positions):
        visited.append(positions[start])
        start += max(1, min(positions[start].agreeing, k))
    steps = [position for position in visited if position.drafted]
    return Replayed(
        k=k,
        decode_tokens=len(positions),
        passes=len(visited),
        per_step_drafted=tuple(min(position.drafted, k) for position in steps),
        per_step_accepted=tuple(min(position.agreeing, k) for position in steps),
    )


def test_an_off_by_one_planted_in_replays_walk_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draftrunner.replay, "_walk", walks_without_the_bonus_token)
    assert LOOPING.differing_ks()


def test_a_replay_of_every_k_by_the_longest_proposals_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What suffices for the other drafters does not for one whose proposals depend on K."""
    monkeypatch.setattr(SuffixDrafter, "consistent", True)
    assert COPIED.differing_ks()


def test_a_replay_with_what_was_learnt_since_the_request_is_seen() -> None:
    drafter = copying(EMBEDDED, [])
    before = dataclasses.replace(LOOPING, drafter=drafter, origin=Origin(tenant=TENANT, as_of=0))
    answer, _ = before.live(k=0)
    live = {k: before.live(k)[1] for k in KS}
    drafter.learn(answer, before.origin)
    as_it_was = replay(before.prompt, answer, drafter, KS, before.origin)
    assert {k: Counts.replayed(as_it_was[k]) for k in KS} == live
    as_it_is = replay(before.prompt, answer, drafter, KS, Origin(tenant=TENANT))
    assert all(Counts.replayed(as_it_is[k]) != live[k] for k in KS)


class OffByOneDrafter(GuessingDrafter):
    """Guesses for the token after, or has room for one draft more than its sessions make."""

    def __init__(self, *, shift: int, more_room: int) -> None:
        super().__init__(RULE, context_length=58)
        self._shift = shift
        self._more_room = more_room

    def greedy(self, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
        return super().greedy(prompt, answer)[self._shift :]

    def room(self, length: int) -> int:
        return super().room(length) + self._more_room


@pytest.mark.parametrize(("shift", "more_room"), [(1, 0), (0, 1)])
def test_an_off_by_one_planted_in_the_guesses_of_one_pass_is_seen(shift: int, more_room: int) -> None:
    answer, _ = GUESSED.live(k=0)
    curve = replay(GUESSED.prompt, answer, OffByOneDrafter(shift=shift, more_room=more_room), KS)
    assert [k for k in KS if GUESSED.live(k)[1] != Counts.replayed(curve[k])]


class LateSession:
    """A session that learns each token one extension late."""

    def __init__(self, session: DraftSession) -> None:
        self._session = session
        self._held_back: list[int] = []

    def propose(self, k: int) -> list[int]:
        return self._session.propose(k)

    def extend(self, tokens: Sequence[int]) -> None:
        self._session.extend(self._held_back)
        self._held_back = list(tokens)


def test_a_live_session_that_lags_one_extension_behind_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, _ = LOOPING.live(k=0)
    curve = replay(LOOPING.prompt, answer, LOOPING.drafter, KS)
    opening = NgramDrafter.open
    monkeypatch.setattr(NgramDrafter, "open", lambda *opened: LateSession(opening(*opened)))
    assert all(LOOPING.live(k) != (answer, Counts.replayed(curve[k])) for k in KS)


def counts_the_bonus_token(draft: Sequence[int], choose: Callable[[int], int]) -> Verdict:
    verdict = verify(draft, choose)
    return Verdict(accepted=verdict.accepted + 1, tokens=verdict.tokens)


def loses_the_last_accepted_token(draft: Sequence[int], choose: Callable[[int], int]) -> Verdict:
    return verify(draft[:-1], choose)


@pytest.mark.parametrize("fault", [counts_the_bonus_token, loses_the_last_accepted_token])
def test_an_off_by_one_planted_in_the_live_loop_is_seen(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[Sequence[int], Callable[[int], int]], Verdict]
) -> None:
    monkeypatch.setattr(draftrunner.loop, "verify", fault)
    assert LOOPING.differing_ks()


# --- BR-B11: exact values, from replay and from the loop -------------------------------------

PROMPT = (1, 2)


class ScriptedDrafter:
    """Proposes `drafts[n]` after n answer tokens."""

    name = "scripted"
    consistent = True

    def __init__(self, drafts: dict[int, list[int]]) -> None:
        self._drafts = drafts

    def open(self, prompt: Sequence[int], origin: Origin = NOBODY) -> DraftSession:
        return ScriptedSession(prompt, self._drafts)

    def learn(self, answer: Sequence[int], origin: Origin) -> None:
        """Copies from no earlier answer."""


def scored(answer: Sequence[int], drafts: dict[int, list[int]], k: int, stop: int | None = None) -> Replayed:
    """The replay of `answer`, after checking that a live run counts the same."""
    drafter = ScriptedDrafter(drafts)
    ending = Ending(most=len(answer), stops=frozenset([] if stop is None else [stop]))
    emitted, steps = generate(
        scripted(PROMPT, [*answer, 71, 72, 73]), own_choice, PROMPT, ending, session=drafter.open(PROMPT), k=k
    )
    replayed = replay(PROMPT, answer, drafter, [k])[k]
    assert emitted == list(answer)
    assert Counts.live(steps) == Counts.replayed(replayed)
    return replayed


def test_masks_101_and_111_give_the_published_values() -> None:
    """Round 1 agrees at 1 and 3 but not at 2; round 2 agrees throughout and brings a bonus token."""
    replayed = scored([10, 11, 12, 13, 14, 15, 16], {1: [11, 0, 13], 3: [13, 14, 15]}, k=3)
    assert replayed.per_step_drafted == (3, 3)
    assert replayed.per_step_accepted == (1, 3)
    assert (replayed.accepted_tokens, replayed.draft_tokens) == (4, 6)
    assert replayed.acceptance_rate == 4 / 6
    assert replayed.mean_acceptance_length == 3.0
    assert [accepted / replayed.steps for accepted in replayed.accepted_by_position] == [1.0, 0.5, 0.5]
    assert (replayed.passes, replayed.steps, replayed.tokens_per_pass) == (2, 2, 3.0)


def test_all_accepted_gives_exactly_one() -> None:
    replayed = scored([10, 11, 12, 13, 14, 15, 16], {1: [11, 12], 4: [14, 15]}, k=2)
    assert replayed.acceptance_rate == 1.0
    assert replayed.mean_acceptance_length == 3.0
    assert replayed.accepted_by_position == (2, 2)


def test_none_accepted_gives_exactly_zero() -> None:
    replayed = scored([10, 11, 12], {1: [0, 12], 2: [0, 0]}, k=2)
    assert replayed.acceptance_rate == 0.0
    assert replayed.mean_acceptance_length == 1.0
    assert replayed.accepted_by_position == (0, 0)
    assert replayed.tokens_per_pass == 1.0


def test_an_empty_draft_is_a_pass_and_not_a_step() -> None:
    replayed = scored([10, 11, 12, 13, 14], {2: [12, 13]}, k=2)
    assert (replayed.passes, replayed.steps) == (2, 1)
    assert replayed.passes_by_drafts == {0: 1, 2: 1}
    assert replayed.acceptance_rate == 1.0


def test_a_draft_shorter_than_k_counts_what_was_proposed() -> None:
    replayed = scored([10, 11, 12, 13], {1: [11], 3: [13]}, k=4)
    assert replayed.per_step_drafted == (1, 1)
    assert replayed.accepted_by_position == (2, 0, 0, 0)
    assert replayed.acceptance_rate == 1.0


def test_a_round_cut_by_the_end_counts_all_that_was_drafted_and_only_what_was_emitted() -> None:
    """The target would have agreed with what was drafted beyond its end-of-sequence."""
    replayed = scored([10, 11, 99], {1: [11, 99, 71, 72]}, k=4, stop=99)
    assert replayed.per_step_drafted == (4,)
    assert replayed.per_step_accepted == (2,)
    assert replayed.acceptance_rate == 0.5
    assert replayed.tokens_per_pass == 2.0


def test_a_round_cut_by_a_token_limit_counts_the_same_way() -> None:
    replayed = scored([10, 11, 12], {1: [11, 12, 71, 72]}, k=3)
    assert (replayed.draft_tokens, replayed.accepted_tokens) == (3, 2)


@pytest.mark.parametrize("answer", [[], [10]])
def test_an_answer_without_a_pass_has_no_rates(answer: list[int]) -> None:
    replayed = replay(PROMPT, answer, ScriptedDrafter({}), [3])[3]
    assert (replayed.passes, replayed.steps, replayed.draft_tokens, replayed.accepted_tokens) == (0, 0, 0, 0)
    assert replayed.acceptance_rate is None
    assert replayed.mean_acceptance_length is None
    assert replayed.tokens_per_pass is None
    assert replayed.passes_by_drafts == {}


def test_an_unknown_id_is_matched_by_nothing() -> None:
    drafter = ScriptedDrafter({1: [11, UNKNOWN_ID, 13]})
    replayed = replay(PROMPT, [10, 11, UNKNOWN_ID], drafter, [3])[3]
    assert (replayed.draft_tokens, replayed.accepted_tokens) == (3, 1)


@given(scene=scenes)
@settings(deadline=None, max_examples=30)
def test_rates_stay_between_0_and_1_and_counts_add_up(scene: Scene) -> None:
    answer, _ = scene.live(k=0)
    for k, replayed in replay(scene.prompt, answer, scene.drafter, KS, scene.origin).items():
        assert replayed.acceptance_rate is None or 0 <= replayed.acceptance_rate <= 1
        assert sum(replayed.accepted_by_position) == replayed.accepted_tokens
        assert sum(replayed.passes_by_drafts.values()) == replayed.passes
        assert replayed.k == k
        overshoot = replayed.passes + replayed.accepted_tokens - replayed.decode_tokens
        assert overshoot in (0, 1), (
            "each pass emits one token beside the accepted ones, but for a cut last one"
        )


# --- one pass --------------------------------------------------------------------------------


class CountingSession(ScriptedSession):
    """Notes what it is asked."""

    def __init__(self, prompt: Sequence[int]) -> None:
        super().__init__(prompt, {})
        self.asked: list[tuple[int, int]] = []

    def propose(self, k: int) -> list[int]:
        self.asked.append((len(self.seen), k))
        return super().propose(k)


class CountingDrafter:
    """Opens sessions that note what they are asked."""

    name = "counting"
    consistent = True

    def __init__(self) -> None:
        self.sessions: list[CountingSession] = []

    def open(self, prompt: Sequence[int], origin: Origin = NOBODY) -> DraftSession:
        self.sessions.append(CountingSession(prompt))
        return self.sessions[-1]

    def learn(self, answer: Sequence[int], origin: Origin) -> None:
        """Copies from no earlier answer."""


def test_a_drafter_that_is_not_consistent_is_asked_for_the_passes_of_each_k(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CountingDrafter, "consistent", False)
    drafter = CountingDrafter()
    assert list(replay([1, 2], [3, 4, 5], drafter, [8, 2, 2])) == [2, 8]
    (session,) = drafter.sessions
    assert session.asked == [(3, 2), (3, 8), (4, 2), (4, 8)]


def test_one_pass_over_the_answer_serves_every_k() -> None:
    drafter = CountingDrafter()
    curve = replay([1, 2], [3, 4, 5, 6], drafter, [8, 2, 5, 2])
    assert list(curve) == [2, 5, 8]
    (session,) = drafter.sessions
    assert session.asked == [(3, 8), (4, 8), (5, 8)]


class OnePassDrafter(GuessingDrafter):
    """Counts its passes, and opens no session."""

    def __init__(self) -> None:
        super().__init__(RULE)
        self.passes = 0

    def open(self, prompt: Sequence[int], origin: Origin = NOBODY) -> DraftSession:
        raise AssertionError("a proposal at each position is what one pass saves")

    def greedy(self, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
        self.passes += 1
        return super().greedy(prompt, answer)


def test_a_drafter_that_guesses_in_one_pass_makes_one_pass_for_every_k() -> None:
    drafter = OnePassDrafter()
    assert list(replay([1, 2], [3, 4, 5, 6], drafter, KS)) == list(KS)
    assert drafter.passes == 1


class ClosedSession(ScriptedSession):
    """Knows whether it was closed."""

    closed = False

    def close(self) -> None:
        assert not self.closed
        self.closed = True


@pytest.mark.parametrize("consistent", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_the_one_session_is_closed_however_a_replay_ends(
    monkeypatch: pytest.MonkeyPatch, consistent: bool, fails: bool
) -> None:
    sessions: list[ClosedSession] = []

    def opened(drafter: ScriptedDrafter, prompt: Sequence[int], origin: Origin) -> DraftSession:
        sessions.append(ClosedSession(prompt, {1: [9] * 8}))
        return sessions[-1]

    monkeypatch.setattr(ScriptedDrafter, "open", opened)
    monkeypatch.setattr(ScriptedDrafter, "consistent", consistent)
    if fails:
        monkeypatch.delattr(ClosedSession.__bases__[0], "propose")
    with pytest.raises(AttributeError) if fails else contextlib.nullcontext():
        replay([1], [2, 3, 4], ScriptedDrafter({}), KS)
    (session,) = sessions
    assert session.closed


def test_no_k_asks_nothing() -> None:
    assert replay([1], [2, 3], CountingDrafter(), []) == {}


@pytest.mark.parametrize("drafter", [NgramDrafter, SuffixDrafter])
def test_an_abandoned_replay_ends_before_the_next_position(drafter: Callable[[Profile], Drafter]) -> None:
    asked = iter([False, False, True])
    with pytest.raises(Abandoned):
        replay([1, 2, 3], [1, 2, 3] * 10, drafter(EMBEDDED), [3], is_abandoned=lambda: next(asked))
    assert list(asked) == []
