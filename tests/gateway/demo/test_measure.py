from gateway.demo.client import Answer
from gateway.demo.measure import EVERY_PROMPT, Way, measure
from gateway.demo.prompts import Prompt
from tests.fakes.trials import LOOP, answer, trial

PROMPTS = [Prompt("code", str(number), f"question {number}") for number in range(6)]


def always(_: Prompt) -> tuple[Way, ...]:
    return EVERY_PROMPT


def test_every_prompt_is_asked_in_every_way_before_the_next_one() -> None:
    asked: list[tuple[str, Way]] = []

    def ask(way: Way, prompt: Prompt) -> Answer:
        asked.append((prompt.name, way))
        return answer(f"{prompt.name}-{way}")

    trials = list(measure(PROMPTS, ask, ways=always))

    assert [name for name, _ in asked] == [str(n) for n in range(6) for _ in EVERY_PROMPT]
    for found in trials:
        ids = [found.off.request_id, found.shadow.request_id, found.prod.request_id]
        assert ids == [f"{found.prompt.name}-{way}" for way in EVERY_PROMPT]


def test_each_way_comes_first_second_and_third_equally_often() -> None:
    asked: list[Way] = []

    def ask(way: Way, prompt: Prompt) -> Answer:
        asked.append(way)
        return answer(prompt.name)

    list(measure(PROMPTS, ask, ways=always))

    for place in range(3):
        assert sorted(asked[place::3]) == sorted(EVERY_PROMPT * 2)


def test_the_order_goes_on_from_the_prompts_before() -> None:
    asked: list[Way] = []

    def ask(way: Way, prompt: Prompt) -> Answer:
        asked.append(way)
        return answer(prompt.name)

    list(measure(PROMPTS[:1], ask, ways=always, first=1))

    assert asked == [Way.SHADOW, Way.PROD, Way.OFF]


def test_a_trial_loops_when_any_of_its_answers_does() -> None:
    assert not trial().looping
    assert trial(off=LOOP).looping
    assert trial(shadow=LOOP).looping
    assert trial(prod=LOOP).looping
