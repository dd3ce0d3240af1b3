"""What the loop needs of a client's request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.evidence.prompts import NoPromptIds, Prompt, read_prompt
from gateway.loop.errors import GoPlain, WhyPlain
from gateway.loop.strategies import TargetAsk
from gateway.proxy.intake import InferenceRequest
from gateway.proxy.json_text import read_json

SAMPLING = ("temperature", "top_p", "top_k")
"""Request fields that decide how one token is chosen, and are sent with every call."""

COMPLETION_TOKENS = 16
"""How long a completion may be that does not say (vLLM's and OpenAI's default)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRequest:
    """A request whose answer is written here.

    Attributes:
        chat: Answered in the shape of chat completions, and not of completions.
        max_tokens: Most tokens of the answer; None for as many as the context holds.
        stop: Texts that end the answer and are not part of it.
        wants_usage: A stream ends with a usage chunk.
    """

    request_id: str
    chat: bool
    prompt: Prompt
    ask: TargetAsk
    max_tokens: int | None
    stop: tuple[str, ...] = field(repr=False)
    stream: bool
    wants_usage: bool


def read_loop_request(request: InferenceRequest) -> LoopRequest:
    """Read a request whose fields the policy has allowed.

    What the loop itself obeys is read strictly: a value that the backend would refuse is for it to refuse.

    Raises:
        GoPlain: The request is not one that the loop can serve as the backend would.
    """
    body: Mapping[str, Any] = read_json(request.body)  # type: ignore[assignment] # intake took only objects
    chat = request.facts.endpoint == "chat"
    stream = bool(_stated(body, "stream", bool))
    options = _stated(body, "stream_options", dict) or {}
    if options and not stream:
        raise _left_to_the_backend("stream_options without a stream")
    return LoopRequest(
        request_id=request.facts.request_id,
        chat=chat,
        prompt=_prompt(request.facts.endpoint, body),
        ask=TargetAsk(
            model=request.facts.model,
            sampling={name: body[name] for name in SAMPLING if name in body},
            seed=_stated(body, "seed", int),
            cache_salt=_stated(body, "cache_salt", str),
        ),
        max_tokens=_max_tokens(chat, body),
        stop=_stop(body.get("stop")),
        stream=stream,
        wants_usage=bool(_stated(options, "include_usage", bool)),
    )


def _prompt(endpoint: str, body: Mapping[str, Any]) -> Prompt:
    try:
        return read_prompt(endpoint, body)
    except NoPromptIds:
        raise _left_to_the_backend("a prompt that is not one text") from None


def _max_tokens(chat: bool, body: Mapping[str, Any]) -> int | None:
    stated: int | None = _stated(body, "max_completion_tokens", int) if chat else None
    if stated is None:
        stated = _stated(body, "max_tokens", int)
    if stated is None:
        return None if chat else COMPLETION_TOKENS
    if stated < 1:
        raise _left_to_the_backend("max_tokens below 1")
    return stated


def _stop(stated: object) -> tuple[str, ...]:
    stops = [stated] if isinstance(stated, str) else stated or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise _left_to_the_backend("a stop that is neither a text nor a list of texts")
    return tuple(stops)


def _stated(body: Mapping[str, Any], name: str, kind: type) -> Any:
    """The value, which is of `kind`; None for null and for nothing."""
    value = body.get(name)
    if value is not None and type(value) is not kind:
        raise _left_to_the_backend(f"a {name} that is no {kind.__name__}")
    return value


def _left_to_the_backend(what: str) -> GoPlain:
    return GoPlain(WhyPlain.EXECUTOR_FAILED, f"the request has {what}, which its backend is to judge")
