"""Keeps the store small: stage records go when they are old, or too many."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from gateway.errors import StoreError

logger = logging.getLogger(__name__)

_DAY_S = 86_400


class DeletableStages(Protocol):
    """What retention needs of `StageRows`."""

    async def delete_before(self, at: float, *, most: int) -> int:
        """Delete up to `most` of the records made before a Unix time; how many went."""
        ...

    async def delete_beyond(self, newest: int, *, most: int) -> int:
        """Delete up to `most` of the oldest records, never one of the `newest`; how many went."""
        ...


class DeletableBlocks(Protocol):
    """What retention needs of `EngineBlockRows`."""

    async def delete_before(self, at: float, *, most: int) -> int:
        """Delete up to `most` of those that began before a Unix time; how many went."""
        ...


class Retention:
    """Deletes stage records older than some days, and the oldest beyond a number of rows.

    Args:
        stages: Where to delete.
        blocks: Where to delete what is as old: it is only of use beside records.
        days: Records older than this go.
        rows: Records beyond this many go, oldest first.
        clock: Unix time.
        batch_rows: Most rows deleted in one transaction, so that writers wait only briefly.
    """

    def __init__(
        self,
        *,
        stages: DeletableStages,
        blocks: DeletableBlocks,
        days: float,
        rows: int,
        clock: Callable[[], float],
        batch_rows: int = 2000,
    ) -> None:
        self._stages = stages
        self._blocks = blocks
        self._days = days
        self._rows = rows
        self._clock = clock
        self._batch_rows = batch_rows
        self._store_works = True

    async def run(self, interval_s: float = 60.0) -> None:
        """Sweep again and again. A store that is down is logged once and tried again."""
        while True:
            try:
                await self.sweep_once()
            except StoreError as error:
                if self._store_works:
                    logger.warning("Old stage records stay for now: %s", error)
                self._store_works = False
            else:
                self._store_works = True
            await asyncio.sleep(interval_s)

    async def sweep_once(self) -> int:
        """Delete all that is too old or too much; how many records went.

        Raises:
            StoreError: The database cannot be used now; what was deleted until then stays deleted.
        """
        oldest = self._clock() - self._days * _DAY_S
        aged = await self._repeat(lambda: self._stages.delete_before(oldest, most=self._batch_rows))
        await self._repeat(lambda: self._blocks.delete_before(oldest, most=self._batch_rows))
        surplus = await self._repeat(lambda: self._stages.delete_beyond(self._rows, most=self._batch_rows))
        return aged + surplus

    async def _repeat(self, delete_some: Callable[[], Awaitable[int]]) -> int:
        total = 0
        while gone := await delete_some():
            total += gone
            # Let the writer in between two batches.
            await asyncio.sleep(0)
        return total
