"""decide(): what is to happen to one request at one backend. Pure, so a logged decision can be replayed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.fleet.model import Backend
from gateway.policy.fields import why_bypassed
from gateway.policy.model import Action, Control, Decision, Facts, Mode, Policy, Rule
from probes.model import Capability, Support

EXECUTORS: Mapping[str, Capability] = {"in_engine": Capability.IN_ENGINE}
"""Ways to carry out prod, best first, and the capability that each needs."""

_DRAFTERS: Mapping[str, str | None] = {
    "auto": "ngram",
    "none": None,
    "ngram": "ngram",
    "suffix": "suffix",
    "draft_model": "draft_model",
}
"""What a rule's `draft` comes to. `auto` is the first that exists for the target of: a verified head, the
model's own MTP layers, n-gram. Only the last is built."""


def decide(policy: Policy, facts: Facts, backend: Backend, at: float) -> Decision:
    """What `policy` says about a request with these `facts`, should it go to `backend` at Unix time `at`.

    The first rule that matches decides. The decision's trail has one line for each rule up to that one.
    """
    if facts.endpoint == "other":
        line = "default: no rule is asked, policies speak for chat and completions only"
        return Decision(mode=Mode.OFF, action=Action.PASS, rule="default", trail=(line,))
    trail: list[str] = []
    for rule in policy.rules:
        if reason := rule.match.why_not(facts):
            trail.append(f"{rule.name}: {reason}")
        else:
            return _apply(rule, facts, backend, at, trail)
    return _apply(policy.fallback, facts, backend, at, trail)


def in_control_block(backend_name: str, model: str, at: float, control: Control) -> bool:
    """Whether the randomised block that holds `at` serves this backend and model plainly."""
    return _draw("control", backend_name, model, str(int(at // control.block))) < control.fraction


def drafter_for(draft: str) -> str | None:
    """The drafter that a rule's `draft` comes to; None opts out."""
    return _DRAFTERS[draft]


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What a mode makes of a request; `why` is the reason as a sentence, for the trail."""

    action: Action
    reason: str | None = None
    why: str = ""
    executor: str | None = None


def _apply(rule: Rule, facts: Facts, backend: Backend, at: float, trail: list[str]) -> Decision:
    verdict = _MODES[rule.mode](rule, facts, backend, at)
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
        drafter=drafter,
        executor=verdict.executor,
        k=rule.k if drafter else None,
        max_tokens_per_minute=_budget(rule),
        trail=(*trail, line),
    )


def _budget(rule: Rule) -> int | None:
    budget = rule.shadow.max_tokens_per_minute
    return budget if rule.mode is Mode.SHADOW and budget != "unlimited" else None


def _off(rule: Rule, facts: Facts, backend: Backend, at: float) -> _Verdict:  # noqa: ARG001 - one shape
    return _Verdict(Action.PASS)


def _shadow(rule: Rule, facts: Facts, backend: Backend, at: float) -> _Verdict:  # noqa: ARG001 - one shape
    if drafter_for(rule.draft) is None:
        return _Verdict(Action.SKIP, "no_drafter", "the rule says `draft: none`")
    if _draw("sample", rule.name, facts.request_id) >= rule.shadow.sample:
        return _Verdict(Action.SKIP, "not_sampled", f"sample is {rule.shadow.sample:g}")
    return _Verdict(Action.WOULD_SPECULATE)


def _prod(rule: Rule, facts: Facts, backend: Backend, at: float) -> _Verdict:
    # With one executor to choose from, its table and its capability can be asked one after the other.
    executor = next(name for name in EXECUTORS if rule.prod.executor in ("auto", name))
    if bypassed := why_bypassed(executor, facts.fields):
        field, reason = bypassed
        return _Verdict(Action.BYPASS, reason, f"{executor} does not speculate a request with {field!r}")
    drafter = drafter_for(rule.draft)
    if drafter is None:
        return _Verdict(Action.BYPASS, "no_drafter", "the rule says `draft: none`")
    if _draw("share", rule.name, facts.request_id) >= rule.prod.share:
        return _Verdict(Action.BYPASS, "outside_share", f"share is {rule.prod.share:g}")
    if (answer := backend.supports(EXECUTORS[executor])) is not Support.YES:
        why = f"{executor} needs the finding {EXECUTORS[executor]}, which is {answer} for {backend.name!r}"
        return _Verdict(Action.BYPASS, "no_executor", why)
    if drafter not in backend.engine_drafters:
        there = ", ".join(backend.engine_drafters) or "none"
        why = f"{executor} needs the drafter {drafter}, and {backend.name!r} has {there}"
        return _Verdict(Action.BYPASS, "no_executor", why)
    if in_control_block(backend.name, facts.model, at, rule.prod.control):
        why = f"a block of {rule.prod.control.block:g} s served plainly, for comparison"
        return _Verdict(Action.CONTROL, "control_block", why, executor)
    return _Verdict(Action.SPECULATE, executor=executor)


_MODES: Mapping[Mode, Callable[[Rule, Facts, Backend, float], _Verdict]] = {
    Mode.OFF: _off,
    Mode.SHADOW: _shadow,
    Mode.PROD: _prod,
}


def _draw(*words: str) -> float:
    """A number in [0, 1) that these words always give; the first keeps draws for different purposes apart."""
    digest = hashlib.blake2b("\0".join(words).encode(errors="surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / 2**53
