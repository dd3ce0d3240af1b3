from __future__ import annotations

import re
from importlib.resources import files

import yaml

from draftrunner.training.prompts import WORKLOADS, make_prompts
from gateway.demo.prompts import calibration_prompt, load_prompts

SENTENCE = re.compile(r"[^.?!\n]{40,}")


def test_the_same_seed_makes_the_same_prompts() -> None:
    assert make_prompts(50, seed=1, held_out=False) == make_prompts(50, seed=1, held_out=False)
    assert make_prompts(50, seed=1, held_out=False) != make_prompts(50, seed=2, held_out=False)


def test_workloads_take_turns() -> None:
    assert [prompt.workload for prompt in make_prompts(7, seed=1, held_out=False)] == [
        *WORKLOADS,
        *WORKLOADS[:2],
    ]


def test_every_gap_is_filled() -> None:
    for held_out in (False, True):
        for prompt in make_prompts(1000, seed=3, held_out=held_out):
            assert "$" not in prompt.text
            assert not re.search(r"<[^<>\n]*\|", prompt.text)


def test_prompts_hardly_ever_repeat() -> None:
    assert len(set(make_prompts(1000, seed=4, held_out=False))) > 850


def test_held_out_prompts_have_texts_and_topics_of_their_own() -> None:
    grammars = yaml.safe_load(files("draftrunner.training").joinpath("prompts.yaml").read_text("utf-8"))
    heroes = grammars["creative"]["words"]["hero"]
    used = {
        held_out: {
            hero
            for prompt in make_prompts(2000, seed=5, held_out=held_out)
            for hero in heroes
            if prompt.workload == "creative" and f"{hero} who" in prompt.text
        }
        for held_out in (False, True)
    }
    assert used[True]
    assert used[False]
    assert not used[True] & used[False]


def test_no_sentence_of_the_demos_prompts_is_trained_on() -> None:
    ours = files("draftrunner.training").joinpath("prompts.yaml").read_text("utf-8")
    demo = [*load_prompts(), calibration_prompt()]
    sentences = {found.strip() for prompt in demo for found in SENTENCE.findall(prompt.text)}
    assert len(sentences) > 100
    assert [sentence for sentence in sentences if sentence in ours] == []
