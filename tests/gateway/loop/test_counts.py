from __future__ import annotations

from gateway.loop.counts import LoopCounts
from gateway.loop.errors import WhyPlain
from gateway.loop.generation import Emission
from gateway.loop.text import Token


def emission(tokens: int, at: float, drafted: int = 0, accepted: int = 0, *, plain: bool = False) -> Emission:
    return Emission(
        tokens=(Token(1),) * tokens,
        at=at,
        drafted=drafted,
        accepted=accepted,
        why_plain=WhyPlain.RUNNER_LOST if plain else None,
    )


def counted(*emissions: Emission, last: int | None = None) -> LoopCounts:
    """All of the emissions, of the last one only so many tokens."""
    counts = LoopCounts(prompt_tokens=7, k=3, profile="p")
    for one in emissions:
        kept = last if last is not None and one is emissions[-1] else len(one.tokens)
        counts.add(one, kept)
    return counts


def test_the_prefill_is_no_pass_and_its_token_is_not_timed() -> None:
    numbers = counted(emission(1, 10.0), emission(4, 10.5, 3, 3), emission(1, 11.0)).numbers
    assert (numbers.completion_tokens, numbers.prompt_tokens, numbers.passes, numbers.steps) == (6, 7, 2, 1)
    assert (numbers.decode_tokens, numbers.decode_seconds) == (5, 1.0)
    assert numbers.tokens_per_second is None  # too short to be timed


def test_an_answer_that_goes_round_in_circles_is_marked_by_what_was_kept_of_it() -> None:
    def said(*ids: int) -> Emission:
        return Emission(tokens=tuple(Token(one) for one in ids), at=1.0)

    assert counted(said(*range(40)), said(*[1, 2, 3] * 30)).looping
    assert not counted(said(*range(90))).looping
    assert not counted(said(*range(40)), said(*[1, 2, 3] * 30), last=4).looping


def test_an_answer_of_sixteen_tokens_has_a_speed() -> None:
    numbers = counted(emission(1, 10.0), emission(15, 12.0, 14, 14)).numbers
    assert numbers.tokens_per_second == 7.5


def test_rates_and_positions() -> None:
    """BR-B11: correction and bonus tokens are never accepted tokens."""
    numbers = counted(
        emission(1, 0.0), emission(2, 1.0, 3, 1), emission(4, 2.0, 3, 3), emission(1, 3.0, 2, 0)
    ).numbers
    assert (numbers.steps, numbers.draft_tokens, numbers.accepted_tokens) == (3, 8, 4)
    assert numbers.accepted_by_position == (2, 1, 1)
    assert (numbers.acceptance_rate, numbers.mean_acceptance_length) == (0.5, 1 + 4 / 3)


def test_of_the_last_step_only_what_was_emitted_is_accepted_and_all_of_it_was_drafted() -> None:
    numbers = counted(emission(1, 0.0), emission(4, 1.0, 3, 3), last=2).numbers
    assert (numbers.completion_tokens, numbers.draft_tokens, numbers.accepted_tokens) == (3, 3, 2)
    assert numbers.accepted_by_position == (1, 1, 0)


def test_passes_are_not_derived_from_what_the_target_decodes_by_itself() -> None:
    numbers = counted(emission(1, 0.0), emission(4, 1.0, 3, 3), emission(6, 2.0, plain=True)).numbers
    assert (numbers.passes, numbers.steps, numbers.completion_tokens) == (None, 1, 11)


def test_an_answer_of_one_token_has_no_rates() -> None:
    numbers = counted(emission(1, 0.0)).numbers
    assert (numbers.passes, numbers.acceptance_rate, numbers.mean_acceptance_length) == (0, None, None)
