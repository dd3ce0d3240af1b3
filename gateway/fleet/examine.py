"""Finds out what a backend is: a cheap look, or every question of a probe suite."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import httpx

from gateway.errors import CredentialMissing
from gateway.fleet.credentials import auth_headers
from gateway.fleet.health import Health, HealthCheck
from gateway.fleet.model import Backend, BackendState, EngineKind
from probes.model import Capability, Finding, Support
from probes.suite import ProbeResult

logger = logging.getLogger(__name__)

PROBED_AS: Mapping[str, str] = {
    "auto": "auto",
    "openai": "openai",
    "embedded": "embedded",
    "vllm": "openai",
    "sglang": "openai",
}
"""What an operator may declare, and the probe suite that is run for it."""

PROBE_TIME_LIMIT_S = 90.0


class Probe(Protocol):
    """Runs a probe suite against a server; `probes.suite.probe` is one."""

    async def __call__(
        self,
        url: str,
        *,
        kind: str,
        headers: Mapping[str, str],
        time_limit_s: float,
        transport: httpx.AsyncBaseTransport | None,
    ) -> ProbeResult:
        """Ask the server at base URL `url` every question of the suite for `kind`."""
        ...


class Examiner:
    """Asks one instance. Whatever it does, the answer is a Health or a Backend, never an exception.

    Args:
        probe: Runs a probe suite.
        check_health: Looks at a server, cheaply.
        discover: Learns the addresses behind the name in a URL.
        transport: Makes the connections of one probe, to an address if one is given; the probe closes it.
        clock: Unix time.
    """

    def __init__(
        self,
        *,
        probe: Probe,
        check_health: HealthCheck,
        discover: Callable[[str], Awaitable[tuple[str, ...]]],
        transport: Callable[[str | None], httpx.AsyncBaseTransport],
        clock: Callable[[], float],
    ) -> None:
        self._probe = probe
        self._check_health = check_health
        self._discover = discover
        self._transport = transport
        self._clock = clock

    async def addresses(self, url: str) -> tuple[str, ...]:
        """The addresses behind the name in a URL, at least one.

        Raises:
            NotDiscovered: They could not be learnt.
        """
        return await self._discover(url)

    async def look(self, backend: Backend) -> Health:
        """Whether the backend is there, which models it lists, and what it shows of its process."""
        try:
            return await self._check_health(
                backend.url, auth_headers(backend.name, backend.credential), address=backend.address
            )
        except CredentialMissing as error:
            return Health(alive=False, reason=str(error))

    async def examine(self, backend: Backend) -> Backend:
        """The backend as every question of its suite shows it."""
        at = self._clock()
        try:
            answer = await self._ask(backend)
            return _as_probed(backend, answer, at)
        except CredentialMissing as error:
            return _down(backend, str(error), at)
        except TimeoutError:
            return _down(backend, f"probing did not end within {PROBE_TIME_LIMIT_S:g} s", at)
        except Exception as error:
            logger.exception("probing backend %s failed", backend.key)
            return _down(backend, f"probing failed: {type(error).__name__}", at)

    async def _ask(self, backend: Backend) -> ProbeResult:
        # The suite keeps the limit by itself; the second clock is for one that hangs.
        async with asyncio.timeout(PROBE_TIME_LIMIT_S + 5):
            return await self._probe(
                backend.url,
                kind=PROBED_AS[backend.declared_kind],
                headers=auth_headers(backend.name, backend.credential),
                time_limit_s=PROBE_TIME_LIMIT_S,
                transport=self._transport(backend.address),
            )


def _down(backend: Backend, reason: str, at: float) -> Backend:
    return replace(backend, state=BackendState.DOWN, state_reason=reason, probed_at=at)


def _as_probed(backend: Backend, answer: ProbeResult, at: float) -> Backend:
    # A server that is away has lost neither its kind nor its models: a request for one of them is told
    # that its backend is down, and not that the model does not exist.
    unseen = not answer.models and not answer.up and backend.probed_at is not None
    return replace(
        backend,
        kind=backend.kind if unseen else EngineKind(answer.kind),
        state=BackendState.UP if answer.up else BackendState.DOWN,
        state_reason=answer.reason,
        models=backend.models if unseen else tuple(answer.models),
        findings=_merged(backend.findings, answer.findings, keep_known=unseen),
        probed_at=at,
    )


def _merged(
    known: Mapping[Capability, Finding], found: Sequence[Finding], *, keep_known: bool
) -> Mapping[Capability, Finding]:
    """The new findings; for a server that is away, an answer is not undone by a question without one."""
    new = {finding.capability: finding for finding in found}
    if not keep_known:
        # What many looks have shown is not asked by any suite, and not undone by one.
        learnt = known.get(Capability.SINGLE_PROCESS)
        return {**new, Capability.SINGLE_PROCESS: learnt} if learnt else new
    unanswered = {name for name, finding in new.items() if finding.support is Support.UNKNOWN}
    kept = {name: finding for name, finding in known.items() if name in unanswered or name not in new}
    return {**new, **kept}
