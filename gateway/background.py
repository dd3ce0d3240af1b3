"""Tasks that run beside the requests; one that fails is logged and started again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

logger = logging.getLogger(__name__)

_RESTART_S = 1.0


@asynccontextmanager
async def keep_running(jobs: Mapping[str, Callable[[], Awaitable[None]]]) -> AsyncIterator[None]:
    """Run every job while entered, and cancel and await them all at the end.

    A job that returns has done its work. One that raises is logged with its name and started again
    after a second.

    Args:
        jobs: Names to functions that run a job once.
    """
    tasks = [asyncio.create_task(_kept(name, job), name=name) for name, job in jobs.items()]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _kept(name: str, job: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await job()
        except Exception:
            logger.exception("background task %r failed and is started again", name)
            await asyncio.sleep(_RESTART_S)
        else:
            return
