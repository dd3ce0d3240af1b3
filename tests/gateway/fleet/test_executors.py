"""What a backend's findings allow, in one sentence for each executor."""

import pytest

from gateway.fleet.executors import executors_of
from gateway.fleet.model import Backend, BackendState
from gateway.policy.decide import EXECUTORS
from probes.model import Capability, Finding, Support


def backend(support: Support | None, state: BackendState = BackendState.UP) -> Backend:
    findings = {}
    if support is not None:
        findings[Capability.IN_ENGINE] = Finding(
            capability=Capability.IN_ENGINE, support=support, evidence="what was seen."
        )
    return Backend(name="gpu-1", url="http://gpu-1", state=state, findings=findings)


def test_every_executor_is_judged() -> None:
    assert [verdict.name for verdict in executors_of(backend(None))] == list(EXECUTORS)


@pytest.mark.parametrize(
    ("support", "state", "possible", "words"),
    [
        (Support.YES, BackendState.UP, True, "is possible (what was seen)."),
        (Support.YES, BackendState.DOWN, False, "once the backend is up"),
        (Support.NO, BackendState.UP, False, "ace embedded-backend"),
        (Support.NO, BackendState.UP, False, "(what was seen)"),
        (Support.UNKNOWN, BackendState.UP, False, "ace backends probe gpu-1"),
        (None, BackendState.UP, False, "ace backends probe gpu-1"),
    ],
)
def test_the_sentence_says_what_is_missing_and_what_to_do(
    support: Support | None, state: BackendState, possible: bool, words: str
) -> None:
    (verdict,) = executors_of(backend(support, state))
    assert verdict.possible is possible
    assert words in verdict.sentence
    assert verdict.sentence.startswith("in_engine ")
    assert verdict.sentence.count(". ") == 0
    assert verdict.sentence.endswith(".")
