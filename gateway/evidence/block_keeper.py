"""Keeps what engines made of blocks, once for all processes that see the same engines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from gateway.errors import StoreError
from gateway.evidence.engine_blocks import EngineBlock
from gateway.store.store import Store

logger = logging.getLogger(__name__)

_LEASE = "engine blocks"
_LEASE_S = 15.0
_MOST_WAITING = 1000


class BlockKeeper:
    """Writes blocks beside the loop that sees them, so that a slow store makes nobody blind.

    Every process sees every engine; the one that holds a lease writes.

    Args:
        store: Where blocks are kept.
        owner: Names this process among those that share the store.
        on_drop: Told how many blocks were lost, each time that some are.
        clock: Unix time.
    """

    def __init__(
        self, *, store: Store, owner: str, on_drop: Callable[[int], None], clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._owner = owner
        self._on_drop = on_drop
        self._clock = clock
        self._waiting: asyncio.Queue[Sequence[EngineBlock]] = asyncio.Queue(_MOST_WAITING)
        self._store_works = True

    def put(self, blocks: Sequence[EngineBlock]) -> None:
        """Take blocks that have ended, or drop and count them. Never waits."""
        try:
            self._waiting.put_nowait(blocks)
        except asyncio.QueueFull:
            self._on_drop(len(blocks))

    async def run(self) -> None:
        """Write what is put, until cancelled."""
        while True:
            await self.write_once()

    async def write_once(self) -> None:
        """Wait for blocks and write them, if it falls to this process; drop and count them if that fails."""
        blocks = await self._waiting.get()
        try:
            if await self._is_writer():
                await self._store.engine_blocks.add(blocks)
        except StoreError as error:
            if self._store_works:
                logger.warning("What engines make of blocks is not kept: %s", error)
            self._store_works = False
            self._on_drop(len(blocks))
        else:
            self._store_works = True

    async def _is_writer(self) -> bool:
        return await self._store.meta.claim(_LEASE, self._owner, now=self._clock(), seconds=_LEASE_S)
