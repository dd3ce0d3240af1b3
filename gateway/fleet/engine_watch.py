"""Looks at what engines say of their load: requests of others there, and tokens made in each block of time.

Only engines whose `/metrics` a probe has read are looked at.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import aiohttp

from gateway.errors import CredentialMissing
from gateway.evidence.engine_blocks import BlockTally, EngineBlock, Look
from gateway.fleet.credentials import auth_headers
from gateway.fleet.destination import destination_of
from gateway.fleet.health import read_body
from gateway.fleet.load import Load
from gateway.fleet.model import Backend, BackendState, FleetSnapshot
from probes.load_gauge import PATH, read_load
from probes.model import Capability, Support

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0

_PATIENCE_S = 2.0
_MAX_PAGE_BYTES = 8 * 2**20


class EngineWatch:
    """Reads every engine's gauges again and again.

    Args:
        session: Makes the calls; refuses forbidden addresses at each connection.
        fleet: The current snapshot.
        load: What this process has running where; told what others have.
        block_lengths: Lengths, in seconds, of the blocks that control is randomised by at this moment.
        keep: Told of each block that an engine has been through, as far as it was seen.
        clock: Unix time.
    """

    def __init__(
        self,
        *,
        session: aiohttp.ClientSession,
        fleet: Callable[[], FleetSnapshot],
        load: Load,
        block_lengths: Callable[[], frozenset[float]],
        keep: Callable[[Sequence[EngineBlock]], None],
        clock: Callable[[], float],
    ) -> None:
        self._session = session
        self._fleet = fleet
        self._load = load
        self._block_lengths = block_lengths
        self._keep = keep
        self._clock = clock
        self._tally = BlockTally()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look_once()
            await asyncio.sleep(INTERVAL_S)

    async def look_once(self) -> None:
        """One look at every engine that is up and has a gauge."""
        engines = [backend for backend in self._fleet().backends if _has_gauge(backend)]
        self._tally.forget_others({backend.key for backend in engines})
        await asyncio.gather(*map(self._look, engines))

    async def _look(self, backend: Backend) -> None:
        before = self._load.sequences(backend.key)
        try:
            load = read_load(await self._page(backend))
        except (CredentialMissing, aiohttp.ClientError, OSError, ValueError) as error:
            # Whether the server is up is for its health check to say.
            logger.debug("the load of backend %s is not known: %s", backend.key, type(error).__name__)
            return
        if load.running is not None:
            ours = max(before, self._load.sequences(backend.key))
            self._load.hear(backend.key, max(0, round(load.running) - ours))
        look = Look(at=self._clock(), load=load)
        if ended := self._tally.see(backend, look, self._block_lengths()):
            self._keep(ended)

    async def _page(self, backend: Backend) -> bytes:
        to = destination_of(backend.url, backend.address)
        headers = {**auth_headers(backend.name, backend.credential), **dict(to.headers)}
        async with (
            asyncio.timeout(_PATIENCE_S),
            self._session.get(
                to.url + PATH, headers=headers, allow_redirects=False, server_hostname=to.server_name
            ) as reply,
        ):
            reply.raise_for_status()
            return await read_body(reply, most=_MAX_PAGE_BYTES)


def _has_gauge(backend: Backend) -> bool:
    # Through a URL of several processes each look would show another one's numbers.
    return (
        backend.state is BackendState.UP
        and backend.supports(Capability.LOAD_GAUGE) is Support.YES
        and backend.supports(Capability.SINGLE_PROCESS) is not Support.NO
    )
