"""Words of the draft side: what a drafter is, and what a verification step leaves behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

MAX_LOOKAHEAD = 16
"""Most draft tokens that one step may verify (the policy schema allows 1 to this)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The habits of the engine that a drafter or a replay stands for.

    Attributes:
        name: What records show.
        tie: Which of several equally long matches is copied from.
        min_n: Shortest suffix, in tokens, that n-gram lookup may match.
        max_n: Longest suffix, in tokens, that n-gram lookup tries first.
        pad_to_k: Whether the engine fills unused draft slots up to K (and verifies them).
    """

    name: str
    tie: Literal["earliest", "latest"]
    min_n: int
    max_n: int
    pad_to_k: bool


class DraftSession(Protocol):
    """One answer's drafter state. The context is the prompt plus every token extended so far."""

    def propose(self, k: int) -> list[int]:
        """Return at most `k` token ids that may follow the context; an empty list is a normal answer.

        Promises: depends on the context alone, and `propose(j) == propose(k)[:j]` for every
        `j <= k`, which is what lets one replay pass answer for every K at once.
        """
        ...

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens that the target has emitted."""
        ...


class Drafter(Protocol):
    """Whatever proposes tokens. Stateless itself: every answer gets a session of its own."""

    @property
    def name(self) -> str:
        """The policy's word for it."""
        ...

    def open(self, prompt: Sequence[int]) -> DraftSession:
        """Start drafting after `prompt` (token ids of the target)."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One decode forward of the target.

    Attributes:
        drafted: Draft tokens verified by this forward; 0 for a plain pass.
        accepted: Draft tokens that were emitted; never the correction or bonus token.
        tokens: Everything emitted, in order; empty never.
    """

    drafted: int
    accepted: int
    tokens: tuple[int, ...]
