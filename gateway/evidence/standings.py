"""Gathers what one decision may look at besides findings, in one value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gateway.evidence.calibrations import Calibrations, Drafting
from gateway.evidence.loop_costs import load_band
from gateway.evidence.worths import Worths
from gateway.fleet.load import Load
from gateway.fleet.model import Backend
from gateway.policy.standing import Pairing, Standing


class Standings:
    """Makes the snapshot that `decide` is given.

    Args:
        load: Requests under way.
        runners: The draft runners that have joined lately.
        calibrations: What steps cost.
        worths: What is predicted of them.
        pairings: (backend, model) to how the draft model's tokenizer compares.
    """

    def __init__(
        self,
        *,
        load: Load,
        runners: Callable[[], Iterable[Drafting]],
        calibrations: Calibrations,
        worths: Worths,
        pairings: Callable[[], Mapping[tuple[str, str], Pairing]],
    ) -> None:
        self._load = load
        self._runners = runners
        self._calibrations = calibrations
        self._worths = worths
        self._pairings = pairings

    def at(self, running: int) -> Standing:
        """As things are now, for a request that is one of `running` at its backend."""
        return Standing(
            running=running,
            drafters=frozenset(drafter for runner in self._runners() for drafter in runner.drafters),
            costs=self._calibrations.known(),
            worths=self._worths.known(),
            pairings=self._pairings(),
        )

    def want_calibration(self, backend: Backend, model: str, drafter: str, running: int) -> None:
        """A request was bypassed because nobody has measured what a step costs there, at that load."""
        self._calibrations.want(backend, model, drafter, running)

    def of_next(self, backend: str) -> Standing:
        """As things are now, for a request that would come to `backend`."""
        return self.at(self._load.running(backend) + 1)

    def plain_seconds(self, backend: str, model: str) -> float | None:
        """Seconds of a token of plain decoding at the load of now; None while nobody has measured it."""
        band = load_band(self._load.running(backend))
        found = [
            calibration
            for calibration in self._calibrations.of(backend)
            if (calibration.key.model, calibration.key.band) == (model, band)
        ]
        latest = max(found, key=lambda calibration: calibration.measured_at, default=None)
        return latest.plain_seconds if latest else None
