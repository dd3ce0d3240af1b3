"""Overlays only ever take away, and what they took says who did it and why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.model import Backend
from gateway.policy.decide import decide
from gateway.policy.model import (
    MAX_LOOKAHEAD,
    Action,
    Control,
    Decision,
    Facts,
    Lookahead,
    Mode,
    Policy,
    Prod,
    Rule,
)
from gateway.policy.overlays import (
    KILLED,
    UNREAD,
    Overlay,
    OverlayKind,
    Overlays,
    Scope,
    Subject,
    joined,
)
from gateway.policy.standing import Standing
from probes.model import Capability, Finding, Support

NOON = 1_700_000_000.0
RANK = {Mode.OFF: 0, Mode.SHADOW: 1, Mode.PROD: 2}
ABLE = Backend(
    name="b",
    url="http://b",
    findings={
        Capability.IN_ENGINE: Finding(capability=Capability.IN_ENGINE, support=Support.YES, evidence="tried")
    },
)
FACTS = Facts(request_id="r", model="m", tenant="t")


def overlay(kind: str = "kill", value: Any = None, **more: Any) -> Overlay:
    fields: dict[str, Any] = {"id": "o1", "author": "ann", "reason": "too slow", "created_at": NOON - 60}
    scope = Scope(**{name: more.pop(name) for name in ("tenant", "model", "backend", "rule") if name in more})
    return Overlay(kind=OverlayKind(kind), value=value, scope=scope, **(fields | more))


def rule(mode: Mode, **more: Any) -> Rule:
    control = Prod(control=Control(fraction=0))
    return Rule(name="chat", mode=mode, experimental=True, prod=control, **more)


def decided(mode: Mode, *known: Overlay, read: bool = True, **more: Any) -> Decision:
    policy = Policy(version=1, rules=(rule(mode, **more),))
    return decide(policy, FACTS, ABLE, NOON, Standing(overlays=Overlays(known, read=read)))


@pytest.mark.parametrize(
    ("mode", "action"), [(Mode.PROD, Action.BYPASS), (Mode.SHADOW, Action.SKIP)], ids=["prod", "shadow"]
)
def test_a_kill_stops_what_speculates_or_is_replayed_and_says_who_and_why(mode: Mode, action: Action) -> None:
    decision = decided(mode, overlay())
    assert (decision.mode, decision.action, decision.reason) == (mode, action, KILLED)
    assert decision.executor is None
    assert decision.detail == "kill of everything (o1, by ann): too slow"
    assert "by ann): too slow" in decision.trail[-1]


def test_a_kill_leaves_off_as_it_is() -> None:
    assert decided(Mode.OFF, overlay()) == decided(Mode.OFF)


@pytest.mark.parametrize("mode", [Mode.PROD, Mode.SHADOW])
def test_until_overlays_have_been_read_nothing_speculates(mode: Mode) -> None:
    assert decided(mode, read=False).reason == UNREAD
    assert decided(mode, overlay(), read=False).reason == KILLED
    assert decided(Mode.OFF, read=False) == decided(Mode.OFF)


@pytest.mark.parametrize(
    ("scope", "holds"),
    [
        ({"tenant": "t"}, True),
        ({"tenant": "T"}, False),
        ({"model": "m*"}, True),
        ({"model": "n*"}, False),
        ({"backend": "b"}, True),
        ({"tenant": "t", "model": "other"}, False),
    ],
)
def test_a_kill_holds_where_all_its_conditions_do(scope: dict[str, str], holds: bool) -> None:
    assert (decided(Mode.PROD, overlay(**scope)).reason == KILLED) is holds


def test_a_name_that_looks_like_a_pattern_is_still_itself() -> None:
    subject = Subject(tenant="t", model="org/m[v2]", backend="b", rule="r")
    assert Scope(model="org/m[v2]").covers(subject)


def test_an_overlay_ends_when_it_expires_or_is_lifted() -> None:
    assert decided(Mode.PROD, overlay(expires_at=NOON)).action is Action.SPECULATE
    assert decided(Mode.PROD, overlay(expires_at=NOON + 1)).reason == KILLED
    assert decided(Mode.PROD, overlay(lifted_at=NOON - 1)).action is Action.SPECULATE


@pytest.mark.parametrize(
    ("mode", "to", "action"),
    [
        (Mode.PROD, Mode.SHADOW, Action.WOULD_SPECULATE),
        (Mode.PROD, Mode.OFF, Action.PASS),
        (Mode.SHADOW, Mode.OFF, Action.PASS),
        (Mode.SHADOW, Mode.SHADOW, Action.WOULD_SPECULATE),
        (Mode.OFF, Mode.SHADOW, Action.PASS),
    ],
)
def test_a_demotion_lowers_a_rule_and_never_raises_it(mode: Mode, to: Mode, action: Action) -> None:
    decision = decided(mode, overlay("demote", to, rule="chat"))
    assert decision.action is action
    lowered = RANK[to] < RANK[mode]
    assert ("chat: narrowed by the overlay demote to" in " ".join(decision.trail)) is lowered


def test_the_stronger_of_two_demotions_holds() -> None:
    demotions = [overlay("demote", to, rule="chat") for to in (Mode.OFF, Mode.SHADOW)]
    assert decided(Mode.PROD, *demotions).mode is Mode.OFF


def test_a_demotion_speaks_of_its_rule_alone() -> None:
    assert decided(Mode.PROD, overlay("demote", Mode.OFF, rule="other")).mode is Mode.PROD


def test_requests_that_no_rule_matches_are_demoted_by_the_name_default() -> None:
    policy = Policy.model_validate({"version": 1, "defaults": {"mode": "shadow"}})
    standing = Standing(overlays=Overlays((overlay("demote", Mode.OFF, rule="default"),)))
    assert decide(policy, FACTS, ABLE, NOON, standing).mode is Mode.OFF


def test_the_latest_of_two_lookaheads_holds() -> None:
    early = overlay("lookahead", 2, rule="chat", created_at=NOON - 9)
    late = overlay("lookahead", 3, rule="chat", created_at=NOON - 1)
    assert decided(Mode.PROD, late, early).k == 3


@pytest.mark.parametrize(
    ("kind", "value", "scope", "words"),
    [
        ("kill", 3, {}, "a kill has no value"),
        ("kill", None, {"rule": "chat"}, "tenants, models and backends only"),
        ("demote", Mode.OFF, {}, "names the rule"),
        ("demote", Mode.PROD, {"rule": "r"}, "shadow or off"),
        ("demote", None, {"rule": "r"}, "shadow or off"),
        ("lookahead", 0, {"rule": "r"}, "from 1 to 16"),
        ("lookahead", 17, {"rule": "r"}, "from 1 to 16"),
        ("lookahead", True, {"rule": "r"}, "from 1 to 16"),
        ("lookahead", Mode.OFF, {"rule": "r"}, "from 1 to 16"),
    ],
)
def test_kind_scope_and_value_have_to_go_together(
    kind: str, value: Any, scope: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        overlay(kind, value, **scope)


def test_the_switch_and_the_store_kill_together() -> None:
    assert joined(None, (overlay(),)) == Overlays((overlay(),), read=False)
    assert joined((overlay(id="o2"),), (overlay(),)).kills(NOON) == (overlay(), overlay(id="o2"))


def test_every_k_that_a_rule_may_come_to_is_told() -> None:
    known = Overlays((overlay("lookahead", 3, rule="chat"), overlay("lookahead", 9, rule="x"), overlay()))
    assert known.ks(rule(Mode.PROD, lookahead=5)) == {3, 5}
    assert known.ks(rule(Mode.PROD, lookahead=Lookahead(min=4, max=8))) == {4, 8}


MODES = st.sampled_from(list(Mode))
LENGTHS = st.integers(1, MAX_LOOKAHEAD)
LOOKAHEADS = st.one_of(
    LENGTHS, st.tuples(LENGTHS, LENGTHS).map(lambda ends: Lookahead(min=min(ends), max=max(ends)))
)
NAMES = st.sampled_from([None, "t", "m", "b", "chat", "*"])
SCOPES = st.fixed_dictionaries({"tenant": NAMES, "model": NAMES, "backend": NAMES})
TIMES = st.sampled_from([None, NOON - 1, NOON + 1])
KINDS = st.one_of(
    st.just(("kill", None)),
    st.tuples(st.just("demote"), st.sampled_from([Mode.SHADOW, Mode.OFF])),
    st.tuples(st.just("lookahead"), LENGTHS),
)


@st.composite
def overlays(draw: st.DrawFn) -> Overlay:
    kind, value = draw(KINDS)
    names = {} if kind == "kill" else {"rule": draw(st.sampled_from(["chat", "*", "other"]))}
    return overlay(kind, value, expires_at=draw(TIMES), lifted_at=draw(TIMES), **draw(SCOPES), **names)


@given(mode=MODES, lookahead=LOOKAHEADS, known=st.lists(overlays(), max_size=5), read=st.booleans())
def test_overlays_only_take_away(mode: Mode, lookahead: Any, known: list[Overlay], read: bool) -> None:
    plain = decided(mode, lookahead=lookahead)
    decision = decided(mode, *known, read=read, lookahead=lookahead)
    assert RANK[decision.mode] <= RANK[plain.mode]
    if decision.action is Action.SPECULATE:
        assert plain.action is Action.SPECULATE
    if decision.k is not None and plain.k is not None:
        low = lookahead.min if isinstance(lookahead, Lookahead) else 1
        assert low <= decision.k <= plain.k


@given(mode=MODES, known=st.lists(overlays(), max_size=5))
def test_a_kill_beats_every_other_overlay(mode: Mode, known: list[Overlay]) -> None:
    decision = decided(mode, *known, overlay(id="kill"))
    assert decision.action in (Action.PASS, Action.SKIP, Action.BYPASS)
    assert (decision.reason == KILLED) is (decision.mode is not Mode.OFF)


@given(known=st.lists(overlays(), max_size=5))
def test_what_decides_is_a_function_of_its_arguments(known: list[Overlay]) -> None:
    assert decided(Mode.PROD, *known) == decided(Mode.PROD, *known)
