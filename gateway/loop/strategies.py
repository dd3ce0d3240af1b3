"""How a plain server is made to say what it would itself have chosen, with and without a draft.

Whatever the strategy, the answer is the target's own choice at each position. Whether a draft is accepted
is decided from that alone, by the draft runner's one accept rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.errors import BackendError
from gateway.fleet.model import Backend
from gateway.loop.calls import ask_json
from gateway.proxy.json_calls import ids_in
from gateway.proxy.upstream import BackendPool

COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetAsk:
    """What every call of one answer repeats, so that the target chooses as it would for the client's own.

    Attributes:
        model: The model's name, as the client gave it.
        sampling: The request's members that decide how a token is chosen, as they stood in it.
        seed: The request's seed; None without one.
        cache_salt: The request's, so that its prefixes are shared with nobody else's.
    """

    model: str
    sampling: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    cache_salt: str | None = None

    def body(self, prompt: object, **more: Any) -> Mapping[str, Any]:
        """The body of a `/v1/completions` call for `prompt`, which is token ids or a list of such."""
        stated = {"seed": self.seed, "cache_salt": self.cache_salt}
        kept = {name: value for name, value in stated.items() if value is not None}
        return {**self.sampling, **kept, "model": self.model, "prompt": prompt, **more}


@dataclass(frozen=True, slots=True)
class Choices:
    """The target's own choice after the context and after each token of the draft.

    Attributes:
        ids: d + 1 token ids for a draft of d.
        ends: The answer ends with that choice (end-of-sequence).
        silent: The target showed no text for that choice alone: half a character, or a special token.
            Empty where the strategy cannot tell.
    """

    ids: tuple[int, ...]
    ends: tuple[bool, ...]
    silent: tuple[bool, ...] = ()


class Strategy(Protocol):
    """Asks one target, for one answer."""

    async def choices(self, context: Sequence[int], draft: Sequence[int]) -> Choices:
        """What the target chooses after `context + draft[:i]`, for each i from 0 to len(draft).

        Raises:
            BackendError: One of its kinds; the target could not be asked, or did not answer that.
        """
        ...


class Fanout:
    """One call with a prompt for each position; the server shares their common prefix.

    Args:
        pool: Connections.
        backend: The target.
        ask: What its calls repeat.
    """

    def __init__(self, *, pool: BackendPool, backend: Backend, ask: TargetAsk) -> None:
        self._pool = pool
        self._backend = backend
        self._ask = ask

    async def choices(self, context: Sequence[int], draft: Sequence[int]) -> Choices:
        """See Strategy."""
        prompts = [[*context, *draft[:taken]] for taken in range(len(draft) + 1)]
        body = self._ask.body(prompts, max_tokens=1, return_token_ids=True)
        answer = await ask_json(self._pool, self._backend, COMPLETIONS, body)
        in_order = _by_index(answer.get("choices"))
        ids = [ids_in(choice.get("token_ids")) or () for choice in in_order]
        if [len(only) for only in ids] != [1] * len(prompts):
            raise _unusable(self._backend, f"one token id for each of {len(prompts)} prompts")
        return Choices(
            ids=tuple(token for (token,) in ids),
            ends=tuple(choice.get("finish_reason") == "stop" for choice in in_order),
            silent=tuple(choice.get("text") == "" for choice in in_order),
        )


class Scored:
    """One call that says how many of its last prompt tokens are a draft: `vllm_xargs.ace_score`.

    Args:
        pool: Connections.
        backend: The target.
        ask: What its calls repeat.
    """

    def __init__(self, *, pool: BackendPool, backend: Backend, ask: TargetAsk) -> None:
        self._pool = pool
        self._backend = backend
        self._ask = ask

    async def choices(self, context: Sequence[int], draft: Sequence[int]) -> Choices:
        """See Strategy."""
        words = {"ace_score": len(draft)}
        body = self._ask.body([*context, *draft], max_tokens=1, vllm_xargs=words)
        answer = await ask_json(self._pool, self._backend, COMPLETIONS, body)
        match answer.get("ace_score"):
            case {"choices": choices, "ends": list(ends)} if all(isinstance(end, bool) for end in ends):
                ids = ids_in(choices) or ()
                if len(ids) == len(ends) == len(draft) + 1:
                    return Choices(ids=ids, ends=tuple(ends))
        raise _unusable(self._backend, f"`ace_score` with {len(draft) + 1} choices and ends")


class StrategyMaker(Protocol):
    """Makes a strategy for one answer."""

    def __call__(self, *, pool: BackendPool, backend: Backend, ask: TargetAsk) -> Strategy:
        """Ask `backend` over `pool`, each time with what `ask` says."""
        ...


STRATEGIES: Mapping[str, StrategyMaker] = {"fanout": Fanout, "scored": Scored}
"""By the word that decisions and records use."""

LONGEST_CONTEXT: Mapping[str, int] = {"fanout": 2048, "scored": 32_768}
"""Tokens of prompt and answer up to which a strategy is used; then the answer goes on plainly.

Servers share prefixes in whole blocks only, so that each of fanout's prompts computes part of its context
again. What a server keeps for scoring, and what a draft runner takes, is bounded too.
"""


def _by_index(choices: object) -> list[Mapping[str, Any]]:
    """The choices in the order of their prompts; empty unless they are numbered 0, 1, 2 and so on."""
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        return []
    numbered = {choice["index"]: choice for choice in choices if type(choice.get("index")) is int}
    in_order = [numbered[index] for index in range(len(choices)) if index in numbered]
    return in_order if len(in_order) == len(choices) else []


def _unusable(backend: Backend, expected: str) -> BackendError:
    return BackendError(f"Backend {backend.name!r} answered a verification call without {expected}.")
