from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from gateway.demo.client import Answer
from gateway.demo.measure import OTHER_KS, Way, measure, ways_to_ask, with_ids
from gateway.demo.prompts import Prompt
from tests.fakes.trials import LOOP, answer, trial

USUAL = (Way.OFF, Way.SHADOW, Way.PROD, Way.LOOP)
PROMPTS = [Prompt("code", str(number), f"question {number}") for number in range(8)]


def always(_: Prompt) -> tuple[Way, ...]:
    return USUAL


def order_of(prompts: Sequence[Prompt], *, first: int = 0) -> list[Way]:
    """The ways in which they are asked, one after another."""
    asked: list[Way] = []

    def ask(way: Way, prompt: Prompt) -> Answer:
        asked.append(way)
        return answer(prompt.name)

    list(measure(prompts, ask, ways=always, first=first))
    return asked


def test_the_first_prompts_of_each_workload_are_asked_with_other_k_too() -> None:
    prompts = [Prompt(workload, name, "") for name in "abc" for workload in ("code", "chat")]

    ways = ways_to_ask(prompts, USUAL, 2)

    assert list(ways) == prompts
    assert [ways[prompt] == (*USUAL, *OTHER_KS) for prompt in prompts] == [True] * 4 + [False] * 2
    assert ways[prompts[-1]] == USUAL


def test_every_prompt_is_asked_in_every_way_before_the_next_one() -> None:
    asked: list[tuple[str, Way]] = []

    def ask(way: Way, prompt: Prompt) -> Answer:
        asked.append((prompt.name, way))
        return answer(f"{prompt.name}-{way}")

    trials = list(measure(PROMPTS, ask, ways=always))

    assert [name for name, _ in asked] == [str(n) for n in range(8) for _ in USUAL]
    for found in trials:
        assert {way: one.request_id for way, one in found.answers.items()} == {
            way: f"{found.prompt.name}-{way}" for way in USUAL
        }


def test_each_way_comes_in_each_place_equally_often() -> None:
    asked = order_of(PROMPTS)

    for place in range(4):
        assert sorted(asked[place::4]) == sorted(USUAL * 2)


def test_the_order_goes_on_from_the_prompts_before() -> None:
    assert order_of(PROMPTS[:1], first=1) == [Way.LOOP, Way.PROD, Way.SHADOW, Way.OFF]


def test_what_follows_a_shadow_answer_and_its_replay_is_as_often_off_as_prod() -> None:
    asked = order_of(PROMPTS)

    followers = [after for before, after in pairwise(asked) if before is Way.SHADOW]
    assert followers.count(Way.OFF) == followers.count(Way.PROD) > 0


def test_the_plain_speed_is_that_of_the_off_and_the_shadow_answer_together() -> None:
    one = trial(off_seconds=2.0)
    assert one.plain_speed == (80, 4.0)


def test_a_trial_loops_when_any_of_its_answers_does() -> None:
    assert not trial().looping
    assert trial(off=LOOP).looping
    assert trial(shadow=LOOP).looping
    assert trial(prod=LOOP).looping
    assert trial(loop=LOOP).looping


def test_answers_without_ids_get_the_off_answers_for_the_same_text_and_new_ones_for_another() -> None:
    one = trial()
    same = replace(one.off, request_id="a", ids=())
    other = replace(same, request_id="b", text="another")
    asked: list[str] = []

    def tokenize(text: str) -> list[int]:
        asked.append(text)
        return [7, 8]

    found = with_ids(replace(one, answers={**one.answers, Way.LOOP: same, Way.K1: other}), tokenize)

    assert found.answers[Way.LOOP].ids == one.off.ids
    assert found.answers[Way.K1].ids == (7, 8)
    assert found.answers[Way.K1].prompt_ids == one.off.prompt_ids
    assert found.prod == one.prod
    assert asked == ["another"]
