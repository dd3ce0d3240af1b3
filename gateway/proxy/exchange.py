"""One request on its way: what is known of it so far, for the records that it leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.fleet.load import Place
from gateway.fleet.model import Backend
from gateway.loop.answer import LoopAnswer
from gateway.policy.load import LoadedPolicy
from gateway.policy.model import Action, Decision
from gateway.policy.overlays import Stop
from gateway.policy.standing import Standing
from gateway.policy.ways import FANOUT
from gateway.proxy.dialects import DIALECTS, Spelling
from gateway.proxy.intake import InferenceRequest
from gateway.proxy.upstream import Answer
from gateway.proxy.witness import Bystander, Witness, witness_for
from gateway.telemetry.record import AccessRecord


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One backend asked, or about to be.

    Attributes:
        standing: What the decision looked at besides findings.
        decided_at: Unix time of the decision.
        reply: None while there is no answer.
        stopped: What ended its speculation on the way; None while nothing did.
    """

    backend: Backend
    decision: Decision
    standing: Standing
    decided_at: float
    spelling: Spelling
    reply: Answer | None = None
    stopped: Stop | None = None


@dataclass(slots=True, kw_only=True)
class Exchange:
    """A request for a backend, from intake to its records.

    Attributes:
        policy: The one in force when the request was read; it is kept to the end.
        since_read: Seconds since the whole body was here.
        place: Where it counts as under way.
        attempt: The latest; None before the first.
        witness: Sees the answer.
    """

    request: InferenceRequest
    policy: LoadedPolicy
    access: AccessRecord
    since_read: Callable[[], float]
    place: Place
    attempt: Attempt | None = None
    witness: Witness = field(default_factory=Bystander)

    def plan(self, decision: Decision, backend: Backend, standing: Standing, at: float) -> Attempt:
        """Make the next attempt: the decision, spelled in the backend's dialect."""
        self.place.move(backend.key, sequences=_sequences(decision))
        self.attempt = Attempt(
            backend=backend,
            decision=decision,
            standing=standing,
            decided_at=at,
            spelling=DIALECTS[backend.kind](self.request, decision),
        )
        self.access.backend = backend.name
        self.access.instance = backend.instance
        self.access.rule = decision.rule
        self.access.mode = str(decision.mode)
        self.access.action = str(decision.action)
        return self.attempt

    def call_witness(self, reply: Answer, limit: int) -> Witness:
        """The witness that the latest attempt's action needs for its answer."""
        if isinstance(reply, LoopAnswer):
            self.witness = reply.counts
        elif self.attempt is not None:
            spelling = self.attempt.spelling
            self.witness = witness_for(
                self.attempt.decision,
                reply,
                hides_usage=spelling.hides_usage,
                limit=limit,
                timer=self.since_read,
            )
        return self.witness


def _sequences(decision: Decision) -> int:
    """How many prompts of one request the backend may be answering at once."""
    fans_out = decision.strategy == FANOUT and decision.action is Action.SPECULATE
    return 1 + (decision.k or 0) if fans_out else 1
