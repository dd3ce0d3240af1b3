"""OverlayBoard: the overlays in force in this process, kept up with the store and with the kill switch."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence

from gateway.errors import KillNotStored, MalformedRequest, NotFound, StoreError
from gateway.policy.kill_switch import KillSwitch
from gateway.policy.model import Mode
from gateway.policy.overlays import Overlay, OverlayKind, Overlays, Scope, Stop, Subject, joined
from gateway.store.store import Store

LOOK_S = 0.25
"""Between two looks at the store, and at the file. A kill has two seconds in all."""

logger = logging.getLogger(__name__)


class OverlayBoard:
    """Holds the overlays; whoever decides reads `current`, whoever has something running is told of changes.

    While the store is down the last known stay in force. Until they have been read once, everything stops.

    Args:
        store: Shared with other processes.
        switch: Kills without the store.
        clock: Unix time.
    """

    def __init__(self, *, store: Store, switch: KillSwitch, clock: Callable[[], float]) -> None:
        self.switch = switch
        self._store = store
        self._clock = clock
        self._stored: Sequence[Overlay] | None = None
        self._current = joined(None, switch.kills)
        self._changes: int | None = None
        self._listeners: list[Callable[[], None]] = []
        # One load at a time, or a slow one would bring back an overlay that has been lifted meanwhile.
        self._loading = asyncio.Lock()

    @property
    def current(self) -> Overlays:
        """All that this process knows; swapped whole."""
        return self._current

    def stop(self, subject: Subject) -> Stop | None:
        """What stops `subject` now; None when nothing does."""
        return self._current.stop(subject, self._clock())

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever `current` has become another; it must not block."""
        self._listeners.append(listener)

    async def add(
        self,
        kind: OverlayKind,
        scope: Scope,
        *,
        value: Mode | int | None = None,
        author: str,
        reason: str,
        lasts_s: float | None,
    ) -> Overlay:
        """Put an overlay in force, here at once and in other processes at their next look.

        Args:
            kind: What it does.
            scope: What it holds for.
            value: A demotion's mode, or a lookahead's K.
            author: Who wants it.
            reason: Why.
            lasts_s: Seconds until it expires; None for one that holds until it is lifted.

        Raises:
            MalformedRequest: Kind, scope and value do not go together.
            KillNotStored: A kill, and the store cannot be used now.
            StoreError: The store cannot be used now.
        """
        now = self._clock()
        try:
            overlay = Overlay(
                id=secrets.token_hex(4),
                kind=kind,
                scope=scope,
                value=value,
                author=author,
                reason=reason,
                created_at=now,
                expires_at=None if lasts_s is None else now + lasts_s,
            )
        except ValueError as error:
            raise MalformedRequest(f"body: {error}.") from None
        try:
            await self._store.overlays.add(overlay)
        except StoreError as error:
            if kind is OverlayKind.KILL:
                raise KillNotStored(str(error), str(self.switch.file)) from error
            raise
        logger.warning("overlay put in force: %s", overlay)
        await self.sync_once()
        return overlay

    async def lift(self, overlay_id: str, *, by: str) -> None:
        """End an overlay, here at once and in other processes at their next look.

        Raises:
            NotFound: None has that id.
            StoreError: The store cannot be used now.
        """
        if not await self._store.overlays.lift(overlay_id, at=self._clock(), by=by):
            raise NotFound(
                f"No overlay has the id {overlay_id[:100]!r}. `ace overlays list --all` shows them; "
                f"a kill by {self.switch.file} or ACE_KILL ends when that is taken away."
            )
        logger.warning("overlay %s was lifted by %s", overlay_id, by)
        await self.sync_once()

    async def lift_kills(self, *, by: str) -> None:
        """End every kill in the store.

        Raises:
            StoreError: The store cannot be used now.
        """
        now = self._clock()
        for overlay in await self._store.overlays.in_force(now):
            if overlay.kind is OverlayKind.KILL:
                await self._store.overlays.lift(overlay.id, at=now, by=by)
                logger.warning("overlay %s was lifted by %s", overlay.id, by)
        await self.sync_once()

    async def newest(self, limit: int) -> tuple[Overlay, ...]:
        """The last `limit` that were stored, whether they hold or not, newest first.

        Raises:
            StoreError: The store cannot be used now.
        """
        return await self._store.overlays.newest(limit)

    async def sync_once(self) -> None:
        """Take over what other processes have changed. While the store is down the last known stay."""
        try:
            if await self._store.meta.changes() != self._changes:
                await self._load()
        except StoreError as error:
            logger.debug("overlays are kept as they are: %s", error)

    async def look_once(self) -> None:
        """Look at the kill switch's file."""
        if await asyncio.to_thread(self.switch.check_once):
            self._swap()

    async def run(self, interval_s: float = LOOK_S) -> None:
        """Look at both again and again, until cancelled. A store that hangs holds up no look at the file."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_again_and_again(self.sync_once, interval_s))
            tasks.create_task(_again_and_again(self.look_once, interval_s))

    async def _load(self) -> None:
        async with self._loading:
            # The counter first: a change between the reads is then read again, never missed.
            changes = await self._store.meta.changes()
            self._stored = await self._store.overlays.in_force(self._clock())
            self._changes = changes
        self._swap()

    def _swap(self) -> None:
        fresh = joined(self._stored, self.switch.kills)
        if fresh == self._current:
            return
        self._current = fresh
        for listener in self._listeners:
            listener()


async def _again_and_again(look: Callable[[], Awaitable[None]], interval_s: float) -> None:
    while True:
        await look()
        await asyncio.sleep(interval_s)
