"""Draft runners that have joined, shared through the store by every process of the gateway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.errors import StoreError
from gateway.fleet.urls import check_url
from gateway.store.model import AnnouncedDraftModel, Runner
from gateway.store.store import Store

logger = logging.getLogger(__name__)

LIVE_S = 15.0
"""A runner repeats its join every 5 s; one that misses three is taken for gone."""


class KnownRunner(Protocol):
    """A draft runner that has joined lately."""

    @property
    def url(self) -> str:
        """Base URL without a trailing slash."""
        ...

    @property
    def drafters(self) -> Sequence[str]:
        """What it can draft with."""
        ...


class Runners:
    """The runners that have joined, newest join first.

    Args:
        store: Where joins are kept, so that all processes know of a runner that joined at one.
        clock: Unix time.
    """

    def __init__(self, *, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._known: tuple[Runner, ...] = ()

    def all(self) -> tuple[Runner, ...]:
        """Every runner seen within a day."""
        return self._known

    def is_live(self, runner: Runner) -> bool:
        """Whether it has joined lately."""
        return self._clock() - runner.seen_at < LIVE_S

    def live(self) -> tuple[Runner, ...]:
        """The runners that may be asked for a replay."""
        return tuple(runner for runner in self._known if self.is_live(runner))

    async def join(
        self,
        *,
        url: str,
        node: str,
        drafters: Sequence[str],
        version: str,
        draft_model: AnnouncedDraftModel | None = None,
    ) -> Runner:
        """Take note of a runner, or that it is still there. Works while the store is down.

        Raises:
            MalformedRequest: Its URL is not one that is ever connected to.
        """
        base, now = check_url(url), self._clock()
        joined_at = next((r.joined_at for r in self._known if r.url == base), now)
        runner = Runner(
            url=base,
            node=node,
            drafters=tuple(drafters),
            version=version,
            draft_model=draft_model,
            joined_at=joined_at,
            seen_at=now,
        )
        self._known = (runner, *(r for r in self._known if r.url != base))
        try:
            await self._store.runners.join(runner)
        except StoreError as error:
            logger.debug("the join of runner %s is known to this process only: %s", base, error)
        return runner

    async def sync_once(self) -> None:
        """Take over joins at other processes. While the store is down, those known stay known."""
        try:
            stored = await self._store.runners.all()
        except StoreError as error:
            logger.debug("runners are kept as they are: %s", error)
            return
        newest = {runner.url: runner for runner in stored}
        for runner in self._known:
            if runner.url in newest and runner.seen_at > newest[runner.url].seen_at:
                newest[runner.url] = runner
        self._known = tuple(sorted(newest.values(), key=lambda r: r.seen_at, reverse=True))

    async def run(self, interval_s: float = 1.0) -> None:
        """Sync again and again, until cancelled."""
        while True:
            await self.sync_once()
            await asyncio.sleep(interval_s)
