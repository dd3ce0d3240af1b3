"""A probe suite and a health check as scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from gateway.fleet.discovery import NotDiscovered
from gateway.fleet.examine import Examiner
from gateway.fleet.health import Health
from probes.model import Capability, Finding, Support
from probes.suite import ProbeResult

IN_ENGINE = Finding(
    capability=Capability.IN_ENGINE, support=Support.YES, evidence="3 steps reported", value=None
)
UP = ProbeResult(kind="embedded", up=True, reason="", models=("m",), findings=(IN_ENGINE,))
AWAY = ProbeResult(
    kind="openai",
    up=False,
    reason="no connection",
    models=(),
    findings=(Finding(capability=Capability.MODELS, support=Support.UNKNOWN, evidence="no connection"),),
)
ALIVE = Health(alive=True, models=frozenset({"m"}))
REFUSED = Health(alive=False, reason="connection refused")
SLOW = Health(alive=False, reason="not answered within 5 s", certain=False)


@dataclass
class ScriptedProbe:
    """Answers as told, and keeps how it was asked. While `hold` is cleared, answers wait."""

    answer: ProbeResult | Exception = UP
    asked: list[dict[str, Any]] = field(default_factory=list)
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.hold.set()

    async def __call__(
        self,
        url: str,
        *,
        kind: str,
        headers: Mapping[str, str],
        time_limit_s: float,
        transport: httpx.AsyncBaseTransport | None,
    ) -> ProbeResult:
        self.asked.append({"url": url, "kind": kind, "headers": dict(headers)})
        self.started.set()
        await self.hold.wait()
        if transport is not None:
            await transport.aclose()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@dataclass
class ScriptedHealth:
    """Answers as told, of some URLs or addresses with `answers`, and keeps how it was asked."""

    answer: Health = ALIVE
    answers: dict[str, Health] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    async def __call__(self, url: str, headers: Mapping[str, str], *, address: str | None = None) -> Health:
        self.asked.append((url, dict(headers)))
        return self.answers.get(address or url, self.answer)


async def nothing_discovered(url: str) -> tuple[str, ...]:
    """Knows no name."""
    raise NotDiscovered(f"{url} has a name that nobody knows")


def examiner_of(
    probe: ScriptedProbe,
    health: ScriptedHealth,
    clock: Callable[[], float],
    discover: Callable[[str], Awaitable[tuple[str, ...]]] | None = None,
) -> Examiner:
    """An examiner that asks only the scripts."""
    return Examiner(
        probe=probe,
        check_health=health,
        discover=discover or nothing_discovered,
        transport=lambda address: httpx.MockTransport(lambda request: httpx.Response(500)),
        clock=clock,
    )
