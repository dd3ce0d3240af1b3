"""Whether a request is driven from outside: one obstacle after the other taken away."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.evidence.loop_costs import Calibration, CostKey, Worth, WorthKey
from gateway.fleet.model import Backend
from gateway.policy.gate import LoopCase, why_not_driven
from gateway.policy.model import Facts, Guardrails, Workload
from gateway.policy.standing import Standing
from probes.model import Capability, Finding, Support

NOON = 1_700_000_000.0
BACKEND = Backend(name="gpu-1", url="http://gpu-1")
KEY = CostKey(backend="gpu-1", model="m", strategy="fanout", drafter="ngram", band="1")
WORTH_KEY = WorthKey(cost=KEY, workload="code", k=5)
COSTS = Calibration(
    key=KEY,
    measured_at=NOON - 60,
    expires_at=NOON + 3540,
    context_tokens=256,
    plain_seconds=0.020,
    verify_seconds={0: 0.020, 5: 0.030, 8: 0.040},
    draft_seconds={0: 0.001, 5: 0.002, 8: 0.002},
)
GOOD = Worth(value=2.0, low=1.5, answers=40)
KNOWN = Standing(drafters=frozenset({"ngram"}), costs={KEY: COSTS}, worths={WORTH_KEY: GOOD})
CASE = LoopCase(
    facts=Facts(model="m", workload=Workload.CODE, temperature=0),
    backend=BACKEND,
    strategy="fanout",
    drafter="ngram",
    k=5,
    guardrails=Guardrails(),
    at=NOON,
    standing=KNOWN,
)


@dataclass(frozen=True)
class Compared:
    """What comparing two tokenizers found."""

    agrees: bool | None
    sentence: str


def reason(case: LoopCase) -> str | None:
    obstacle = why_not_driven(case)
    return obstacle.reason if obstacle else None


def why(case: LoopCase) -> str:
    obstacle = why_not_driven(case)
    assert obstacle is not None
    return obstacle.why


def drawing_independently(support: Support) -> Backend:
    finding = Finding(capability=Capability.INDEPENDENT_DRAWS, support=support, evidence="asked")
    return replace(BACKEND, findings={Capability.INDEPENDENT_DRAWS: finding})


def test_a_request_that_is_known_to_gain_is_driven() -> None:
    assert reason(CASE) is None


@pytest.mark.parametrize("temperature", [None, 0.7])
@pytest.mark.parametrize(
    ("strategy", "draws", "expected"),
    [
        ("fanout", Support.YES, None),
        ("fanout", Support.NO, "not_greedy_explicitly"),
        ("fanout", Support.UNKNOWN, "not_greedy_explicitly"),
        ("scored", Support.UNKNOWN, None),
    ],
)
def test_what_is_sampled_needs_draws_that_are_known_to_be_the_targets(
    temperature: float | None, strategy: str, draws: Support, expected: str | None
) -> None:
    """An unstated temperature is the server's default, which nobody knows."""
    key = replace(KEY, strategy=strategy)
    case = replace(
        CASE,
        facts=replace(CASE.facts, temperature=temperature),
        strategy=strategy,
        backend=drawing_independently(draws),
        standing=replace(
            KNOWN,
            costs={key: replace(COSTS, key=key)},
            worths={replace(WORTH_KEY, cost=key): GOOD},
        ),
    )
    assert reason(case) == expected


def test_a_drafter_has_to_be_announced_by_a_live_runner() -> None:
    case = replace(CASE, standing=replace(KNOWN, drafters=frozenset({"suffix", "draft_model"})))
    assert reason(case) == "no_runner"
    assert "(announced: draft_model, suffix)" in why(case)


@pytest.mark.parametrize(
    ("pairing", "words"),
    [
        (None, "have not been compared yet"),
        (Compared(None, "the runner did not answer"), "the runner did not answer"),
        (Compared(False, "id 5 is 'a' for the target and 'b' for the draft model"), "id 5"),
    ],
)
def test_a_draft_model_needs_a_tokenizer_that_was_found_to_be_the_targets(
    pairing: Compared | None, words: str
) -> None:
    """BR-B01."""
    standing = replace(KNOWN, drafters=frozenset({"draft_model"}), pairing=pairing)
    case = replace(CASE, drafter="draft_model", standing=standing)
    assert reason(case) == "tokenizer_mismatch"
    assert words in why(case)


def test_a_draft_model_whose_tokenizer_agrees_is_judged_by_its_evidence() -> None:
    agrees = Compared(True, "all 49152 ids agree")
    standing = replace(KNOWN, drafters=frozenset({"draft_model"}), pairing=agrees)
    assert reason(replace(CASE, drafter="draft_model", standing=standing)) == "not_calibrated"


@pytest.mark.parametrize(("running", "expected"), [(2, None), (3, "max_running")])
def test_above_max_running_nothing_is_driven(running: int, expected: str | None) -> None:
    key = replace(KEY, band="2-4")
    standing = replace(
        KNOWN,
        running=running,
        costs={key: replace(COSTS, key=key)},
        worths={replace(WORTH_KEY, cost=key): GOOD},
    )
    assert reason(replace(CASE, standing=standing, guardrails=Guardrails(max_running=2))) == expected


def test_another_load_needs_a_calibration_of_its_own() -> None:
    case = replace(CASE, standing=replace(KNOWN, running=2))
    assert reason(case) == "not_calibrated"
    assert "at load 2-4 has not been measured" in why(case)
    assert "`ace backends calibrate gpu-1`" in why(case)


@pytest.mark.parametrize(("at", "expected"), [(NOON + 3539, None), (NOON + 3540, "not_calibrated")])
def test_a_calibration_expires(at: float, expected: str | None) -> None:
    assert reason(replace(CASE, at=at)) == expected


def test_a_k_beyond_what_is_timed_has_no_calibration() -> None:
    case = replace(CASE, k=9, guardrails=Guardrails(min_multiplier=0))
    assert reason(case) == "not_calibrated"
    assert "`lookahead` asks for 9" in why(case)


def test_what_could_not_pay_with_every_draft_accepted_needs_no_evidence() -> None:
    """Six tokens for 114 ms against 19 ms each: the best is 20 ms over 21 ms, with no draft at all."""
    slow = replace(COSTS, verify_seconds={0: 0.020, 5: 0.130, 8: 0.190})
    case = replace(CASE, standing=replace(KNOWN, costs={KEY: slow}, worths={}))
    assert reason(case) == "not_worth_it"
    assert "the multiplier would be 0.95, below 1.05" in why(case)
    assert "a plain token 20.0 ms" in why(case)


def test_without_shadow_answers_nothing_is_driven() -> None:
    case = replace(CASE, standing=replace(KNOWN, worths={}))
    assert reason(case) == "no_evidence"
    assert "K = 5" in why(case)


@pytest.mark.parametrize(
    ("low", "floor", "expected"),
    [(1.05, 1.05, None), (1.04, 1.05, "not_worth_it"), (1.04, 1.0, None), (0.2, 0, None)],
)
def test_the_lower_bound_has_to_reach_the_rules_floor(low: float, floor: float, expected: str | None) -> None:
    standing = replace(KNOWN, worths={WORTH_KEY: Worth(value=1.2, low=low, answers=12)})
    case = replace(CASE, standing=standing, guardrails=Guardrails(min_multiplier=floor))
    assert reason(case) == expected
    if expected:
        assert "1.20 (at least 1.04, from 12 shadow answers)" in why(case)


@pytest.mark.parametrize(
    ("standing", "expected"),
    [(replace(KNOWN, worths={}), None), (replace(KNOWN, costs={}), "not_calibrated")],
)
def test_a_floor_of_zero_measures_whatever_is_predicted_and_still_needs_a_calibration(
    standing: Standing, expected: str | None
) -> None:
    assert reason(replace(CASE, standing=standing, guardrails=Guardrails(min_multiplier=0))) == expected


@given(st.floats(0.1, 5), st.floats(0.1, 5), st.floats(0, 3))
def test_more_evidence_never_closes_the_gate(one: float, other: float, floor: float) -> None:
    low, high = sorted((one, other))
    guardrails = Guardrails(min_multiplier=floor)

    def driven(bound: float) -> bool:
        standing = replace(KNOWN, worths={WORTH_KEY: Worth(value=bound, low=bound, answers=9)})
        return reason(replace(CASE, standing=standing, guardrails=guardrails)) is None

    assert driven(high) or not driven(low)


def seen_as(support: Support) -> Backend:
    finding = Finding(capability=Capability.SINGLE_PROCESS, support=support, evidence="A and B in turns")
    return replace(BACKEND, findings={Capability.SINGLE_PROCESS: finding})


@pytest.mark.parametrize(
    ("support", "expected"), [(Support.NO, "several_processes"), (Support.YES, None), (Support.UNKNOWN, None)]
)
def test_only_a_url_that_is_known_for_several_processes_is_not_driven(
    support: Support, expected: str | None
) -> None:
    assert reason(replace(CASE, backend=seen_as(support))) == expected


def test_several_processes_are_named_with_what_to_do() -> None:
    said = why(replace(CASE, backend=seen_as(Support.NO)))
    assert said.startswith("A and B in turns")
    assert "`ace backends add NAME URL URL ...`" in said


@pytest.mark.parametrize(("since", "expected"), [(NOON - 61, None), (NOON - 59, "not_calibrated")])
def test_what_was_measured_on_the_process_before_does_not_count(since: float, expected: str | None) -> None:
    assert reason(replace(CASE, backend=replace(BACKEND, process_since=since))) == expected


def test_each_instance_needs_a_calibration_of_its_own() -> None:
    at = replace(BACKEND, instance="10.0.0.2")
    assert reason(replace(CASE, backend=at)) == "not_calibrated"
    costs = {replace(KEY, instance="10.0.0.2"): COSTS}
    worths = {replace(WORTH_KEY, cost=replace(KEY, instance="10.0.0.2")): GOOD}
    assert reason(replace(CASE, backend=at, standing=replace(KNOWN, costs=costs, worths=worths))) is None
