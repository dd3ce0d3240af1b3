"""What a backend's findings and calibrations allow, in one sentence for each executor."""

from collections.abc import Iterable

import pytest

from gateway.evidence.loop_costs import Calibration, CostKey
from gateway.fleet.executors import _REMEDIES, ExecutorVerdict, executors_of
from gateway.fleet.model import Backend, BackendState
from gateway.policy.ways import EXECUTORS, WAYS
from probes.model import Capability, Finding, Support

LOOP_NEEDS = {need for way in WAYS if way.strategy for need in way.needs}


def backend(
    *answers: tuple[Capability, Support], state: BackendState = BackendState.UP, name: str = "gpu-1"
) -> Backend:
    findings = {
        capability: Finding(capability=capability, support=support, evidence="what was seen.")
        for capability, support in answers
    }
    return Backend(name=name, url="http://gpu-1", state=state, findings=findings)


def all_yes(capabilities: Iterable[Capability]) -> list[tuple[Capability, Support]]:
    return [(capability, Support.YES) for capability in capabilities]


def calibration(strategy: str, of: str = "gpu-1") -> Calibration:
    return Calibration(
        key=CostKey(backend=of, model="m", strategy=strategy, drafter="ngram", band="2-4"),
        measured_at=0.0,
        expires_at=3600.0,
        context_tokens=256,
        plain_seconds=0.070,
        verify_seconds={0: 0.070, 8: 0.080},
        draft_seconds={0: 0.002, 8: 0.003},
    )


def verdict(name: str, *given: object) -> ExecutorVerdict:
    found = {verdict.name: verdict for verdict in executors_of(*given)}  # type: ignore[arg-type]
    assert list(found) == list(EXECUTORS)
    one = found[name]
    assert one.sentence.startswith(f"{name} ")
    assert one.sentence.count(". ") == 0
    assert one.sentence.endswith(".")
    return one


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
    answers = [(Capability.IN_ENGINE, support)] if support else []
    found = verdict("in_engine", backend(*answers, state=state))
    assert found.possible is possible
    assert words in found.sentence


def test_every_finding_that_a_way_needs_has_its_remedy() -> None:
    assert set(_REMEDIES) == {need for way in WAYS for need in way.needs}


@pytest.mark.parametrize("missing", sorted(LOOP_NEEDS - {Capability.SCORED}))
def test_what_a_plain_server_lacks_for_the_loop_is_named(missing: Capability) -> None:
    able = all_yes(LOOP_NEEDS - {missing, Capability.SCORED})
    found = verdict("gateway_loop", backend(*able, (missing, Support.NO)))
    assert not found.possible
    assert f"the finding {missing} is no (what was seen); {_REMEDIES[missing]}" in found.sentence


def test_a_loop_that_was_not_calibrated_says_how_to() -> None:
    able = backend(*all_yes(LOOP_NEEDS - {Capability.SCORED}))
    elsewhere, another_way = calibration("fanout", of="gpu-2"), calibration("scored")
    found = verdict("gateway_loop", able, [elsewhere, another_way])
    assert found.possible
    assert "fanout, not calibrated: `ace backends calibrate gpu-1`" in found.sentence


def test_a_calibrated_loop_says_what_a_step_costs() -> None:
    found = verdict("gateway_loop", backend(*all_yes(LOOP_NEEDS)), [calibration("scored")])
    assert found.sentence == (
        "gateway_loop is possible (scored with ngram at load 2-4: a plain token 70.0 ms; "
        "a step by drafts: 72.0 ms with 0, 83.0 ms with 8)."
    )


def test_a_backend_that_is_down_drives_nothing() -> None:
    found = verdict("gateway_loop", backend(*all_yes(LOOP_NEEDS), state=BackendState.DOWN))
    assert (found.possible, "once the backend is up" in found.sentence) == (False, True)


def test_a_url_of_several_processes_keeps_the_loop_off_and_says_what_to_do() -> None:
    asked = backend(
        *all_yes(LOOP_NEEDS), (Capability.IN_ENGINE, Support.YES), (Capability.SINGLE_PROCESS, Support.NO)
    )
    in_engine, loop = executors_of(asked)
    assert in_engine.possible
    assert not loop.possible
    assert loop.sentence == (
        "gateway_loop is not possible: what was seen; register each server by its own URL."
    )
