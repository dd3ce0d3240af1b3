"""What one process of the gateway remembers of an instance between two looks, and concludes from the next."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.fleet.health import Health
from gateway.fleet.model import Backend, BackendState
from gateway.fleet.processes import CONSISTENT_LOOKS, ProcessTrail
from probes.model import Capability, Finding, Support

_MISSES_BEFORE_DOWN = 3
_FIRST_WAIT_S, _LONGEST_WAIT_S = 5.0, 300.0


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a look changes.

    Attributes:
        backend: The instance as the look showed it.
        probe: Whether its findings have to be asked for anew.
    """

    backend: Backend
    probe: bool = False


class Watch:
    """Follows one instance.

    Args:
        backend: As it is now.
        trusted: Its findings are of the server that runs now, as far as is known.
        probe_again_at: While it is down it is not probed before this Unix time.
    """

    def __init__(self, backend: Backend, *, trusted: bool, probe_again_at: float) -> None:
        self.url = backend.url
        self._trusted = trusted
        self._probe_again_at = probe_again_at
        self._wait_s = _FIRST_WAIT_S
        self._listed: frozenset[str] | None = None
        self._misses = 0
        self._trail = _trail_of(backend)

    def conclude(self, backend: Backend, health: Health, at: float) -> Conclusion:
        """What follows from a look at `backend` at Unix time `at`."""
        return self._alive(backend, health, at) if health.alive else self._missed(backend, health)

    def probed(self, backend: Backend, at: float) -> None:
        """Take in that it was probed, and came out of it as `backend`."""
        self._trusted = True
        if backend.state is BackendState.UP:
            self._wait_s = _FIRST_WAIT_S
        self._probe_again_at = at + self._wait_s
        self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)

    def _alive(self, backend: Backend, health: Health, at: float) -> Conclusion:
        self._misses = 0
        changed = None not in (self._listed, health.models) and self._listed != health.models
        self._listed = health.models or self._listed
        if backend.process.differs(self._trail.process):
            self._trail = _trail_of(backend)  # another process of the gateway has followed it meanwhile
        self._trail.follow(health.sighting, at)
        if backend.state is BackendState.DOWN:
            probe = at >= self._probe_again_at
        else:
            # Several processes may list several things in turns; none of it is worth a probe each time.
            changed = changed and not self._trail.several
            probe = changed or not self._trusted or self._trail.replaced
        return Conclusion(self._as_followed(backend, at, probe=probe), probe)

    def _missed(self, backend: Backend, health: Health) -> Conclusion:
        self._misses += 1
        if not health.certain and self._misses < _MISSES_BEFORE_DOWN:
            return Conclusion(backend)
        # Whatever answers next may be another server: it is probed at once.
        self._probe_again_at, self._wait_s = 0.0, _FIRST_WAIT_S
        self._trail.interrupt()
        return Conclusion(replace(backend, state=BackendState.DOWN, state_reason=health.reason))

    def _as_followed(self, backend: Backend, at: float, *, probe: bool) -> Backend:
        # A server that was away and does not say when it was started may be another one.
        unsure = probe and backend.state is BackendState.DOWN and not self._trail.says_start
        return replace(
            backend,
            process=self._trail.process,
            process_since=at if self._trail.replaced or unsure else backend.process_since,
            findings={**backend.findings, **self._single_process(backend)},
        )

    def _single_process(self, backend: Backend) -> dict[Capability, Finding]:
        """The finding, where there is reason for one."""
        known = backend.supports(Capability.SINGLE_PROCESS)
        if self._trail.several and known is not Support.NO:
            support, evidence = Support.NO, self._trail.several
        elif not self._trail.several and known is Support.NO:
            support, evidence = Support.YES, f"{CONSISTENT_LOOKS} looks in a row showed one process"
        else:
            return {}
        finding = Finding(capability=Capability.SINGLE_PROCESS, support=support, evidence=evidence)
        return {Capability.SINGLE_PROCESS: finding}


def _trail_of(backend: Backend) -> ProcessTrail:
    finding = backend.findings.get(Capability.SINGLE_PROCESS)
    several = finding.evidence if finding and finding.support is Support.NO else ""
    return ProcessTrail(backend.process, several)
