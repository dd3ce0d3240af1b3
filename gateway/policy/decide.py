"""decide(): what is to happen to one request at one backend. Pure, so a logged decision can be replayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gateway.fleet.model import Backend
from gateway.policy.allowed import why_bypassed
from gateway.policy.blocks import in_control_block
from gateway.policy.draws import draw
from gateway.policy.gate import LoopCase, Obstacle, why_not_driven
from gateway.policy.model import Action, Control, Decision, Facts, Mode, Policy, Rule
from gateway.policy.overlays import Stop, Subject
from gateway.policy.standing import Standing
from gateway.policy.ways import Way, ways_of

_DRAFTERS: Mapping[str, str | None] = {
    "auto": "ngram",
    "none": None,
    "ngram": "ngram",
    "suffix": "suffix",
    "draft_model": "draft_model",
}
"""What a rule's `draft` comes to. `auto` is the first that exists for the target of: a verified head, the
model's own MTP layers, n-gram. Only the last is built."""


NOTHING_KNOWN = Standing()


def decide(
    policy: Policy, facts: Facts, backend: Backend, at: float, standing: Standing = NOTHING_KNOWN
) -> Decision:
    """What `policy` says about a request with these `facts`, should it go to `backend` at Unix time `at`.

    The first rule that matches decides. The decision's trail has one line for each rule up to that one.

    Args:
        policy: The policy in force.
        facts: What it may see of the request.
        backend: With its findings.
        at: Unix time.
        standing: What else is known of the backend at that moment, and what operators have taken away.
    """
    if facts.endpoint == "other":
        line = "default: no rule is asked, policies speak for chat and completions only"
        return Decision(mode=Mode.OFF, action=Action.PASS, rule="default", trail=(line,))
    trail: list[str] = []
    for rule in policy.rules:
        if reason := rule.match.why_not(facts):
            trail.append(f"{rule.name}: {reason}")
        else:
            return _apply(_narrowed(_Case(rule, facts, backend, at, standing), trail), trail)
    return _apply(_narrowed(_Case(policy.fallback, facts, backend, at, standing), trail), trail)


def drafter_for(draft: str) -> str | None:
    """The drafter that a rule's `draft` comes to; None opts out."""
    return _DRAFTERS[draft]


@dataclass(frozen=True, slots=True)
class _Case:
    """A rule, and what it is applied to."""

    rule: Rule
    facts: Facts
    backend: Backend
    at: float
    standing: Standing

    @property
    def subject(self) -> Subject:
        """What overlays may speak of."""
        return Subject.of(self.facts, self.backend.name, self.rule.name)

    @property
    def stop(self) -> Stop | None:
        """What stops the request from being speculated or replayed."""
        return self.standing.overlays.stop(self.subject, self.at)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What a mode makes of a request; `why` is the reason as a sentence, for the trail."""

    action: Action
    reason: str | None = None
    why: str = ""
    way: Way | None = None


def _narrowed(case: _Case, trail: list[str]) -> _Case:
    """The case with its rule as overlays leave it."""
    rule, changed_by = case.standing.overlays.narrowed(case.rule, case.subject, case.at)
    trail += (f"{rule.name}: narrowed by the overlay {overlay}" for overlay in changed_by)
    return replace(case, rule=rule) if changed_by else case


def _apply(case: _Case, trail: list[str]) -> Decision:
    rule = case.rule
    verdict = _MODES[rule.mode](case)
    line = f"{rule.name}: applies, mode {rule.mode}, {verdict.action}"
    if verdict.reason:
        line += f" ({verdict.reason}): {verdict.why}"
    speculates = rule.mode is not Mode.OFF
    drafter = drafter_for(rule.draft) if speculates else None
    return Decision(
        mode=rule.mode,
        action=verdict.action,
        rule=rule.name,
        reason=verdict.reason,
        detail=verdict.why or None,
        drafter=drafter,
        executor=verdict.way.executor if verdict.way else None,
        strategy=verdict.way.strategy if verdict.way else None,
        k=rule.k if drafter else None,
        control=rule.prod.control if verdict.way else None,
        max_tokens_per_minute=_budget(rule),
        compare=_compared(rule, drafter),
        trail=(*trail, line),
    )


def _budget(rule: Rule) -> int | None:
    budget = rule.shadow.max_tokens_per_minute
    return budget if rule.mode is Mode.SHADOW and budget != "unlimited" else None


def _compared(rule: Rule, drafter: str | None) -> tuple[str, ...]:
    if rule.mode is not Mode.SHADOW:
        return ()
    return tuple(dict.fromkeys(other for other in rule.shadow.compare if other != drafter))


def _off(case: _Case) -> _Verdict:  # noqa: ARG001 - one shape
    return _Verdict(Action.PASS)


def _shadow(case: _Case) -> _Verdict:
    rule = case.rule
    if stop := case.stop:
        return _Verdict(Action.SKIP, stop.reason, stop.why)
    if drafter_for(rule.draft) is None:
        return _Verdict(Action.SKIP, "no_drafter", "the rule says `draft: none`")
    if draw("sample", rule.name, case.facts.request_id) >= rule.shadow.sample:
        return _Verdict(Action.SKIP, "not_sampled", f"sample is {rule.shadow.sample:g}")
    return _Verdict(Action.WOULD_SPECULATE)


def _prod(case: _Case) -> _Verdict:
    if stop := case.stop:
        return _Verdict(Action.BYPASS, stop.reason, stop.why)
    # What an executor refuses, those after it refuse too (a contract test), so the first that is possible
    # is the only one to ask.
    ways = ways_of(case.rule.prod.executor)
    drafter = drafter_for(case.rule.draft)
    why_not = {way: way.why_not(case.backend, drafter) for way in ways}
    way = next((way for way in ways if why_not[way] is None), ways[0])
    if obstacle := _obstacle(case, way, "; ".join(filter(None, why_not.values()))):
        return _Verdict(Action.BYPASS, obstacle.reason, obstacle.why)
    control = case.rule.prod.control
    if why := _why_control(case, control):
        return _Verdict(Action.CONTROL, why.reason, why.why, way)
    return _Verdict(Action.SPECULATE, way=way)


def _why_control(case: _Case, control: Control) -> Obstacle | None:
    """Why a request that could be speculated is served plainly, for comparison; None when it is not."""
    if control.replica is not None:
        if case.backend.name != control.replica:
            return None
        return Obstacle("control_replica", "this backend is the rule's control, served plainly")
    if not in_control_block(case.backend.name, case.facts.model, case.at, control):
        return None
    return Obstacle("control_block", f"a block of {control.block:g} s served plainly, for comparison")


def _obstacle(case: _Case, way: Way, why_no_way: str) -> Obstacle | None:
    """The first thing that speaks against speculating the request this way."""
    rule, backend = case.rule, case.backend
    if bypassed := why_bypassed(way.executor, backend.engine, case.facts.fields):
        field, reason = bypassed
        return Obstacle(reason, f"{way.executor} does not speculate a request with {field!r}")
    drafter = drafter_for(rule.draft)
    if drafter is None:
        return Obstacle("no_drafter", "the rule says `draft: none`")
    if draw("share", rule.name, case.facts.request_id) >= rule.prod.share:
        return Obstacle("outside_share", f"share is {rule.prod.share:g}")
    if way.why_not(backend, drafter):
        return Obstacle("no_executor", why_no_way)
    if way.strategy is None:
        return None
    return why_not_driven(
        LoopCase(
            facts=case.facts,
            backend=backend,
            strategy=way.strategy,
            drafter=drafter,
            k=rule.k,
            guardrails=rule.guardrails,
            at=case.at,
            standing=case.standing,
        )
    )


_MODES: Mapping[Mode, Callable[[_Case], _Verdict]] = {
    Mode.OFF: _off,
    Mode.SHADOW: _shadow,
    Mode.PROD: _prod,
}
