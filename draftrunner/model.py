"""Words of the draft side: what a drafter is, and what a verification step leaves behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

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
        clips_at_end: Whether it drafts no token that the answer's token limit leaves no room for.
        max_tree_depth: Longest match of suffix decoding, in tokens, the first that follows included.
        max_spec_factor: Most tokens that suffix decoding drafts per token matched.
        min_token_prob: How likely, by its counts, suffix decoding's draft up to a token has to be.
    """

    name: str
    tie: Literal["earliest", "latest"]
    min_n: int
    max_n: int
    pad_to_k: bool
    clips_at_end: bool = False
    max_tree_depth: int = 24
    max_spec_factor: float = 1.0
    min_token_prob: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Whose answer is drafted for, and when.

    Attributes:
        tenant: A drafter may copy from earlier answers of the same tenant only.
        as_of: Unix time at which the request began; what was learnt later does not exist for it.
            None for a request that begins now.
    """

    tenant: str = ""
    as_of: float | None = None


NOBODY = Origin()
"""For answers whose tenant does not matter: nothing is ever learnt for it."""


class DraftSession(Protocol):
    """One answer's drafter state. The context is the prompt plus every token extended so far."""

    def propose(self, k: int) -> list[int]:
        """Return at most `k` token ids that may follow the context; an empty list is a normal answer.

        Promises: depends on the context, on what had been learnt when the session was opened, and, unless
        the drafter is `consistent`, on `k`; on nothing else.
        """
        ...

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens that the target has emitted."""
        ...

    def close(self) -> None:
        """Give back what the session holds; it is not used afterwards."""
        ...


class Drafter(Protocol):
    """Whatever proposes tokens. Every answer gets a session of its own."""

    @property
    def name(self) -> str:
        """The policy's word for it."""
        ...

    @property
    def consistent(self) -> bool:
        """Whether `propose(j) == propose(k)[:j]` for every `j <= k`: one replay pass answers for every K."""
        ...

    def open(self, prompt: Sequence[int], origin: Origin = NOBODY) -> DraftSession:
        """Start drafting after `prompt` (token ids of the target)."""
        ...

    def learn(self, answer: Sequence[int], origin: Origin) -> None:
        """A finished answer, for the drafters that copy from earlier ones; the others forget it at once."""
        ...


@runtime_checkable
class TeacherForced(Drafter, Protocol):
    """A drafter whose token at every position of a finished answer takes one pass, not a proposal each.

    It is `consistent`, and its sessions propose greedily: after any context, `propose(k)` gives its own next
    `min(k, room(len(context)))` tokens, each after those before it.
    """

    def greedy(self, prompt: Sequence[int], answer: Sequence[int]) -> Sequence[int]:
        """The drafter's own next token at every position of the answer, given the true tokens before it.

        Entry i is its guess for `answer[i]`; the answer's last id is never read. Where the context
        outgrows the drafter the entries end.
        """
        ...

    def room(self, length: int) -> int:
        """How many tokens it can propose after a context of `length` tokens; 0 where it can propose none."""
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
