from __future__ import annotations

from draftrunner.drafters.ngram import NgramDrafter
from draftrunner.embedded.fitting import fitting
from draftrunner.model import TeacherForced
from draftrunner.profiles import EMBEDDED
from tests.fakes.target import GuessingDrafter, markov

PROMPT = [1, 2, 3, 4, 5, 6, 1, 2, 3]


def test_drafts_stay_within_the_context() -> None:
    drafter = fitting(NgramDrafter(EMBEDDED), context_length=len(PROMPT) + 2)
    session = drafter.open(PROMPT)
    assert session.propose(5) == [4, 5]
    session.extend([4])
    assert session.propose(5) == [5]
    session.extend([5])
    assert session.propose(5) == []


def test_drafts_far_from_the_end_are_the_drafters_own() -> None:
    drafter = fitting(NgramDrafter(EMBEDDED), context_length=1000)
    assert drafter.open(PROMPT).propose(4) == NgramDrafter(EMBEDDED).open(PROMPT).propose(4) == [4, 5, 6, 1]
    assert drafter.name == "ngram"


def test_a_drafter_that_guesses_in_one_pass_still_does_within_the_context_of_both() -> None:
    rule = markov(1, order=2, vocabulary=5)
    guessing = GuessingDrafter(rule, context_length=20)
    drafter = fitting(guessing, context_length=15)
    assert isinstance(drafter, TeacherForced)
    assert drafter.greedy(PROMPT, [1, 2, 3]) == guessing.greedy(PROMPT, [1, 2, 3])
    assert [drafter.room(length) for length in (9, 14, 15)] == [6, 1, 0]
    assert drafter.open(PROMPT).propose(8) == guessing.open(PROMPT).propose(6)


def test_a_drafter_with_less_context_than_the_model_keeps_its_own_room() -> None:
    drafter = fitting(
        GuessingDrafter(markov(1, order=2, vocabulary=5), context_length=20), context_length=100
    )
    assert isinstance(drafter, TeacherForced)
    assert drafter.room(19) == 2


def test_a_drafter_that_does_not_is_not_taken_for_one() -> None:
    assert not isinstance(fitting(NgramDrafter(EMBEDDED), context_length=15), TeacherForced)
