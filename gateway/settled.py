"""Files that operators change while the gateway runs: believed once settled; the last good one is kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from gateway.errors import ConfigError

MAX_BYTES = 1 << 20


class Loaded(Protocol):
    """What a file holds."""

    @property
    def revision(self) -> str:
        """The name of its exact text."""

    @property
    def loaded_at(self) -> float:
        """Unix time."""


Content = TypeVar("Content", bound=Loaded)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one look at the file found: its bytes, or why there are none."""

    content: bytes = b""
    unreadable: str = ""


class SettledFile(Generic[Content]):
    """Holds what a file held when it was last good.

    The file is polled through its path, so symlinks are followed anew each time: a ConfigMap's swap of
    `..data` is an ordinary change, and nothing depends on file notifications. Two looks in a row must find
    the same, and nobody may have written in between, before it is believed: a file that is being written is
    left alone. One that was cut off by its writer and stayed valid cannot be told from a shorter one; write
    to another name and rename.

    Args:
        path: The file.
        what: What it is, in one word, for messages.
        load: Reads its bytes; raises `error` when they are not good.
        error: Raised from the constructor too, when the file is not good: there is nothing to keep then.
        log: Told of every change.
    """

    def __init__(
        self,
        path: Path,
        *,
        what: str,
        load: Callable[[bytes], Content],
        error: type[ConfigError],
        log: logging.Logger,
    ) -> None:
        self.path = path
        self._what = what
        self._load = load
        self._refusal = error
        self._log = log
        self._in_force = _Seen(content=read_content(path, error))
        self._current = load(self._in_force.content)
        self._error: str | None = None
        self._last_look: tuple[_Seen, object] | None = None
        self._refused: _Seen | None = None

    @property
    def current(self) -> Content:
        """The last good content; swapped whole."""
        return self._current

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
        seen, _ = look = self._look()
        settled = look == self._last_look
        self._last_look = look
        if settled and seen != self._refused:
            self._believe(seen)

    def _look(self) -> tuple[_Seen, object]:
        """What is there, and which writing of which file it is: who saves often leaves equal halves."""
        try:
            stat = self.path.stat()
            content = read_content(self.path, self._refusal)
        except self._refusal as error:
            return _Seen(unreadable=str(error)), None
        except OSError as error:
            return _Seen(unreadable=f"{self.path}: cannot be read: {error.strerror or error}."), None
        return _Seen(content=content), (stat.st_dev, stat.st_ino, stat.st_mtime_ns)

    def _believe(self, seen: _Seen) -> None:
        if seen.unreadable:
            self._refuse(seen, seen.unreadable)
        elif seen == self._in_force:
            self._restored()
        else:
            self._take(seen)

    def _take(self, seen: _Seen) -> None:
        try:
            self._current = self._load(seen.content)
        except self._refusal as error:
            self._refuse(seen, str(error))
        else:
            self._in_force, self._error, self._refused = seen, None, None
            self._log.info("%s %s is in force, from %s", self._what, self._current.revision, self.path)

    def _restored(self) -> None:
        if self._error is not None:
            self._log.info("the %s file is again the one in force, %s", self._what, self._current.revision)
        self._error, self._refused = None, None

    def _refuse(self, seen: _Seen, why: str) -> None:
        since = datetime.fromtimestamp(self._current.loaded_at, UTC).isoformat(timespec="seconds")
        revision = f"{self._what.capitalize()} {self._current.revision}"
        self._refused = seen
        self._error = f"{why}\n{revision}, loaded at {since}, stays in force."
        self._log.error("the %s file was refused: %s", self._what, self._error)


def read_content(path: Path, error: type[ConfigError]) -> bytes:
    """A file's bytes; of one that is too large only enough to tell.

    Raises:
        ConfigError: Of the kind given; the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as failed:
        raise error(f"{path}: cannot be read: {failed.strerror or failed}.") from failed


def decoded(content: bytes, source: str, what: str, error: type[ConfigError]) -> str:
    """A file's bytes as text, a byte order mark included.

    Args:
        content: The bytes.
        source: The file's path, for the message.
        what: What the file would be, in one word.
        error: What to raise.

    Raises:
        ConfigError: Of the kind given; there are too many of them, or they are no UTF-8.
    """
    if len(content) > MAX_BYTES:
        raise error(f"{source}:1: larger than {MAX_BYTES} bytes, so not taken for a {what}.")
    try:
        return content.decode()
    except UnicodeDecodeError as failed:
        line = content.count(b"\n", 0, failed.start) + 1
        raise error(
            f"{source}:{line}: byte 0x{content[failed.start]:02x} is not UTF-8; save the file as UTF-8."
        ) from failed
