"""Runs a suite of questions against a URL, under a time limit and a token limit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from probes import embedded, openai
from probes.model import Capability, Finding, Support
from probes.question import MAX_SUITE_TOKENS, Meter, OverBudget, Question, Target, unknown
from probes.wire import NoAnswer, Reply, Wire

SUITES: Mapping[str, tuple[Question, ...]] = {
    "openai": openai.SUITE,
    "embedded": embedded.SUITE,
}
"""Every kind of server, and what it is asked."""

AUTO = "auto"
QUESTION_LIMIT_S = 15.0
"""No question may use up the others' time: it has so long, or its share of what is left if that is more."""

_MODELS_PATH = "/v1/models"
_UNAUTHORISED = frozenset({401, 403})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What a suite found out.

    Attributes:
        kind: What the server is taken for, a key of SUITES.
        up: Whether it can serve, and is what it was declared to be.
        reason: Why not; empty when up.
        models: The models that it lists.
        findings: One answer per question that was reached, in order.
    """

    kind: str
    up: bool
    reason: str
    models: tuple[str, ...]
    findings: tuple[Finding, ...]


async def probe(
    url: str,
    *,
    kind: str,
    headers: Mapping[str, str],
    time_limit_s: float,
    transport: httpx.AsyncBaseTransport | None = None,
) -> ProbeResult:
    """Ask the server at `url` every question of a suite. Never raises for what the server does.

    Args:
        url: Base URL without `/v1`.
        kind: A key of SUITES, or `auto` to find out.
        headers: Sent with every call, the server's own credential among them; never shown.
        time_limit_s: Questions that are not answered by then are unknown.
        transport: How connections are made; None for the plain way.

    Raises:
        ValueError: The kind is not known.
    """
    if kind not in (AUTO, *SUITES):
        raise ValueError(f"The kind {kind!r} is not known. Allowed: {', '.join((AUTO, *SUITES))}.")
    deadline = asyncio.get_running_loop().time() + time_limit_s
    async with httpx.AsyncClient(
        base_url=url,
        # A kept connection that the server closes just then would look like a server that fails.
        headers={**headers, "connection": "close"},
        timeout=time_limit_s,
        transport=transport,
        trust_env=False,
    ) as client:
        wire = Wire(client, headers)
        try:
            async with asyncio.timeout_at(deadline):
                found = await _identify(wire, kind)
        except TimeoutError:
            reason = f"GET {_MODELS_PATH} was not answered within {time_limit_s:g} s"
            return _down(kind, _Unusable(reason, Support.UNKNOWN))
        except _Unusable as unusable:
            return _down(kind, unusable)
        return await _examine(wire, kind, found, deadline)


@dataclass(frozen=True, slots=True)
class _Identity:
    """What a server shows of itself before any question is asked."""

    models: tuple[str, ...]
    card: Mapping[str, Any]
    why_not_embedded: str | None


class _Unusable(Exception):
    """No question can be asked; the message says why, `support` whether it lists models at all."""

    def __init__(self, reason: str, support: Support) -> None:
        super().__init__(reason)
        self.support = support


async def _identify(wire: Wire, kind: str) -> _Identity:
    try:
        cards = _cards(await wire.get(_MODELS_PATH))
    except NoAnswer as nothing:
        raise _Unusable(f"GET {nothing}", Support.UNKNOWN) from None
    models, card = tuple(cards), next(iter(cards.values()))
    if kind == "openai":
        return _Identity(models, card, "it was declared openai")
    try:
        return _Identity(models, card, embedded.why_not_embedded(card, await wire.get("/version")))
    except NoAnswer as nothing:
        return _Identity(models, card, f"GET {nothing}")


def _cards(reply: Reply) -> dict[str, Mapping[str, Any]]:
    """The list of models, by id; at least one."""
    if reply.status in _UNAUTHORISED:
        hint = "it wants a credential, or refuses the one it was sent; give its own as env:NAME or file:PATH"
        raise _Unusable(f"{hint}. GET {reply.evidence}", Support.UNKNOWN)
    if reply.status == 429 or (reply.status >= 500 and not reply.refused):
        raise _Unusable(f"it does not serve now. GET {reply.evidence}", Support.UNKNOWN)
    data = reply.dig("data")
    if not reply.ok or not isinstance(data, list):
        seen = f"{reply.content_type or 'no content type'}. GET {reply.evidence}"
        raise _Unusable(f"it is no OpenAI-compatible server: not a list of models, but {seen}", Support.NO)
    cards: dict[str, Mapping[str, Any]] = {
        card["id"]: card for card in data if isinstance(card, dict) and isinstance(card.get("id"), str)
    }
    if not cards:
        raise _Unusable(f"it lists no models. GET {reply.evidence}", Support.NO)
    return cards


async def _examine(wire: Wire, kind: str, found: _Identity, deadline: float) -> ProbeResult:
    target = Target(wire, found.models[0], found.card, found.models, Meter(MAX_SUITE_TOKENS))
    reason, suite = "", SUITES["openai" if found.why_not_embedded else "embedded"]
    if kind == "embedded" and found.why_not_embedded:
        reason = f"it was declared embedded and looks like kind openai: {found.why_not_embedded}"
        # Who it is was asked, and no more: nothing is generated on a server taken for another.
        suite = suite[:1]
    return ProbeResult(
        kind="openai" if found.why_not_embedded else "embedded",
        up=not reason,
        reason=reason,
        models=found.models,
        findings=await _answers(suite, target, deadline),
    )


async def _answers(suite: Sequence[Question], target: Target, deadline: float) -> tuple[Finding, ...]:
    loop = asyncio.get_running_loop()
    findings: list[Finding] = []
    for place, question in enumerate(suite):
        now = loop.time()
        share = (deadline - now) / (len(suite) - place)
        findings.append(await _answer(question, target, min(deadline, now + max(share, QUESTION_LIMIT_S))))
    return tuple(findings)


async def _answer(question: Question, target: Target, deadline: float) -> Finding:
    try:
        target.meter.allow(question.tokens)
        async with asyncio.timeout_at(deadline):
            return await question.ask(target)
    except TimeoutError:
        return unknown(question.capability, "not answered within the time limit")
    except (NoAnswer, OverBudget) as nothing:
        return unknown(question.capability, str(nothing))


def _down(kind: str, unusable: _Unusable) -> ProbeResult:
    evidence = str(unusable)
    finding = Finding(capability=Capability.MODELS, support=unusable.support, evidence=evidence)
    return ProbeResult(
        kind="openai" if kind == AUTO else kind, up=False, reason=evidence, models=(), findings=(finding,)
    )
