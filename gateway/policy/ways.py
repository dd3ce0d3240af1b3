"""The ways to carry out prod, best first, and the findings that each needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.fleet.model import Backend
from probes.model import Capability, Support

FANOUT = "fanout"
"""The strategy that has a target answer several prompts at once, one for each draft and one more."""

_BY_IDS = (
    Capability.STREAMING,
    Capability.TOKEN_ID_PROMPTS,
    Capability.RETURNED_TOKEN_IDS,
    Capability.TOKENIZE,
    Capability.DETOKENIZE,
    Capability.NEUTRAL_DEFAULTS,
)
"""To drive an answer by ids from outside, and to go on with it plainly when the driver is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """An executor, in one of its strategies if it has several.

    Attributes:
        strategy: A key of `gateway.loop.strategies.STRATEGIES`; None for an executor without.
        needs: Findings that have to be yes.
    """

    executor: str
    strategy: str | None = None
    needs: tuple[Capability, ...]

    def __str__(self) -> str:
        return f"{self.executor} ({self.strategy})" if self.strategy else self.executor

    def missing(self, backend: Backend) -> Capability | None:
        """The first finding that it needs and that is not yes; None when it is possible."""
        return next((need for need in self.needs if backend.supports(need) is not Support.YES), None)

    def why_not(self, backend: Backend, drafter: str | None) -> str | None:
        """What `backend` lacks for it to draft with `drafter`; None when it is possible."""
        if need := self.missing(backend):
            return f"{self} needs the finding {need}, which is {backend.supports(need)} for {backend.name!r}"
        if self.strategy is None and drafter is not None and drafter not in backend.engine_drafters:
            there = ", ".join(backend.engine_drafters) or "none"
            return f"{self} needs the drafter {drafter}, and {backend.name!r} has {there}"
        return None


WAYS: Sequence[Way] = (
    Way(executor="in_engine", needs=(Capability.IN_ENGINE,)),
    Way(executor="gateway_loop", strategy="scored", needs=(*_BY_IDS, Capability.SCORED)),
    Way(executor="gateway_loop", strategy=FANOUT, needs=(*_BY_IDS, Capability.PROMPT_LISTS)),
)

EXECUTORS: tuple[str, ...] = tuple(dict.fromkeys(way.executor for way in WAYS))
"""By the word that policies, records and pages use."""


def ways_of(executor: str) -> tuple[Way, ...]:
    """The ways of one executor, or of all for `auto`; best first."""
    return tuple(way for way in WAYS if executor in ("auto", way.executor))
