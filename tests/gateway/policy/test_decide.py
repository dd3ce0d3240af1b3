import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.evidence.loop_costs import Calibration, CostKey, load_band
from gateway.fleet.model import Backend
from gateway.policy.allowed import TABLES
from gateway.policy.allowed.model import Row
from gateway.policy.blocks import in_control_block, spans_a_switch
from gateway.policy.decide import decide, drafter_for
from gateway.policy.load import parse_policy
from gateway.policy.model import (
    LEAST_CONTROL,
    Action,
    Control,
    Decision,
    Defaults,
    Facts,
    Guardrails,
    Match,
    Mode,
    Policy,
    Prod,
    Rule,
    Shadow,
    Workload,
)
from gateway.policy.standing import Standing
from gateway.policy.ways import WAYS
from probes.model import Capability, Finding, Support

PLAIN = Backend(name="plain", url="http://127.0.0.1:1")
NOON = 1_700_000_000.0
NO_CONTROL = Control(fraction=0)


def having(
    name: str, *capabilities: Capability, support: Support = Support.YES, drafters: list[str] | None = None
) -> Backend:
    findings = {
        capability: Finding(
            capability=capability,
            support=support,
            evidence="asked",
            value=drafters if capability is Capability.IN_ENGINE else None,
        )
        for capability in capabilities
    }
    return replace(PLAIN, name=name, findings=findings)


def having_in_engine(support: Support, drafters: list[str] | None = None) -> Backend:
    return having(f"in-engine-{support}", Capability.IN_ENGINE, support=support, drafters=drafters)


NEEDS = {way.strategy or way.executor: way.needs for way in WAYS}
ABLE = having_in_engine(Support.YES)
SCORING = having("scoring", *NEEDS["scored"])
PLAIN_VLLM = having("plain-vllm", *NEEDS["fanout"])
GREEDY = Facts(temperature=0)


def calibrated(backend: Backend, strategy: str, *, model: str = "", running: int = 1) -> Standing:
    """A live runner and a calibration under which a step costs what a plain token costs."""
    key = CostKey(
        backend=backend.name, model=model, strategy=strategy, drafter="ngram", band=load_band(running)
    )
    costs = Calibration(
        key=key,
        measured_at=NOON,
        expires_at=NOON + 3600,
        context_tokens=256,
        plain_seconds=0.02,
        verify_seconds={0: 0.02, 8: 0.02},
        draft_seconds={0: 0.0, 8: 0.0},
    )
    return Standing(running=running, drafters=frozenset({"ngram"}), costs={key: costs})


ANYWAY = Guardrails(min_multiplier=0)


def one_rule(**said: Any) -> Policy:
    return Policy(version=1, rules=(Rule(name="fast", **said),))


def prod(prod: Prod | None = None, **said: Any) -> Policy:
    return one_rule(mode=Mode.PROD, experimental=True, prod=prod or Prod(control=NO_CONTROL), **said)


def shadow(**said: Any) -> Policy:
    return one_rule(mode=Mode.SHADOW, **said)


def outcome(policy: Policy, facts: Facts | None = None, backend: Backend = ABLE) -> tuple[Action, str | None]:
    decision = decide(policy, facts or Facts(), backend, NOON)
    return decision.action, decision.reason


def test_off_passes_and_names_no_drafter() -> None:
    assert decide(one_rule(mode=Mode.OFF), Facts(), ABLE, NOON) == Decision(
        mode=Mode.OFF, action=Action.PASS, rule="fast", trail=("fast: applies, mode off, pass",)
    )


@pytest.mark.parametrize("spelling", ["off", "Off", '"off"', "false"])
def test_a_switch_that_is_off_switches(spelling: str) -> None:
    """BR-C07, observed in what happens to a request."""
    text = f"version: 1\ndefaults: {{mode: shadow}}\nrules: [{{name: stop, mode: {spelling}}}]"
    assert decide(parse_policy(text, "p.yaml"), Facts(), ABLE, NOON).action is Action.PASS


def test_shadow_would_speculate_within_its_budget() -> None:
    policy = shadow(draft="ngram", lookahead=3, shadow=Shadow(max_tokens_per_minute=500))
    assert decide(policy, Facts(), PLAIN, NOON) == Decision(
        mode=Mode.SHADOW,
        action=Action.WOULD_SPECULATE,
        rule="fast",
        drafter="ngram",
        k=3,
        max_tokens_per_minute=500,
        trail=("fast: applies, mode shadow, would_speculate",),
    )


def test_shadow_compares_further_drafters_with_its_own() -> None:
    policy = shadow(draft="ngram", shadow=Shadow(compare=("suffix", "ngram", "suffix", "draft_model")))
    assert decide(policy, Facts(), PLAIN, NOON).compare == ("suffix", "draft_model")
    assert decide(one_rule(mode=Mode.OFF, shadow=policy.rules[0].shadow), Facts(), PLAIN, NOON).compare == ()


def test_shadow_skips_what_is_not_sampled_and_what_has_no_drafter() -> None:
    assert outcome(shadow(shadow=Shadow(sample=0))) == (Action.SKIP, "not_sampled")
    assert outcome(shadow(draft="none", shadow=Shadow(sample=0))) == (Action.SKIP, "no_drafter")


def test_prod_speculates_with_the_executor_that_the_backend_supports() -> None:
    assert decide(prod(lookahead=4), Facts(), ABLE, NOON) == Decision(
        mode=Mode.PROD,
        action=Action.SPECULATE,
        rule="fast",
        drafter="ngram",
        executor="in_engine",
        k=4,
        control=NO_CONTROL,
        trail=("fast: applies, mode prod, speculate",),
    )


@pytest.mark.parametrize("backend", [PLAIN, having_in_engine(Support.NO), having_in_engine(Support.UNKNOWN)])
@pytest.mark.parametrize("executor", ["auto", "in_engine"])
def test_only_a_proven_executor_is_used(backend: Backend, executor: str) -> None:
    policy = prod(Prod.model_validate({"executor": executor}))
    assert outcome(policy, backend=backend) == (Action.BYPASS, "no_executor")


@pytest.mark.parametrize(
    ("drafters", "able"),
    [
        (None, ["auto", "ngram"]),
        (["ngram", "suffix"], ["auto", "ngram", "suffix"]),
        (["draft_model"], ["draft_model"]),
        ([], []),
    ],
)
def test_an_engine_speculates_with_the_drafters_that_it_lists(
    drafters: list[str] | None, able: list[str]
) -> None:
    backend = having_in_engine(Support.YES, drafters)
    words = ("auto", "ngram", "suffix", "draft_model")
    outcomes = {word: outcome(prod(draft=word), backend=backend) for word in words}
    lacking = dict.fromkeys(set(words) - set(able), (Action.BYPASS, "no_executor"))
    assert outcomes == lacking | dict.fromkeys(able, (Action.SPECULATE, None))


def test_the_trail_names_the_drafter_that_the_engine_lacks() -> None:
    decision = decide(prod(draft="suffix"), Facts(), having_in_engine(Support.YES, ["ngram"]), NOON)
    assert "in_engine needs the drafter suffix, and 'in-engine-yes' has ngram" in decision.trail[-1]


def test_a_drafter_that_the_engine_lacks_may_drive_it_from_outside() -> None:
    both = having("both", *NEEDS["in_engine"], *NEEDS["scored"], drafters=["ngram"])
    decision = decide(prod(draft="suffix", guardrails=ANYWAY), GREEDY, both, NOON, Standing())
    assert (decision.reason, decision.drafter) == ("no_runner", "suffix")


@pytest.mark.parametrize(("field", "row"), sorted(TABLES["in_engine"].row_of.items()))
def test_a_request_with_a_field_that_may_not_be_speculated_is_bypassed(field: str, row: Row) -> None:
    assert outcome(prod(), Facts(fields=frozenset({"model", field}))) == (Action.BYPASS, row.ruling.reason)


def test_a_field_is_judged_by_the_engine_that_the_operator_declared() -> None:
    penalised = Facts(fields=frozenset({"frequency_penalty"}))
    assert outcome(prod(), penalised) == (Action.BYPASS, "penalties")
    assert outcome(prod(), penalised, replace(ABLE, declared_kind="sglang")) == (Action.BYPASS, "penalties")
    assert outcome(prod(), penalised, replace(ABLE, declared_kind="vllm")) == (Action.SPECULATE, None)


@pytest.mark.parametrize(("backend", "strategy"), [(SCORING, "scored"), (PLAIN_VLLM, "fanout")])
@pytest.mark.parametrize("executor", ["auto", "gateway_loop"])
def test_a_plain_server_is_driven_by_the_best_strategy_that_it_allows(
    backend: Backend, strategy: str, executor: str
) -> None:
    policy = prod(Prod.model_validate({"executor": executor, "control": NO_CONTROL}), guardrails=ANYWAY)
    decision = decide(policy, GREEDY, backend, NOON, calibrated(backend, strategy))
    assert (decision.action, decision.executor, decision.strategy) == (
        Action.SPECULATE,
        "gateway_loop",
        strategy,
    )


def test_the_engine_itself_is_preferred_to_driving_it() -> None:
    both = having("both", *NEEDS["in_engine"], *NEEDS["scored"])
    decision = decide(prod(guardrails=ANYWAY), GREEDY, both, NOON, calibrated(both, "scored"))
    assert (decision.executor, decision.strategy) == ("in_engine", None)
    asked = prod(Prod(executor="gateway_loop", control=NO_CONTROL), guardrails=ANYWAY)
    assert decide(asked, GREEDY, both, NOON, calibrated(both, "scored")).executor == "gateway_loop"


@pytest.mark.parametrize("lacking", NEEDS["fanout"])
def test_driving_a_server_needs_every_finding(lacking: Capability) -> None:
    backend = having("lacking", *(need for need in NEEDS["fanout"] if need != lacking))
    assert outcome(prod(guardrails=ANYWAY), GREEDY, backend) == (Action.BYPASS, "no_executor")


@pytest.mark.parametrize(
    ("field", "reason"),
    [("seed", "seed"), ("tools", "tools"), ("logprobs", "logprobs"), ("of_next_year", "unknown_field")],
)
def test_only_what_is_on_the_list_is_driven(field: str, reason: str) -> None:
    facts = replace(GREEDY, fields=frozenset({"model", "messages", field}))
    assert outcome(prod(guardrails=ANYWAY), facts, PLAIN_VLLM) == (Action.BYPASS, reason)


def test_the_gate_is_asked_last_and_before_control() -> None:
    """Fields, drafter, share and findings first; a request that is not worth driving is no control."""
    only_control = Prod(control=Control(fraction=0.5))
    at = next(at for at in range(0, 6000, 60) if in_control_block(SCORING.name, "", at, only_control.control))
    policy = prod(only_control, guardrails=ANYWAY)
    assert decide(policy, GREEDY, SCORING, at).reason == "no_runner"
    standing = calibrated(SCORING, "scored")
    control = decide(policy, GREEDY, SCORING, at, standing)
    assert (control.action, control.executor, control.strategy) == (Action.CONTROL, "gateway_loop", "scored")
    assert outcome(prod(Prod(share=0), guardrails=ANYWAY), GREEDY, SCORING)[1] == "outside_share"


def test_a_bypass_tells_its_numbers_in_the_record_and_in_the_trail() -> None:
    crowded = calibrated(SCORING, "scored", running=17)
    decision = decide(prod(guardrails=ANYWAY), GREEDY, SCORING, NOON, crowded)
    assert decision.reason == "max_running"
    assert decision.detail == "17 requests are under way at 'scoring', above 16"
    assert decision.trail == (f"fast: applies, mode prod, bypass (max_running): {decision.detail}",)


def test_the_first_obstacle_is_the_reason() -> None:
    """Fields, then drafter, then share, then executor, then control."""
    nothing_goes = Prod(share=0, control=Control(fraction=0.5))
    only_control = Prod(control=Control(fraction=0.5))
    at = next(at for at in range(0, 6000, 60) if in_control_block(ABLE.name, "", at, only_control.control))

    def reason(policy: Policy, facts: Facts, backend: Backend) -> str | None:
        return decide(policy, facts, backend, at).reason

    assert reason(prod(nothing_goes, draft="none"), Facts(fields=frozenset({"tools"})), PLAIN) == "tools"
    assert reason(prod(nothing_goes, draft="none"), Facts(), PLAIN) == "no_drafter"
    assert reason(prod(nothing_goes), Facts(), PLAIN) == "outside_share"
    assert reason(prod(only_control), Facts(), PLAIN) == "no_executor"
    assert reason(prod(only_control), Facts(), ABLE) == "control_block"


def test_control_traffic_keeps_the_executor_it_is_compared_with() -> None:
    control = Control(block=60, fraction=0.5)
    decisions = [decide(prod(Prod(control=control)), Facts(), ABLE, at) for at in range(0, 3600, 60)]
    plain = [decision for decision in decisions if decision.action is Action.CONTROL]
    assert 0 < len(plain) < len(decisions)
    assert {(d.reason, d.executor, d.drafter) for d in plain} == {("control_block", "in_engine", "ngram")}


def test_the_first_rule_that_matches_decides_and_the_trail_says_why_others_did_not() -> None:
    policy = Policy(
        version=1,
        rules=(
            Rule(name="code", match=Match(workload=(Workload.CODE,))),
            Rule(name="search", match=Match(tenant=("search",)), mode=Mode.SHADOW),
            Rule(name="rest"),
        ),
    )
    decision = decide(policy, Facts(tenant="search"), PLAIN, NOON)
    assert decision.rule == "search"
    assert decision.trail == (
        "code: workload chat is none of ['code']",
        "search: applies, mode shadow, would_speculate",
    )


def test_a_reason_is_told_as_a_sentence_too() -> None:
    (line,) = decide(prod(), Facts(), having_in_engine(Support.NO), NOON).trail
    assert line == (
        "fast: applies, mode prod, bypass (no_executor): "
        "in_engine needs the finding in_engine, which is no for 'in-engine-no'; "
        "gateway_loop (scored) needs the finding streaming, which is unknown for 'in-engine-no'; "
        "gateway_loop (fanout) needs the finding streaming, which is unknown for 'in-engine-no'"
    )


def test_the_defaults_decide_where_no_rule_matches() -> None:
    policy = Policy(
        version=1,
        defaults=Defaults(mode=Mode.SHADOW, lookahead=7),
        rules=(Rule(name="code", match=Match(workload=(Workload.CODE,))),),
    )
    decision = decide(policy, Facts(), PLAIN, NOON)
    assert (decision.rule, decision.action, decision.k) == ("default", Action.WOULD_SPECULATE, 7)
    assert len(decision.trail) == 2


def test_other_endpoints_pass_whatever_the_rules_say() -> None:
    decision = decide(prod(), Facts(endpoint="other"), ABLE, NOON)
    assert (decision.mode, decision.action, decision.rule) == (Mode.OFF, Action.PASS, "default")


def test_every_drafter_that_a_rule_may_ask_for_comes_to_something() -> None:
    words = get_args(Defaults.model_fields["draft"].annotation)
    by_their_own_name = {word: word for word in ("ngram", "suffix", "draft_model")}
    assert {word: drafter_for(word) for word in words} == {"auto": "ngram", "none": None, **by_their_own_name}


def share_of(policies: Mapping[str, Policy], action: Action, count: int = 4000) -> dict[str, float]:
    facts = [Facts(request_id=f"request-{number}") for number in range(count)]
    return {
        name: sum(decide(policy, f, ABLE, NOON).action is action for f in facts) / count
        for name, policy in policies.items()
    }


def test_samples_and_shares_are_met_over_many_requests() -> None:
    """Four standard deviations of 4000 draws are 0.032 at most."""
    wanted = {"0.0": 0.0, "0.1": 0.1, "0.5": 0.5, "0.9": 0.9, "1.0": 1.0}
    sampled = share_of(
        {name: shadow(shadow=Shadow(sample=part)) for name, part in wanted.items()}, Action.WOULD_SPECULATE
    )
    shared = share_of(
        {name: prod(Prod(share=part, control=NO_CONTROL)) for name, part in wanted.items()}, Action.SPECULATE
    )
    assert sampled == pytest.approx(wanted, abs=0.032)
    assert shared == pytest.approx(wanted, abs=0.032)
    assert (sampled["0.0"], sampled["1.0"], shared["0.0"], shared["1.0"]) == (0, 1, 0, 1)


def test_sample_and_share_draw_independently() -> None:
    """A rule that is moved from shadow to prod does not meet the very requests that it sampled."""
    ids = [f"request-{number}" for number in range(4000)]
    half_sampled, half_shared = shadow(shadow=Shadow(sample=0.5)), prod(Prod(share=0.5, control=NO_CONTROL))
    both = sum(
        decide(half_sampled, Facts(request_id=i), ABLE, NOON).action is Action.WOULD_SPECULATE
        and decide(half_shared, Facts(request_id=i), ABLE, NOON).action is Action.SPECULATE
        for i in ids
    )
    assert both / len(ids) == pytest.approx(0.25, abs=0.03)


@given(st.text(), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_keeps_the_requests_of_a_smaller_one(
    request_id: str, one: float, other: float
) -> None:
    facts = Facts(request_id=request_id)
    smaller, larger = (prod(Prod(share=share, control=NO_CONTROL)) for share in sorted((one, other)))
    if outcome(smaller, facts)[0] is Action.SPECULATE:
        assert outcome(larger, facts)[0] is Action.SPECULATE


def test_control_blocks_are_whole_and_meet_their_fraction() -> None:
    control = Control(block=60, fraction=0.25)
    starts = range(0, 60 * 4000, 60)
    blocks = [in_control_block("b", "m", at, control) for at in starts]
    assert sum(blocks) / len(blocks) == pytest.approx(0.25, abs=0.03)
    assert blocks == [in_control_block("b", "m", at + 59.999, control) for at in starts]


@given(st.floats(0, 1e6), st.floats(0, 2000), st.just(0) | st.floats(LEAST_CONTROL, 0.5))
def test_a_request_spans_a_switch_if_any_moment_of_it_is_of_the_other_arm(
    start: float, seconds: float, fraction: float
) -> None:
    control = Control(block=60, fraction=fraction)
    end = start + seconds
    moments = [start, *(at for at in range(0, 1_003_000, 60) if start < at <= end)]
    arms = {in_control_block("b", "m", at, control) for at in moments}
    assert spans_a_switch("b", "m", start, end, control) is (len(arms) > 1)


def test_control_by_replica_is_one_backend_and_no_block_of_another() -> None:
    policy = prod(Prod(control=Control(fraction=0.5, replica="plain")))
    replica = replace(ABLE, name="plain")
    for at in range(0, 6000, 60):
        assert decide(policy, Facts(), ABLE, at).action is Action.SPECULATE
        decision = decide(policy, Facts(), replica, at)
        assert (decision.action, decision.reason) == (Action.CONTROL, "control_replica")
        assert (decision.executor, decision.k) == ("in_engine", 5)


def test_a_replica_takes_as_control_only_what_could_have_been_speculated() -> None:
    policy = prod(Prod(control=Control(replica=ABLE.name)))
    assert outcome(policy, Facts(fields=frozenset({"tools"})), ABLE) == (Action.BYPASS, "tools")
    assert outcome(policy, Facts(), replace(PLAIN, name=ABLE.name)) == (Action.BYPASS, "no_executor")


@given(st.floats(0.02, 0.5), st.integers(0, 10**7), st.text(max_size=3))
def test_neither_arm_stays_away_for_long(fraction: float, first: int, backend: str) -> None:
    """Every stretch of twice 1 / fraction blocks has one of the control."""
    control = Control(block=60, fraction=fraction)
    stretch = range(first, first + math.ceil(2 / fraction) + 1)
    arms = {in_control_block(backend, "m", 60.0 * number, control) for number in stretch}
    assert arms == {True, False}


def test_without_a_fraction_there_is_no_control() -> None:
    control = Control(fraction=0)
    assert not any(in_control_block("b", "m", at, control) for at in range(0, 60_000, 60))


def test_backends_and_models_have_blocks_of_their_own() -> None:
    control = Control(block=60, fraction=0.5)
    times = range(0, 60 * 64, 60)
    rows = {
        tuple(in_control_block(backend, model, at, control) for at in times)
        for backend, model in [("a", "m"), ("b", "m"), ("a", "n"), ("am", "")]
    }
    assert len(rows) == 4


matches = st.sampled_from(
    [
        Match(),
        Match(model=("m*",)),
        Match(tenant=("t",), max_temperature=0.5),
        Match(workload=(Workload.CODE, Workload.RAG)),
    ]
)
rules = st.builds(
    Rule,
    name=st.just("placeholder"),
    match=matches,
    mode=st.sampled_from(Mode),
    experimental=st.just(True),
    draft=st.sampled_from(["auto", "none", "ngram", "suffix", "draft_model"]),
    shadow=st.builds(Shadow, sample=st.floats(0, 1)),
    prod=st.builds(
        Prod,
        executor=st.sampled_from(["auto", "in_engine", "gateway_loop"]),
        share=st.floats(0, 1),
        control=st.builds(Control, fraction=st.just(0) | st.floats(LEAST_CONTROL, 0.5)),
    ),
    guardrails=st.sampled_from([Guardrails(), ANYWAY]),
)
any_facts = st.builds(
    Facts,
    request_id=st.text(max_size=8),
    endpoint=st.sampled_from(["chat", "completions"]),
    model=st.sampled_from(["m1", "other"]),
    tenant=st.sampled_from(["t", "u"]),
    workload=st.sampled_from(Workload),
    temperature=st.none() | st.floats(0, 2),
    fields=st.frozensets(st.sampled_from(["model", "tools", "n", "seed"])),
)


standings = st.sampled_from(
    [Standing(), calibrated(SCORING, "scored", model="m1"), calibrated(PLAIN_VLLM, "fanout", model="m1")]
)


@given(
    st.lists(rules, max_size=5),
    any_facts,
    st.sampled_from([PLAIN, ABLE, SCORING, PLAIN_VLLM]),
    st.floats(0, 2e9),
    standings,
)
def test_decisions_are_repeatable_and_told_up_to_the_deciding_rule(
    some: list[Rule], facts: Facts, backend: Backend, at: float, standing: Standing
) -> None:
    named = tuple(rule.model_copy(update={"name": f"rule-{place}"}) for place, rule in enumerate(some))
    policy = Policy(version=1, rules=named)
    decision = decide(policy, facts, backend, at, standing)
    assert decision == decide(policy, facts, backend, at, standing)
    considered = [line.split(":")[0] for line in decision.trail]
    order = [*(rule.name for rule in named), "default"]
    assert considered == order[: order.index(decision.rule) + 1]
    assert (decision.reason is None) == (
        decision.action in (Action.PASS, Action.WOULD_SPECULATE, Action.SPECULATE)
    )
    assert (decision.executor is not None) == (decision.action in (Action.SPECULATE, Action.CONTROL))
    assert (decision.strategy is not None) == (decision.executor == "gateway_loop")
    assert (decision.detail is None) == (decision.reason is None)
    assert (decision.k is None) == (decision.drafter is None)
