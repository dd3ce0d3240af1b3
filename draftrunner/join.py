"""The runner's heartbeat: tells a gateway, again and again, where this runner is and what it can do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

JOIN_PATH = "/runner/v1/join"
SECONDS_BETWEEN_BEATS = 5.0
SECONDS_TO_ANSWER = 5.0

logger = logging.getLogger(__name__)


class Heartbeat:
    """Posts `announcement` to the gateway. A gateway that is away, or refuses, never ends it.

    Logs when what the gateway says changes (joined, unreachable, refused), and is silent in between.

    Args:
        client: Makes the calls; its owner closes it.
        gateway: Base URL of the gateway.
        token: The runner token.
        announcement: The JSON body: url, node, drafters, version.
        seconds_between_beats: Wait after each call.
    """

    def __init__(
        self,
        *,
        client: httpx.AsyncClient,
        gateway: str,
        token: str,
        announcement: Mapping[str, Any],
        seconds_between_beats: float = SECONDS_BETWEEN_BEATS,
    ) -> None:
        self._client = client
        self._url = gateway.rstrip("/") + JOIN_PATH
        self._headers = {"authorization": f"Bearer {token}"}
        self._announcement = dict(announcement)
        self._seconds_between_beats = seconds_between_beats
        self._last_outcome: str | None = None

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            await self.beat()
            await asyncio.sleep(self._seconds_between_beats)

    async def beat(self) -> None:
        """Announce once, and log the outcome if it is news."""
        try:
            reply = await self._client.post(self._url, headers=self._headers, json=self._announcement)
        except httpx.HTTPError as error:
            self._note("unreachable", f"is not reachable ({type(error).__name__}: {error})")
            return
        if reply.is_success:
            self._note("joined", "accepted this runner")
        else:
            hint = ". Both sides need the same runner token" if reply.status_code in (401, 403) else ""
            self._note(f"refused {reply.status_code}", f"answered HTTP {reply.status_code}{hint}")

    def _note(self, outcome: str, sentence: str) -> None:
        if outcome == self._last_outcome:
            return
        self._last_outcome = outcome
        if outcome == "joined":
            logger.info("%s %s", self._url, sentence)
        else:
            logger.warning("%s %s; trying again every %g s", self._url, sentence, self._seconds_between_beats)


@contextlib.asynccontextmanager
async def joined(*, gateway: str, token: str, announcement: Mapping[str, Any]) -> AsyncIterator[None]:
    """Keep the runner joined to `gateway` for the enclosed block."""
    # A proxy from the environment must never see the runner token, nor stand before a loopback gateway.
    async with httpx.AsyncClient(timeout=SECONDS_TO_ANSWER, trust_env=False) as client:
        heartbeat = Heartbeat(client=client, gateway=gateway, token=token, announcement=announcement)
        beating = asyncio.create_task(heartbeat.run())
        try:
            yield
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating
