"""An engine that batches, as a simulation: every request in the batch waits for the same forward."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

Speculates = Callable[[float], bool]
"""Unix time of a request's arrival to whether it is speculated."""

K = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One finished request; times in seconds of the simulated clock."""

    speculated: bool
    begun: float
    ended: float
    tokens: float

    @property
    def seconds(self) -> float:
        return self.ended - self.begun


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingEngine:
    """A closed loop: so many clients, each of which sends its next request when its last one is answered.

    A forward takes `base_s`, and `token_s` for every token of the batch in it: one for a plain request, K + 1
    for a speculated one. At small batches the base hides the drafts; at large ones every draft costs.

    Attributes:
        accepted: Drafts accepted in a pass, on average.
        drift: Standard deviation of the logarithm of the machine's speed, which changes every minute.
    """

    clients: int
    base_s: float = 0.020
    token_s: float = 0.001
    accepted: float = 1.0
    drift: float = 0.15

    def serve(self, speculates: Speculates, *, start: float, seconds: float, rng: Random) -> Iterator[Answer]:
        """Run for so long; answers that have not ended by then are lost."""
        now, batch, speed = start, [self._arrive(speculates, start, rng) for _ in range(self.clients)], 1.0
        minute = -1
        while now < start + seconds:
            if (this := int(now // 60)) != minute:
                minute, speed = this, math.exp(rng.gauss(0, self.drift))
            forward = speed * (self.base_s + self.token_s * sum(request.width for request in batch))
            passes = min(request.left / request.per_pass for request in batch)
            # To the first answer's end, or to where the machine's speed changes.
            passes = min(passes, max(((minute + 1) * 60 - now) / forward, 1e-6))
            now += passes * forward
            for place, request in enumerate(batch):
                request.left -= passes * request.per_pass
                if request.left < 1e-6:
                    yield Answer(
                        speculated=request.width > 1, begun=request.begun, ended=now, tokens=request.tokens
                    )
                    batch[place] = self._arrive(speculates, now, rng)

    def throughput(self, *, speculated: bool) -> float:
        """Tokens per second of the engine if every request, or none, is speculated."""
        width, per_pass = (K + 1, 1 + self.accepted) if speculated else (1, 1.0)
        return self.clients * per_pass / (self.base_s + self.token_s * self.clients * width)

    def _arrive(self, speculates: Speculates, now: float, rng: Random) -> _Request:
        tokens = 20 + rng.expovariate(1 / 100)
        if not speculates(now):
            return _Request(begun=now, tokens=tokens, left=tokens, width=1, per_pass=1.0)
        # Prompts differ in how well they can be drafted for.
        per_pass = 1 + min(K, self.accepted * rng.lognormvariate(-0.125, 0.5))
        return _Request(begun=now, tokens=tokens, left=tokens, width=K + 1, per_pass=per_pass)


@dataclass(slots=True, kw_only=True)
class _Request:
    begun: float
    tokens: float
    left: float
    width: int
    per_pass: float
