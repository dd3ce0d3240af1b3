"""The kill switch that needs no store: a file whose existence kills, and the variable ACE_KILL.

Whoever reaches for it is in a hurry, so whatever cannot be read or understood kills everything, and says so.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.policy.overlays import Overlay, OverlayKind, Scope

MAX_BYTES = 64 * 1024
EVERYTHING = "all"
SWITCH_ID = "switch"
"""The id of kills that no store holds."""

_SCOPES = ("tenant", "model", "backend")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Switched:
    """What the switch says.

    Attributes:
        kills: Empty while it is not thrown.
        error: Why everything is killed although that is not what it says; None when it was understood.
    """

    kills: tuple[Overlay, ...] = ()
    error: str | None = None


class NotUnderstood(ValueError):
    """A line that names no scope; the message says which, and what is allowed."""


def scopes_in(text: str) -> tuple[Scope, ...]:
    """What a switch's text kills; without a line that says something, everything.

    Raises:
        NotUnderstood: A line is neither `all` nor one of `tenant NAME`, `model NAME` and `backend NAME`.
    """
    scopes = tuple(
        _scope(number, line)
        for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), start=1)
        if (line := raw.strip()) and not line.startswith("#")
    )
    return scopes or (Scope(),)


def line_of(scope: Scope) -> str:
    """The line by which a switch's text says `scope`.

    Raises:
        NotUnderstood: There is none.
    """
    named = [f"{name} {value}" for name in _SCOPES if (value := getattr(scope, name)) is not None]
    if len(named) > 1:
        raise NotUnderstood("a line of the kill file names one of tenant, model and backend, not several")
    line = named[0] if named else EVERYTHING
    if scopes_in(line) != (scope,):
        raise NotUnderstood(f"a line of the kill file cannot name {line[:80]!r}")
    return line


class KillSwitch:
    """Looks at the file again and again, and holds what it says.

    The file is read through its path each time, so a ConfigMap's swap is an ordinary change.

    Args:
        file: Its existence kills; it need not exist.
        variable: The value of ACE_KILL, None without one. It does not change while the process runs.
        clock: Unix time.
    """

    def __init__(self, file: Path, variable: str | None, clock: Callable[[], float]) -> None:
        self.file = file
        self._clock = clock
        self._variable = Switched() if variable is None else _switched(variable, "ACE_KILL", clock())
        self._file = Switched()
        self._seen: object = None
        if self._variable.kills:
            _log(self._variable, "ACE_KILL")
        self.check_once()

    @property
    def kills(self) -> tuple[Overlay, ...]:
        """What is killed."""
        return (*self._variable.kills, *self._file.kills)

    @property
    def error(self) -> str | None:
        """Why everything is killed although nobody said so plainly; None when all was understood."""
        return self._variable.error or self._file.error

    def check_once(self) -> bool:
        """One look at the file; whether it says something else than at the look before."""
        seen = _look(self.file)
        if seen == self._seen:
            return False
        self._seen = seen
        self._file = _read(seen, str(self.file), self._clock())
        _log(self._file, str(self.file))
        return True


def _look(file: Path) -> bytes | str | None:
    """The file's bytes; as text why there are none; None when there is no file."""
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return "it is a link to nothing" if file.is_symlink() else None
    except OSError as error:
        return error.strerror or type(error).__name__


def _read(seen: bytes | str | None, where: str, at: float) -> Switched:
    if seen is None:
        return Switched()
    if isinstance(seen, str):
        return _everything(where, f"{where} cannot be read ({seen})", at)
    if len(seen) > MAX_BYTES:
        return _everything(where, f"{where} is larger than {MAX_BYTES} bytes", at)
    try:
        return _switched(seen.decode(), where, at)
    except UnicodeDecodeError:
        return _everything(where, f"{where} is not UTF-8", at)


def _switched(text: str, where: str, at: float) -> Switched:
    try:
        scopes = scopes_in(text)
    except NotUnderstood as error:
        return _everything(where, f"{where}: {error}", at)
    return Switched(tuple(_kill(scope, where, "switched off by hand", at) for scope in scopes))


def _everything(where: str, why: str, at: float) -> Switched:
    error = f"{why}, so everything is killed"
    return Switched((_kill(Scope(), where, error, at),), error)


def _kill(scope: Scope, where: str, reason: str, at: float) -> Overlay:
    return Overlay(
        id=SWITCH_ID, kind=OverlayKind.KILL, scope=scope, author=where, reason=reason, created_at=at
    )


def _scope(number: int, line: str) -> Scope:
    if line.casefold() == EVERYTHING:
        return Scope()
    word, _, name = line.partition(" ")
    if word not in _SCOPES or not name.strip():
        allowed = ", ".join(f"`{scope} NAME`" for scope in _SCOPES)
        raise NotUnderstood(f"line {number} is {line[:80]!r}; allowed are `{EVERYTHING}`, {allowed}")
    return Scope(**{word: name.strip()})


def _log(said: Switched, where: str) -> None:
    if said.error:
        logger.error("kill switch: %s", said.error)
    elif said.kills:
        killed = "; ".join(str(kill.scope) for kill in said.kills)
        logger.warning("kill switch: %s kills %s", where, killed)
    else:
        logger.info("kill switch: %s kills nothing", where)


def write_file(file: Path, scope: Scope, comment: str) -> str:
    """Have the file kill `scope` besides what it kills already; what it kills then, in words.

    Raises:
        NotUnderstood: A line cannot say the scope.
        OSError: The file cannot be read or written.
    """
    line = line_of(scope)
    before = ""
    if file.exists():
        try:
            before = file.read_bytes().decode()
        except UnicodeDecodeError:
            return str(Scope())
        # A line added to a file that kills everything could narrow that.
        if _kills_everything(before):
            return str(Scope())
    kept = [f"{before.rstrip()}\n"] if before else []
    text = "".join([*kept, f"# {' '.join(comment.split())}\n", f"{line}\n"])
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft.write_text(text, encoding="utf-8")
    draft.replace(file)
    return str(Scope()) if _kills_everything(text) else "; ".join(map(str, scopes_in(text)))


def _kills_everything(text: str) -> bool:
    try:
        return Scope() in scopes_in(text)
    except NotUnderstood:
        return True


def remove_file(file: Path) -> None:
    """Take the file away; one that is not there is no error.

    Raises:
        OSError: It cannot be removed.
    """
    file.unlink(missing_ok=True)
