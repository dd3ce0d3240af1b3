"""Writes stage records in batches, beside the request path and never on it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from gateway.errors import StoreError
from gateway.store.database import unbroken
from gateway.store.stages import Row, row_of
from gateway.telemetry.record import StageRecord

logger = logging.getLogger(__name__)

_ROWS_AT_A_STRETCH = 20


class StageSink(Protocol):
    """Where batches go; `StageRows` is one."""

    async def add(self, rows: Sequence[Row]) -> None:
        """Keep all rows or, raising StoreError, none; or all, when the store failed as it said so."""
        ...

    async def keeps(self, row: Row) -> bool:
        """Whether a row has been kept before."""
        ...


class StageWriter:
    """A bounded queue of stage records and the task that empties it into the store.

    While the store is down, records wait in the queue; what does not fit is dropped and counted.

    Args:
        stages: Where batches go.
        on_drop: Called with the number of records lost, each time that some are.
        queue_limit: Most records that may wait.
        batch_rows: Most records in one transaction; so many waiting are written at once.
        interval_s: Longest wait of a record while the store works.
    """

    def __init__(
        self,
        *,
        stages: StageSink,
        on_drop: Callable[[int], None],
        queue_limit: int = 10_000,
        batch_rows: int = 200,
        interval_s: float = 0.5,
    ) -> None:
        self._stages = stages
        self._on_drop = on_drop
        self._queue_limit = queue_limit
        self._batch_rows = batch_rows
        self._interval_s = interval_s
        self._waiting: deque[StageRecord] = deque()
        self._batch: list[Row] = []
        self._batch_full = asyncio.Event()
        self._closing = asyncio.Event()
        self._writing = asyncio.Lock()
        self._store_works = True

    def put(self, record: StageRecord) -> None:
        """Queue a record for writing, or drop and count it. Never waits, never raises."""
        if len(self._waiting) + len(self._batch) >= self._queue_limit:
            self._on_drop(1)
            return
        self._waiting.append(record)
        if len(self._waiting) >= self._batch_rows:
            self._batch_full.set()

    async def run(self) -> None:
        """Write what is put until `close` is called. A store that is down is tried again and again."""
        while not self._closing.is_set():
            # Full batches do not hurry a store that is down.
            due = self._batch_full if self._store_works else self._closing
            with suppress(TimeoutError):
                await asyncio.wait_for(due.wait(), self._interval_s)
            self._batch_full.clear()
            await self.flush()

    @unbroken
    async def flush(self) -> bool:
        """Write all that waits; False if the store would not take it, and then it goes on waiting."""
        async with self._writing:
            while self._waiting or self._batch:
                if not await self._write_batch():
                    return False
            return True

    async def close(self) -> None:
        """End `run` and write what waits. What the store will not take now is dropped and counted."""
        self._closing.set()
        self._batch_full.set()
        if not await self.flush():
            self._on_drop(len(self._waiting) + len(self._batch))
            self._waiting.clear()
            self._batch.clear()

    async def _write_batch(self) -> bool:
        if not self._batch:
            await self._take_batch()
        try:
            if self._batch and not await self._is_kept():
                await self._stages.add(self._batch)
        except StoreError as error:
            self._note_failure(error)
            return False
        except Exception:
            # Not the store's state but these rows: they would be refused for ever, and hold up all others.
            logger.exception("%d stage records cannot be stored", len(self._batch))
            self._on_drop(len(self._batch))
        else:
            self._note_success()
        self._batch = []
        return True

    async def _is_kept(self) -> bool:
        """Whether the batch was kept, all of it, by a store that failed before it could say so."""
        return not self._store_works and await self._stages.keeps(self._batch[0])

    def _note_failure(self, error: StoreError) -> None:
        if self._store_works:
            logger.warning("Stage records wait in memory: %s", error)
        self._store_works = False

    def _note_success(self) -> None:
        if not self._store_works:
            logger.warning("Stage records are written to the store again.")
        self._store_works = True

    async def _take_batch(self) -> None:
        for taken in range(min(self._batch_rows, len(self._waiting))):
            if taken % _ROWS_AT_A_STRETCH == 0:
                # Requests are served by the same loop.
                await asyncio.sleep(0)
            self._take(self._waiting.popleft())

    def _take(self, record: StageRecord) -> None:
        """Add a row to the batch. A record that cannot be one is dropped, so that it holds up no other."""
        try:
            self._batch.append(row_of(record))
        except TypeError:
            logger.exception("A stage record of backend %r cannot be stored", record.backend)
            self._on_drop(1)
