"""Waiting for what another task or thread brings about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], *, at_most_s: float = 30.0) -> None:
    """Return once `condition` holds; TimeoutError if it never does."""
    async with asyncio.timeout(at_most_s):
        while not condition():  # noqa: ASYNC110 - what is waited for offers no event
            await asyncio.sleep(0.001)
