from gateway.demo.client import Answer
from gateway.demo.measure import MODES, Mode, measure
from gateway.demo.prompts import Prompt
from tests.fakes.trials import LOOP, answer, trial

PROMPTS = [Prompt("code", str(number), f"question {number}") for number in range(6)]


def test_every_prompt_is_asked_in_every_mode_before_the_next_one() -> None:
    asked: list[tuple[str, Mode]] = []

    def ask(mode: Mode, prompt: Prompt) -> Answer:
        asked.append((prompt.name, mode))
        return answer(f"{prompt.name}-{mode}")

    trials = list(measure(PROMPTS, ask))

    assert [name for name, _ in asked] == [str(n) for n in range(6) for _ in MODES]
    for found in trials:
        ids = [found.off.request_id, found.shadow.request_id, found.prod.request_id]
        assert ids == [f"{found.prompt.name}-{mode}" for mode in MODES]


def test_each_mode_comes_first_second_and_third_equally_often() -> None:
    asked: list[Mode] = []

    def ask(mode: Mode, prompt: Prompt) -> Answer:
        asked.append(mode)
        return answer(prompt.name)

    list(measure(PROMPTS, ask))

    for place in range(3):
        assert sorted(asked[place::3]) == sorted(MODES * 2)


def test_a_trial_loops_when_any_of_its_answers_does() -> None:
    assert not trial().looping
    assert trial(off=LOOP).looping
    assert trial(shadow=LOOP).looping
    assert trial(prod=LOOP).looping
