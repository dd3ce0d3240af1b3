"""What a loop's answer leaves for its stage record, counted as design.md 9 defines."""

from __future__ import annotations

from collections import Counter, deque

from gateway.evidence.engine_metrics import (
    EngineNumbers,
    acceptance_rate,
    decode_speed,
    mean_acceptance_length,
)
from gateway.evidence.loops import LOOKED_AT, is_looping
from gateway.loop.errors import WhyPlain
from gateway.loop.generation import Emission
from gateway.proxy.witness import Bystander


class LoopCounts(Bystander):
    """Counts an answer as it is written, so it learns nothing from the bytes that pass.

    Args:
        prompt_tokens: Length of the prompt.
        k: Most drafts of a pass.
        profile: The habits that the drafter follows.

    Attributes:
        tokens: Of the answer so far.
        why_plain: Why the answer went on without the loop; None if it did not.
    """

    def __init__(self, *, prompt_tokens: int, k: int, profile: str) -> None:
        self.prompt_tokens = prompt_tokens
        self.profile = profile
        self.tokens = 0
        self.why_plain: WhyPlain | None = None
        self._k = k
        self._tail: deque[int] = deque(maxlen=LOOKED_AT)
        self._in_first = 0
        self._first_at = self._last_at = 0.0
        self._passes = -1  # the first is the prefill
        self._drafted: list[int] = []
        self._accepted: list[int] = []

    def add(self, emission: Emission, kept: int) -> None:
        """Count a pass, of whose tokens the first `kept` belong to the answer."""
        if self.tokens == 0:
            self._in_first, self._first_at = kept, emission.at
        self.tokens += kept
        self._tail.extend(token.id for token in emission.tokens[:kept])
        self._last_at = emission.at
        self._passes += 1
        self.why_plain = self.why_plain or emission.why_plain
        if emission.drafted:
            self._drafted.append(emission.drafted)
            self._accepted.append(min(emission.accepted, kept))

    @property
    def looping(self) -> bool:
        """Whether the answer so far loops."""
        return is_looping(self._tail)

    @property
    def numbers(self) -> EngineNumbers:
        """The counts and times. Passes are unknown once the target decodes by itself."""
        steps, drafted, accepted = len(self._drafted), sum(self._drafted), sum(self._accepted)
        decode_tokens = self.tokens - self._in_first
        seconds = self._last_at - self._first_at
        return EngineNumbers(
            completion_tokens=self.tokens,
            prompt_tokens=self.prompt_tokens,
            decode_tokens=decode_tokens,
            decode_seconds=seconds,
            tokens_per_second=decode_speed(self.tokens, decode_tokens, seconds),
            passes=None if self.why_plain else max(self._passes, 0),
            steps=steps,
            draft_tokens=drafted,
            accepted_tokens=accepted,
            accepted_by_position=self._by_position(),
            acceptance_rate=acceptance_rate(accepted, drafted),
            mean_acceptance_length=mean_acceptance_length(accepted, steps),
        )

    def _by_position(self) -> tuple[int, ...]:
        reached = Counter(place for accepted in self._accepted for place in range(accepted))
        return tuple(reached[place] for place in range(self._k))
