"""PolicyHolder: the policy in force, and a newer one as soon as its file has settled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gateway.errors import Conflict, PolicyError
from gateway.policy.load import (
    LoadedPolicy,
    PolicySource,
    default_policy,
    load_policy,
    policy_from,
    read_content,
    revision_of,
)
from gateway.store.model import PolicyRevision

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one look at the file found: its bytes, or why there are none."""

    content: bytes = b""
    unreadable: str = ""


class PolicyHolder:
    """Holds the policy in force and keeps it when its file turns bad.

    The file is polled through its path, so symlinks are followed anew each time: a ConfigMap's swap of
    `..data` is an ordinary change, and nothing depends on file notifications. Two looks in a row must find
    the same, and nobody may have written in between, before it is believed: a file that is being written is
    left alone. One that was cut off by its writer and stayed valid cannot be told from a shorter policy;
    write to another name and rename.

    Args:
        path: The policy file; None holds DEFAULT_POLICY and never changes.
        clock: Unix time.

    Raises:
        PolicyError: From the constructor, when the file is no valid policy: there is no good one to keep.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._current = load_policy(path, clock=clock) if path else default_policy(clock())
        self._error: str | None = None
        self._last_look: tuple[_Seen, object] | None = None
        self._refused: _Seen | None = None

    @property
    def current(self) -> LoadedPolicy:
        """The policy in force; swapped whole."""
        return self._current

    @property
    def path(self) -> Path | None:
        """The file that is watched."""
        return self._path

    @property
    def source(self) -> PolicySource:
        """Where policies come from: `file`, or `default` without one."""
        return "file" if self._path else "default"

    async def put(self, text: str, *, based_on: str, author: str, reason: str) -> PolicyRevision:  # noqa: ARG002
        """Refuse: who writes the file decides.

        Raises:
            Conflict: Always; says where the file is.
        """
        raise Conflict(
            f"The policy comes from the file {self._path}; edit it there, and it is in force within seconds."
            if self._path
            else "The gateway runs without a policy. Start it with --policy FILE, or with "
            "ACE_POLICY_SOURCE=store to keep the policy in the store."
        )

    @property
    def error(self) -> str | None:
        """Why the file as it is now is not in force; None when it is."""
        return self._error

    async def run(self, interval: float) -> None:
        """Look at the file every `interval` seconds, for ever."""
        while True:
            await asyncio.sleep(interval)
            await asyncio.to_thread(self.check_once)

    def check_once(self) -> None:
        """One look at the file. Acts on what it finds only if the look before found the same."""
        if self._path is None:
            return
        seen, _ = look = _look(self._path)
        settled = look == self._last_look
        self._last_look = look
        if settled and seen != self._refused:
            self._believe(seen, self._path)

    def _believe(self, seen: _Seen, path: Path) -> None:
        if seen.unreadable:
            self._refuse(seen, seen.unreadable)
        elif revision_of(seen.content) == self._current.revision:
            self._restored()
        else:
            self._take(seen, path)

    def _take(self, seen: _Seen, path: Path) -> None:
        try:
            loaded = policy_from(seen.content, str(path), at=self._clock())
        except PolicyError as error:
            self._refuse(seen, str(error))
        else:
            self._current, self._error, self._refused = loaded, None, None
            _log.info("policy %s is in force, from %s", loaded.revision, path)

    def _restored(self) -> None:
        if self._error is not None:
            _log.info("the policy file is again the one in force, %s", self._current.revision)
        self._error, self._refused = None, None

    def _refuse(self, seen: _Seen, why: str) -> None:
        since = datetime.fromtimestamp(self._current.loaded_at, UTC).isoformat(timespec="seconds")
        self._refused = seen
        self._error = f"{why}\nPolicy {self._current.revision}, loaded at {since}, stays in force."
        _log.error("the policy file was refused: %s", self._error)


def _look(path: Path) -> tuple[_Seen, object]:
    """What is there, and which writing of which file it is: writers that save often leave equal halves."""
    try:
        stat = path.stat()
        return _Seen(content=read_content(path)), (stat.st_dev, stat.st_ino, stat.st_mtime_ns)
    except PolicyError as error:
        return _Seen(unreadable=str(error)), None
    except OSError as error:
        return _Seen(unreadable=f"{path}: cannot be read: {error.strerror or error}."), None
