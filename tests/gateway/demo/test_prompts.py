import re

import pytest

from gateway.demo.prompts import WORKLOADS, calibration_prompt, load_prompts
from gateway.policy.model import Workload


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_workload_has_at_least_six_different_prompts(workload: str) -> None:
    prompts = [prompt for prompt in load_prompts() if prompt.workload == workload]

    assert len({prompt.text for prompt in prompts}) == len(prompts) >= 6
    assert len({prompt.name for prompt in prompts}) == len(prompts)


def test_workloads_are_words_of_the_policy() -> None:
    assert set(WORKLOADS) <= set(Workload)


def test_names_can_stand_in_request_ids() -> None:
    assert all(re.fullmatch(r"[a-z0-9-]+", prompt.name) for prompt in load_prompts())


def test_pass_times_are_not_measured_on_a_prompt_that_is_predicted() -> None:
    assert calibration_prompt().text not in {prompt.text for prompt in load_prompts()}


def test_a_short_run_takes_the_first_prompts_of_every_workload_in_turn() -> None:
    assert [prompt.workload for prompt in load_prompts(2)] == [*WORKLOADS, *WORKLOADS]
