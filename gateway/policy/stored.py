"""StoredPolicy: the policy in force where it is kept in the store, and edited by REST."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from gateway.errors import Conflict, PolicyError, StoreError
from gateway.policy.load import LoadedPolicy, PolicySource, default_policy, load_policy, policy_from
from gateway.store.model import PolicyRevision, PolicyText
from gateway.store.store import Store

SOURCE: PolicySource = "store"

logger = logging.getLogger(__name__)


class StoredPolicy:
    """Holds the newest policy that the store has, and keeps the last good one while that cannot be had.

    Args:
        store: Shared with other processes.
        clock: Unix time.
    """

    source = SOURCE
    path: Path | None = None

    def __init__(self, *, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._current = default_policy(clock())
        self._error: str | None = "the policy has not been read from the store yet, so everything is off"
        self._changes: int | None = None
        # One load at a time, or a slow one would bring back a policy that has been replaced meanwhile.
        self._loading = asyncio.Lock()

    @property
    def current(self) -> LoadedPolicy:
        """The policy in force, DEFAULT_POLICY before the first; swapped whole."""
        return self._current

    @property
    def error(self) -> str | None:
        """Why the newest policy of the store is not in force; None when it is."""
        return self._error

    async def put(self, text: str, *, based_on: str, author: str, reason: str) -> PolicyRevision:
        """Put a text in force, here at once and in other processes at their next look.

        Args:
            text: YAML.
            based_on: The revision in whose place it comes.
            author: Who wants it.
            reason: Why.

        Raises:
            PolicyError: It is no valid policy; nothing has changed.
            Conflict: Another revision than `based_on` is in force, or this text is already.
            StoreError: The store cannot be used now.
        """
        now = self._clock()
        loaded = policy_from(text.encode(), "policy", at=now)
        if loaded.revision == based_on:
            raise Conflict(f"The policy with this text, {based_on}, is what you name as in force already.")
        kept = await self._store.policies.append(
            _text_of(loaded, author=author, reason=reason, source=SOURCE),
            after=None if based_on == default_policy(now).revision else based_on,
        )
        if kept is None:
            raise Conflict(_came_between(based_on, await self._store.policies.newest()))
        await self.sync_once()
        return kept

    async def sync_once(self) -> None:
        """Take over what other processes have changed. While the store is down the last policy stays."""
        try:
            async with self._loading:
                changes = await self._store.meta.changes()
                if changes != self._changes:
                    self._take(await self._store.policies.newest())
                    self._changes = changes
        except StoreError as error:
            logger.debug("the policy is kept as it is: %s", error)

    async def run(self, interval_s: float) -> None:
        """Sync every `interval_s` seconds, for ever."""
        while True:
            await self.sync_once()
            await asyncio.sleep(interval_s)

    def _take(self, newest: PolicyRevision | None) -> None:
        if newest is None or newest.revision == self._current.revision:
            self._error = None
            return
        try:
            loaded = policy_from(newest.text.encode(), f"policy {newest.number}", at=newest.created_at)
        except PolicyError as error:
            # It was valid for the process that stored it, so that is of another version.
            self._error = f"{error}\nPolicy {self._current.revision} stays in force."
            logger.error("the policy in the store was refused: %s", self._error)  # noqa: TRY400
        else:
            self._current, self._error = loaded, None
            logger.info("policy %s is in force, from the store, number %d", loaded.revision, newest.number)


async def seed(store: Store, path: Path, clock: Callable[[], float]) -> None:
    """Begin an empty store's policy with a file's; one that has had a policy keeps its own.

    Raises:
        PolicyError: The store is empty, and the file is no valid policy.
        StoreError: The store cannot be used now.
    """
    if await store.policies.newest() is None:
        loaded = load_policy(path, clock=clock)
        reason = f"first start, from {path}"
        await store.policies.append(
            _text_of(loaded, author="ace serve", reason=reason, source=SOURCE), after=None
        )


class FileHistory:
    """Keeps every policy that a file brings into force, once, whichever process sees it first.

    Args:
        store: Shared with the other processes.
        current: The policy in force.
    """

    def __init__(self, *, store: Store, current: Callable[[], LoadedPolicy]) -> None:
        self._store = store
        self._current = current
        self._kept: LoadedPolicy | None = None

    async def keep_once(self) -> None:
        """Keep the policy in force, if nobody has. While the store is down that waits."""
        loaded = self._current()
        if loaded is self._kept or loaded.text is None:
            return
        text = _text_of(loaded, author="file", reason="seen by the gateway", source=loaded.source)
        try:
            newest = await self._store.policies.newest()
            while newest is None or _is_news(text, newest):
                after = newest.revision if newest else None
                newest = await self._store.policies.append(text, after=after) or (
                    await self._store.policies.newest()
                )
        except StoreError as error:
            logger.debug("policy %s is kept in the history later: %s", loaded.revision, error)
        else:
            self._kept = loaded

    async def run(self, interval_s: float) -> None:
        """Keep what comes into force, for ever."""
        while True:
            await self.keep_once()
            await asyncio.sleep(interval_s)


def _is_news(text: PolicyText, newest: PolicyRevision) -> bool:
    """Whether nobody has kept it. What others have kept since it was loaded is newer than it."""
    return text.revision != newest.revision and text.created_at > newest.created_at


def _text_of(loaded: LoadedPolicy, *, author: str, reason: str, source: str) -> PolicyText:
    return PolicyText(
        revision=loaded.revision,
        text=loaded.text or "",
        author=author,
        reason=reason,
        source=source,
        created_at=loaded.loaded_at,
    )


def _came_between(based_on: str, newest: PolicyRevision | None) -> str:
    if newest is None:
        return f"The store has no policy yet, so a first one is based on `default`, not on {based_on!r}."
    return (
        f"Your text is based on {based_on!r}, and {newest.revision} is in force, number {newest.number} by "
        f"{newest.author}: {newest.reason}. Read that, apply your change to it, and send it based on "
        f"{newest.revision}. Nothing has changed."
    )
