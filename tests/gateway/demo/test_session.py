"""The demo with its real parts."""

import io
import os
import signal
from dataclasses import replace
from importlib.resources import as_file, files
from random import Random
from typing import Any

import pytest
from rich.console import Console

from gateway.demo.client import Answer, ChatClient
from gateway.demo.measure import Way
from gateway.demo.pace import FULL, Pace
from gateway.demo.prompts import load_prompts
from gateway.demo.report import Report
from gateway.demo.results import make_report
from gateway.demo.run import DRAFTER, POLICY, K
from gateway.demo.session import open_session
from gateway.demo.setup import started_stack
from gateway.demo.stack import free_ports

pytestmark = [pytest.mark.integration, pytest.mark.model, pytest.mark.slow]


SHORT = Pace(
    prompts=2,
    ways=FULL.ways,
    curve_prompts=2,
    max_tokens=32,
    calibration_rounds=2,
    calibration_tokens=32,
    seconds=60,
)


class KillsBeforeItsSecondQuestion(ChatClient):
    def __init__(self, inner: ChatClient, victim: int) -> None:
        self._inner = inner
        self._victim = victim
        self._asked = 0

    def ask(self, text: str, **keywords: Any) -> Answer:
        self._asked += 1
        if self._asked == 2:
            os.kill(self._victim, signal.SIGKILL)
        return self._inner.ask(text, **keywords)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A run on two code edits, in which `kill -9` ends the draft runner between the two."""
    console = Console(file=io.StringIO())
    folder = tmp_path_factory.mktemp("demo")
    with (
        as_file(files("policies") / POLICY) as policy,
        started_stack(console, folder=folder, policy=policy, dtype="float32", ports=free_ports()) as stack,
        open_session(stack, console) as session,
    ):
        (runner,) = [process for process in stack.processes if process.part.name == "draft runner"]
        shadow = KillsBeforeItsSecondQuestion(session.chats[Way.SHADOW], runner.pid)
        killing = replace(session, chats={**session.chats, Way.SHADOW: shadow})
        code = [prompt for prompt in load_prompts(2) if prompt.workload == "code"]
        evidence = killing.gather(code, pace=SHORT, drafter=DRAFTER, k=K, exact=True)
    return make_report(evidence, {}, Random(1))


def test_every_client_is_answered_although_the_draft_runner_is_gone(report: Report) -> None:
    result = report.workloads["code"]

    assert (result.prompts, result.in_engine.multiplier.n_spec) == (2, 2)
    assert report.checks["identical_all"]


def test_the_missing_replay_is_counted_with_its_reason(report: Report) -> None:
    assert report.workloads["code"].not_replayed == {"runner_unavailable": 1}
    assert report.checks["every_answer_has_its_record"]
    assert report.checks["off_leaves_no_record"]


def test_what_was_replayed_before_equals_reality(report: Report) -> None:
    assert report.workloads["code"].shadow.steps
    assert report.checks["replay_equals_reality"]


def test_every_pass_width_was_timed_so_that_every_k_is_predicted(report: Report) -> None:
    assert None not in report.workloads["code"].shadow.in_engine.by_k.values()


def test_other_ks_are_measured_beside_the_usual_one(report: Report) -> None:
    curve = report.workloads["code"].measured_curve

    assert {k: point.n_spec for k, point in curve.items()} == {1: 2, 3: 2, 5: 2, 8: 2}
