"""Gathers what one decision may look at besides findings, in one value."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.evidence.calibrations import Calibrations, Drafting
from gateway.evidence.loop_costs import load_band
from gateway.evidence.worths import Worths
from gateway.fleet.load import Load
from gateway.fleet.model import Backend
from gateway.policy.gate import DRAFT_MODEL
from gateway.policy.load import PolicyInForce
from gateway.policy.overlays import Overlays
from gateway.policy.standing import Pairing, Standing


class Standings:
    """Makes the snapshot that `decide` is given.

    Args:
        load: Requests under way.
        runners: The draft runners that have joined lately.
        calibrations: What steps cost.
        worths: What is predicted of them.
        policy: Its prod rules say whether the draft model is asked for at all.
        pairing: (backend, model) to how the live draft model's tokenizer compares; comparing is work, so it
            is only asked where a rule would use the answer.
        overlays: What operators have taken away.
    """

    def __init__(
        self,
        *,
        load: Load,
        runners: Callable[[], Iterable[Drafting]],
        calibrations: Calibrations,
        worths: Worths,
        policy: PolicyInForce,
        pairing: Callable[[str, str], Pairing | None],
        overlays: Callable[[], Overlays],
    ) -> None:
        self._load = load
        self._runners = runners
        self._calibrations = calibrations
        self._worths = worths
        self._policy = policy
        self._pairing = pairing
        self._overlays = overlays

    def at(self, backend: Backend, model: str, running: int) -> Standing:
        """As things are now, for a request for `model` that is one of `running` at `backend`'s instance."""
        return Standing(
            running=running,
            load_source=self._load.source(backend.key),
            drafters=frozenset(drafter for runner in self._runners() for drafter in runner.drafters),
            costs=self._calibrations.known(),
            worths=self._worths.known(),
            pairing=self._pairing(backend.name, model) if self._draft_model_is_asked_for() else None,
            overlays=self._overlays(),
        )

    def want_calibration(self, backend: Backend, model: str, drafter: str, running: int) -> None:
        """A request was bypassed because nobody has measured what a step costs there, at that load."""
        self._calibrations.want(backend, model, drafter, running)

    def of_next(self, backend: Backend, model: str) -> Standing:
        """As things are now, for a request for `model` that would come to `backend`."""
        return self.at(backend, model, self._load.running(backend.key) + 1)

    def plain_seconds(self, backend: Backend, model: str) -> float | None:
        """Seconds of a token of plain decoding at the load of now; None while nobody has measured it."""
        there = (backend.key, model, load_band(self._load.running(backend.key)))
        found = [
            calibration
            for calibration in self._calibrations.of(backend.name)
            if (calibration.key.place, calibration.key.model, calibration.key.band) == there
        ]
        latest = max(found, key=lambda calibration: calibration.measured_at, default=None)
        return latest.plain_seconds if latest else None

    def _draft_model_is_asked_for(self) -> bool:
        return any(rule.draft == DRAFT_MODEL for rule in self._policy.current.policy.prod_rules)
