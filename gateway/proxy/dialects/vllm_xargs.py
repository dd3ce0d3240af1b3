"""The `in_engine` contract: `vllm_xargs: {"ace_mode": ..., "ace_k": ...}`, `ace_drafter`, `ace_tenant`.

`ace_plain` comes in a call of its own, and speaks of requests under way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from gateway.policy.model import Action, Decision
from gateway.proxy.dialects.model import Spelling
from gateway.proxy.intake import InferenceRequest
from gateway.proxy.json_calls import json_call
from gateway.proxy.json_text import insert_members, members, replace_members
from gateway.proxy.upstream import Call

EXECUTOR = "in_engine"
_UNSAID = "ngram"
"""The drafter of an engine that is told of none."""
_LEARNING = frozenset({"suffix"})
"""Drafters that copy from a tenant's earlier answers. To no other is a tenant told."""
_XARGS = "vllm_xargs"
_OURS = "ace_"
_STREAM = "stream_options"
_USAGE_AT_THE_END = {"include_usage": b"true", "continuous_usage_stats": b"false"}


def spell(request: InferenceRequest, decision: Decision) -> Spelling:
    """Say what was decided. A client's own `ace_*` never reaches the engine.

    Control says `off` aloud, because a server may have another default, and asks for the same numbers as
    speculation does. That of an executor which drives the engine from outside asks for the numbers alone.
    """
    said = _words(decision, request.facts.tenant)
    given = request.editable.get(_XARGS)
    if not (given is None or isinstance(given, dict)):
        return Spelling(body=request.body)  # for the engine to refuse
    changes: dict[str, bytes] = {}
    if said is not None or any(name.startswith(_OURS) for name in given or ()):
        changes[_XARGS] = _xargs(request, said or {})
    asks = decision.executor is not None and _has_to_ask_for_usage(request)
    if asks:
        changes[_STREAM] = _stream_options(request)
    if not changes:
        return Spelling(body=request.body)
    return Spelling(body=_changed(request, changes), edited=said is not None or asks, hides_usage=asks)


def plain_call(model: str, request_ids: Sequence[str]) -> Call:
    """A call that has the engine draft no more for requests under way, known by their `x-request-id`.

    It asks for one token, plainly, since a contract of request fields has no other way to say something.
    """
    said = {"ace_mode": "off", "ace_plain": list(request_ids)}
    asked = {"model": model, "prompt": ".", "max_tokens": 1, "temperature": 0, _XARGS: said}
    return json_call("/v1/completions", asked)


def _words(decision: Decision, tenant: str) -> Mapping[str, object] | None:
    if decision.executor == EXECUTOR and decision.action is Action.SPECULATE:
        return {"ace_mode": "prod", "ace_k": decision.k, **_drafter_words(decision.drafter, tenant)}
    if decision.executor == EXECUTOR and decision.action is Action.CONTROL:
        return {"ace_mode": "off"}
    return None


def _drafter_words(drafter: str | None, tenant: str) -> Mapping[str, object]:
    named = {} if drafter in (None, _UNSAID) else {"ace_drafter": drafter}
    return {**named, "ace_tenant": tenant} if drafter in _LEARNING else named


def _xargs(request: InferenceRequest, said: Mapping[str, object]) -> bytes:
    """The client's own engine arguments, as written, and ours."""
    given = _value(request, _XARGS)
    kept = [given[m.start : m.end] for m in members(given) if not m.name.startswith(_OURS)]
    ours = [orjson.dumps(name) + b":" + orjson.dumps(value) for name, value in said.items()]
    return b"{" + b",".join([*kept, *ours]) + b"}"


def _has_to_ask_for_usage(request: InferenceRequest) -> bool:
    options = request.editable.get(_STREAM)
    if not request.facts.stream or not (options is None or isinstance(options, dict)):
        return False
    return not (options or {}).get("include_usage")


def _stream_options(request: InferenceRequest) -> bytes:
    """Usage once, at the end: on every chunk it would be seen by a client that asked for none."""
    given = request.editable.get(_STREAM)
    if not isinstance(given, dict):
        return b'{"include_usage":true}'
    text = _value(request, _STREAM)
    stated = {name: value for name, value in _USAGE_AT_THE_END.items() if name in given}
    missing = {} if "include_usage" in given else {"include_usage": b"true"}
    return insert_members(replace_members(text, stated), missing)


def _value(request: InferenceRequest, name: str) -> bytes:
    """The member's value as written; nothing when the body has none. Of duplicates the last counts."""
    if name not in request.editable:
        return b""
    return [request.body[m.value : m.end] for m in members(request.body) if m.name == name][-1]


def _changed(request: InferenceRequest, changes: Mapping[str, bytes]) -> bytes:
    there = {name: value for name, value in changes.items() if name in request.editable}
    new = {name: value for name, value in changes.items() if name not in request.editable}
    return insert_members(replace_members(request.body, there) if there else request.body, new)
