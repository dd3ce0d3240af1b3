"""Frozen settings from flags and environment; a variable that is not known is an error naming the nearest."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from gateway.errors import SettingsError

CLIENT_VARIABLES = frozenset({"ACE_GATEWAY_URL", "ACE_TOKEN"})
"""Read by the commands that talk to a gateway; `ace serve` lets them pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that can be set from outside. Field `name` is the environment variable `ACE_NAME`.

    Attributes:
        host: Address to listen on. Other than loopback needs keys or an admin token.
        data_dir: Holds the store, `runner.token` and counters; made when absent.
        policy_path: The policy file; None means everything is off.
        fleet_path: The fleet file, which declares backends; None means they are registered by hand alone.
        workers: Processes that serve.
        store_url: SQLAlchemy URL; empty means SQLite in `data_dir`.
        admin_token: Operator's token; None means one is made at first start.
        runner_token: Shared with draft runners; None means one is made in `data_dir/runner.token`.
        first_byte_timeout_s: Longest wait for a backend's answer to begin.
        idle_timeout_s: Longest silence within a backend's answer.
        retention_days: Stage records older than this are deleted.
        retention_rows: Stage records beyond this many are deleted, oldest first.
        shadow_queue: Finished answers that may wait for replay; more are skipped and counted.
        policy_source: `file`, or `store`: the policy is then kept there, and `policy_path` only begins it.
        kill: What is killed as long as the gateway runs, in the words of the kill file.
        kill_file: A file whose existence kills; None means `kill` in `data_dir`.
        operations_port: Port of `/healthz`, `/readyz` and `/metrics`; None serves them with everything else.
        drain_delay_s: When told to stop, how long connections are still taken, while `/readyz` says 503.
        drain_timeout_s: How long requests under way may then take before they are cut.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    data_dir: Path
    policy_path: Path | None = None
    fleet_path: Path | None = None
    workers: int = 1
    store_url: str = field(default="", repr=False)
    admin_token: str | None = field(default=None, repr=False)
    runner_token: str | None = field(default=None, repr=False)
    max_body_bytes: int = 32 * 2**20
    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 600.0
    idle_timeout_s: float = 120.0
    retention_days: float = 7.0
    retention_rows: int = 1_000_000
    shadow_queue: int = 256
    policy_source: str = "file"
    kill: str | None = None
    kill_file: Path | None = None
    operations_port: int | None = None
    drain_delay_s: float = 0.0
    drain_timeout_s: float = 60.0

    @classmethod
    def load(cls, env: Mapping[str, str], **flags: object) -> Settings:
        """Settings from `env`, over which flags that are not None win. An empty variable is an unset one.

        Raises:
            SettingsError: Names every variable that is not known or has a value that is not allowed.
        """
        given = _from_environment(env) | {name: flag for name, flag in flags.items() if flag is not None}
        values: dict[str, Any] = {} if "data_dir" in given else {"data_dir": default_data_dir(env)}
        complaints = _unknown(env)
        for name, value in given.items():
            try:
                values[name] = ALLOWED[name].read(str(value).strip())
            except ValueError:
                complaints.append(_not_allowed(name, str(value)))
        if complaints:
            raise SettingsError("\n".join(complaints))
        return cls(**values)

    def shown(self) -> dict[str, str | None]:
        """Every setting as text, for people to read: of a secret only whether it is set."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: None if value in (None, "") else "set" if ALLOWED[name].secret else str(value)
            for name, value in values.items()
        }

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def database_url(self) -> str:
        """The store's SQLAlchemy URL."""
        return self.store_url or f"sqlite:///{self.data_dir.resolve() / 'ace.db'}"

    @property
    def kill_path(self) -> Path:
        """The file whose existence kills."""
        return (self.kill_file or self.data_dir / "kill").absolute()

    @property
    def runner_token_file(self) -> Path:
        """Where a draft runner on this machine finds its token."""
        return self.data_dir / "runner.token"


def default_data_dir(env: Mapping[str, str]) -> Path:
    """The user's own data folder, as the XDG base directories say.

    Raises:
        SettingsError: The user has none, as users in containers do.
    """
    try:
        home = env.get("XDG_DATA_HOME") or str(Path(env.get("HOME") or Path.home()) / ".local" / "share")
    except RuntimeError as error:
        raise SettingsError(
            "This user has no home folder. Name a folder with --data or ACE_DATA_DIR."
        ) from error
    return Path(home) / "ace-gateway"


@dataclass(frozen=True, slots=True)
class _Allowed:
    """What a setting may be, in words and as the function that refuses the rest with ValueError."""

    words: str
    read: Callable[[str], object]
    secret: bool = False


def _number(kind: type[int] | type[float], low: float, high: float) -> _Allowed:
    def read(text: str) -> float:
        value = kind(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    words = "a whole number" if kind is int else "a number"
    return _Allowed(f"{words} from {low:.15g} to {high:.15g}", read)


def _text(pattern: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(text)
        return text

    return read


def _path(text: str) -> Path:
    if not text:
        raise ValueError(text)
    return Path(text).expanduser()


_PATH = _Allowed("a path", _path)
_SECONDS = _number(float, 0.001, 86_400)
_TOKEN = _Allowed("16 to 200 letters, digits, '-', '_' or '.'", _text(r"[A-Za-z0-9._-]{16,200}"), secret=True)

ALLOWED: Mapping[str, _Allowed] = {
    "host": _Allowed("an address or host name", _text(r"\S+")),
    "port": _number(int, 0, 65_535),
    "data_dir": _PATH,
    "policy_path": _PATH,
    "fleet_path": _PATH,
    "workers": _number(int, 1, 64),
    "store_url": _Allowed("a SQLAlchemy URL such as postgresql://...", _text(r"\S+://\S*"), secret=True),
    "admin_token": _TOKEN,
    "runner_token": _TOKEN,
    "max_body_bytes": _number(int, 1024, 2**31),
    "connect_timeout_s": _SECONDS,
    "first_byte_timeout_s": _SECONDS,
    "idle_timeout_s": _SECONDS,
    "retention_days": _number(float, 0.01, 3650),
    "retention_rows": _number(int, 100, 100_000_000),
    "shadow_queue": _number(int, 1, 100_000),
    "policy_source": _Allowed("file or store", _text("file|store")),
    # Any text: whoever throws the switch must not be refused. What is not understood kills everything.
    "kill": _Allowed("all, or lines `tenant NAME`, `model NAME`, `backend NAME`", str),
    "kill_file": _PATH,
    "operations_port": _number(int, 0, 65_535),
    "drain_delay_s": _number(float, 0, 3600),
    "drain_timeout_s": _number(float, 0, 86_400),
}
"""What each field of Settings may be."""


def _variable(name: str) -> str:
    return f"ACE_{name.upper()}"


def _from_environment(env: Mapping[str, str]) -> dict[str, object]:
    given = {name: env.get(_variable(name), "") for name in ALLOWED}
    return {
        name: text for name, text in given.items() if text and not _from_kubernetes(_variable(name), text)
    }


def _from_kubernetes(variable: str, text: str) -> bool:
    """Whether Kubernetes set it, as it does in every pod beside a Service whose name begins with `ace`."""
    return bool(
        re.search(r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$", variable)
        or (variable.endswith("_PORT") and re.match(r"(tcp|udp|sctp)://", text))
    )


def _unknown(env: Mapping[str, str]) -> list[str]:
    known = sorted({_variable(name) for name in ALLOWED} | CLIENT_VARIABLES)
    strange = sorted(name for name in env if name.startswith("ACE_") and name not in known)
    return [_unknown_variable(name, known) for name in strange if not _from_kubernetes(name, env[name])]


def _unknown_variable(name: str, known: list[str]) -> str:
    nearest = get_close_matches(name, known, n=1)
    hint = f" Did you mean {nearest[0]}?" if nearest else ""
    return f"environment: {name} is not a setting.{hint} Known: {', '.join(known)}."


def _not_allowed(name: str, text: str) -> str:
    shown = "set to something else" if ALLOWED[name].secret else repr(text)
    return f"setting {name} ({_variable(name)}) is {shown}; allowed: {ALLOWED[name].words}."
