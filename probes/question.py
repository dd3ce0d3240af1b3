"""A question with its declared cost, and the model that it is put to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from probes.model import Capability, Finding, Support
from probes.wire import Reply, Wire

MAX_SUITE_TOKENS = 96
"""Most tokens that a server may be made to generate by one run of a suite."""

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "Count from one to twenty, in words."}]
TEXT = "one two three four five six"


class OverBudget(Exception):
    """A call would make the server generate more than was declared; nothing was sent."""


class Meter:
    """Counts the tokens that a server is made to generate, and refuses more than were declared."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._allowance = 0

    def allow(self, tokens: int) -> None:
        """Open the next question's allowance.

        Raises:
            OverBudget: What is left of the suite's tokens does not cover it.
        """
        if tokens > self._left:
            raise OverBudget(f"not asked: it may cost {tokens} tokens, and {self._left} are left")
        self._allowance = tokens

    def check(self, tokens: int) -> None:
        """Refuse a call that asks for more than is allowed.

        Raises:
            OverBudget: The question declared less.
        """
        if tokens > self._allowance:
            raise OverBudget(
                f"not asked: {tokens} tokens are more than the {self._allowance} declared for it"
            )

    def spend(self, tokens: int) -> None:
        """Count what a call has cost."""
        self._allowance -= tokens
        self._left -= tokens


@dataclass(frozen=True, slots=True)
class Target:
    """The model that questions are put to.

    Attributes:
        wire: The server.
        model: The model's id there.
        card: Its entry in the list of models.
        listed: Every id in that list.
    """

    wire: Wire
    model: str
    card: Mapping[str, Any]
    listed: tuple[str, ...]
    meter: Meter = field(repr=False)

    async def chat(self, max_tokens: int, **fields: Any) -> Reply:
        """Have a chat answered, greedily."""
        return await self._generate(
            CHAT, max_tokens, {"messages": MESSAGES, "max_tokens": max_tokens, **fields}
        )

    async def complete(self, prompt: str | list[Any], max_tokens: int, **fields: Any) -> Reply:
        """Have a prompt, or a list of prompts, completed, greedily. A list of ids is one prompt."""
        several = isinstance(prompt, list) and not all(isinstance(part, int) for part in prompt)
        cost = max_tokens * (len(prompt) if several else 1)
        return await self._generate(COMPLETIONS, cost, {"prompt": prompt, "max_tokens": max_tokens, **fields})

    async def chat_or_complete(
        self, max_tokens: int, *, chat: Mapping[str, Any], complete: Mapping[str, Any]
    ) -> Reply:
        """Ask on the chat route and, where that is refused, on the completions route.

        Some models have no chat template and some servers no completions; neither is what is asked about.
        """
        reply = await self.chat(max_tokens, **chat)
        if not reply.refused:
            return reply
        second = await self.complete(TEXT, max_tokens, **complete)
        return second if second.ok else reply

    async def tokenize(self, **fields: Any) -> Reply:
        """Ask for token ids, in vLLM's shape."""
        return await self.wire.post("/tokenize", {"model": self.model, **fields})

    async def detokenize(self, ids: list[int]) -> Reply:
        """Ask for the text of token ids, in vLLM's shape."""
        return await self.wire.post("/detokenize", {"model": self.model, "tokens": ids})

    async def _generate(self, path: str, cost: int, fields: Mapping[str, Any]) -> Reply:
        self.meter.check(cost)
        reply = await self.wire.post(path, {"model": self.model, "temperature": 0, **fields})
        if not reply.refused:
            counted = reply.dig("usage", "completion_tokens")
            self.meter.spend(max(cost, counted) if isinstance(counted, int) else cost)
        return reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One line of a suite.

    Attributes:
        capability: What is asked.
        tokens: Most tokens that asking makes the server generate.
        ask: Puts it to a model. May raise NoAnswer or OverBudget, which the suite takes as unknown.
    """

    capability: Capability
    tokens: int
    ask: Callable[[Target], Awaitable[Finding]]


def yes(capability: Capability, evidence: str, value: int | str | list[str] | None = None) -> Finding:
    """The server can, and this shows it."""
    return Finding(capability=capability, support=Support.YES, evidence=evidence, value=value)


def no(capability: Capability, evidence: str) -> Finding:
    """The server answered, and what it answered shows that it cannot."""
    return Finding(capability=capability, support=Support.NO, evidence=evidence)


def unknown(capability: Capability, evidence: str) -> Finding:
    """Nothing was learnt, and this is why."""
    return Finding(capability=capability, support=Support.UNKNOWN, evidence=evidence)


def without_success(capability: Capability, reply: Reply) -> Finding:
    """What an answer that is not a success says: no if it is a refusal, otherwise nothing."""
    return no(capability, reply.evidence) if reply.refused else unknown(capability, reply.evidence)
