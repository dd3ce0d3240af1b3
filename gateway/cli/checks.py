"""What `ace doctor` looks at: one small function for each part, over answers that were gathered before."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from prometheus_client.parser import text_string_to_metric_families

import gateway
from gateway.policy.kill_switch import SWITCH_ID

State = Literal["ok", "warning", "problem"]
OK: State = "ok"
WARNING: State = "warning"
PROBLEM: State = "problem"

Answer = Mapping[str, Any]

_PYTHON = ((3, 11), (3, 13))
_OPTIONAL = {
    "torch": "draft runner and embedded backend: pip install 'ace-gateway[draft]'",
    "asyncpg": "PostgreSQL as the store: pip install asyncpg",
}
_SKEW_S = 2.0
_LITTLE_ROOM = 2**30
_NO_ROOM = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found of one part.

    Attributes:
        part: Its name; backends and runners have one each.
        state: `warning` is worth a look, and nothing is lost while it waits.
        cause: What was seen.
        next_command: What to type next; empty where there is nothing to do.
    """

    part: str
    state: State
    cause: str
    next_command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Every answer that the checks look at; what could not be had is None.

    Attributes:
        settings_error: Why the settings of this shell cannot be used.
        policy_error: Why the policy file that was named is refused; empty when it is good.
        policy_path: The file that was named.
        store: A look at the database from here, where the gateway does not answer.
        gateway_error: Why the gateway could not be asked.
        token_error: Why the gateway's routes for operators could not be asked.
        ready, installation, policy, overlays, backends, runners: What its routes answered.
        metrics: Its page for Prometheus.
        skew_s: Its clock minus this one, in seconds.
    """

    settings_error: str | None = None
    policy_error: str | None = None
    policy_path: str | None = None
    store: Answer | None = None
    gateway_error: str | None = None
    token_error: str | None = None
    ready: Answer | None = None
    installation: Answer | None = None
    policy: Answer | None = None
    overlays: Sequence[Answer] | None = None
    backends: Sequence[Answer] | None = None
    runners: Sequence[Answer] | None = None
    metrics: str | None = None
    skew_s: float | None = None


def diagnose(gathered: Gathered) -> list[Diagnosis]:
    """What every check says, in the table's order."""
    return [diagnosis for check in CHECKS for diagnosis in check(gathered)]


def installation(gathered: Gathered) -> Iterator[Diagnosis]:
    """The program that is running this."""
    python = sys.version_info
    said = f"ace-gateway {gateway.__version__}, Python {python.major}.{python.minor}.{python.micro}"
    missing = [what for module, what in _OPTIONAL.items() if importlib.util.find_spec(module) is None]
    said += "".join(f"; not installed: {what}" for what in missing)
    low, high = _PYTHON
    if low <= python[:2] <= high:
        yield Diagnosis("installation", OK, said)
    else:
        wanted = f"Python {low[0]}.{low[1]} to {high[0]}.{high[1]} is what it is tested with"
        yield Diagnosis("installation", WARNING, f"{said}; {wanted}", "python3.11 -m venv .venv")
    other = (gathered.installation or {}).get("version", gateway.__version__)
    if other != gateway.__version__:
        cause = f"the gateway is version {other}, and this command is {gateway.__version__}"
        yield Diagnosis("installation", WARNING, cause, f"pip install ace-gateway=={other}")


def settings(gathered: Gathered) -> Iterator[Diagnosis]:
    """Variables of this shell, which a gateway started from it would use."""
    if gathered.settings_error:
        yield Diagnosis("settings", PROBLEM, gathered.settings_error, "ace serve --help")
    else:
        yield Diagnosis("settings", OK, "every ACE_* variable of this shell is known and allowed")


def policy(gathered: Gathered) -> Iterator[Diagnosis]:
    """The file that was named, and the policy in force."""
    if gathered.policy_error:
        check = f"ace policy check {gathered.policy_path}"
        yield Diagnosis("policy file", PROBLEM, gathered.policy_error, check)
    elif gathered.policy_path:
        yield Diagnosis("policy file", OK, f"{gathered.policy_path} is valid")
    held = gathered.policy
    if held is None:
        return
    said = f"revision {held['revision']}, source {held['source']}, in force since {_time(held['loaded_at'])}"
    if held["error"]:
        yield Diagnosis("policy", PROBLEM, held["error"], f"ace policy check {held['path'] or 'FILE'}")
    elif held["source"] == "default":
        yield Diagnosis("policy", WARNING, "no policy was given, so everything is off", "ace init")
    else:
        yield Diagnosis("policy", OK, said)


def overlays(gathered: Gathered) -> Iterator[Diagnosis]:
    """What operators have taken away from what the policy allows."""
    if gathered.overlays is None:
        return
    for overlay in gathered.overlays:
        since = _time(overlay["created_at"])
        said = f"{overlay['kind']} by {overlay['author']} since {since}: {overlay['reason']}"
        if overlay["kind"] == "kill":
            by_file = overlay["id"] == SWITCH_ID
            yield Diagnosis("overlays", WARNING, said, "rm KILL_FILE" if by_file else "ace kill --lift")
        else:
            yield Diagnosis("overlays", OK, said)
    if not gathered.overlays:
        yield Diagnosis("overlays", OK, "none: the policy holds as it stands")


def store(gathered: Gathered) -> Iterator[Diagnosis]:
    """The database."""
    look = (gathered.installation or {}).get("store") or gathered.store
    if look is None:
        return
    room = (
        ""
        if look["bytes_free"] is None
        else f", {_size(look['bytes_used'])}, {_size(look['bytes_free'])} free"
    )
    said = f"{look['label']}, revision {look['revision']}{room}"
    folder = "df -h" if look["bytes_free"] is not None else "ace doctor"
    if look["error"]:
        yield Diagnosis("store", PROBLEM, look["error"], "ace serve" if gathered.gateway_error else folder)
    elif look["revision"] != look["newest"]:
        cause = f"{said}; this version needs {look['newest']}"
        yield Diagnosis("store", PROBLEM, cause, "ace serve   # migrates at its start")
    elif look["bytes_free"] is not None and look["bytes_free"] < _LITTLE_ROOM:
        state = PROBLEM if look["bytes_free"] < _NO_ROOM else WARNING
        yield Diagnosis("store", state, f"{said}: the disk is nearly full", "df -h; lower ACE_RETENTION_DAYS")
    else:
        yield Diagnosis("store", OK, said)


def the_gateway(gathered: Gathered) -> Iterator[Diagnosis]:
    """Whether it answers, is ready, and what it warns of."""
    if gathered.gateway_error:
        cause = f"{gathered.gateway_error} Backends, draft runners, spans and its clock were not looked at."
        yield Diagnosis("gateway", PROBLEM, cause, "ace serve")
        return
    if gathered.token_error:
        yield Diagnosis("gateway", PROBLEM, gathered.token_error, "export ACE_TOKEN=...; ace doctor")
    if gathered.ready is None:
        return
    if not gathered.ready["ready"]:
        for reason in gathered.ready["reasons"]:
            yield Diagnosis("gateway", PROBLEM, f"not ready: {reason}", "ace doctor   # again in a moment")
    else:
        yield Diagnosis("gateway", OK, "it is ready to serve requests")
    own = (gathered.policy or {}).get("error")
    for warning in gathered.ready["warnings"]:
        # What the part's own check says already is not said twice.
        if warning != own:
            yield Diagnosis("gateway", WARNING, warning, "ace support-bundle")


def records(gathered: Gathered) -> Iterator[Diagnosis]:
    """What was lost since the gateway started."""
    if gathered.metrics is None:
        return
    lost = dict(_dropped(gathered.metrics))
    for sink, count in lost.items():
        cause = f"{count:.0f} records were lost by {sink} since the gateway started"
        yield Diagnosis("records", WARNING, cause, _NEXT_OF_SINK.get(sink, "ace support-bundle"))
    if not lost:
        yield Diagnosis("records", OK, "none was lost since the gateway started")


_NEXT_OF_SINK = {
    "store": "df -h   # a full disk or a database that is down",
    "spans": "ace doctor   # see the line about spans",
    "log_lines": "ls -l /proc/PID/fd/1   # who reads the gateway's stdout, and does it",
}


def runners(gathered: Gathered) -> Iterator[Diagnosis]:
    """Every draft runner that has joined within a day."""
    if gathered.runners is None:
        return
    if not gathered.runners:
        needed = _modes(gathered) & {"shadow"}
        cause = "none has joined" + (", so no shadow request is measured" if needed else "")
        yield Diagnosis(
            "draft runners", WARNING if needed else OK, cause, "ace draft-runner" if needed else ""
        )
    for runner in gathered.runners:
        part = f"draft runner {runner['url']}"
        drafters = ", ".join(runner["drafters"]) or "none"
        said = f"version {runner['version']} on {runner['node']}, drafters {drafters}"
        if not runner["live"]:
            cause = f"last heard of at {_time(runner['seen_at'])}; {said}"
            yield Diagnosis(part, WARNING, cause, "ace draft-runner --gateway URL   # on its machine")
        elif gathered.installation and runner["version"] != gathered.installation["version"]:
            cause = f"{said}; the gateway is version {gathered.installation['version']}"
            yield Diagnosis(
                part, WARNING, cause, f"pip install ace-gateway=={gathered.installation['version']}"
            )
        else:
            yield Diagnosis(part, OK, said)


def backends(gathered: Gathered) -> Iterator[Diagnosis]:
    """Every registered backend, with what keeps executors from being possible."""
    if gathered.backends is None:
        return
    if not gathered.backends:
        yield Diagnosis("backends", PROBLEM, "none is registered", "ace backends add NAME URL")
    for backend in gathered.backends:
        part, name = f"backend {backend['name']}", backend["name"]
        looked = (
            f"last looked at {_time(backend['probed_at'])}" if backend["probed_at"] else "never looked at"
        )
        missing = " ".join(e["sentence"] for e in backend["executors"] if not e["possible"])
        if backend["state"] != "up":
            yield Diagnosis(
                part, PROBLEM, f"down: {backend['state_reason']} ({looked})", f"ace backends probe {name}"
            )
        elif "prod" in _modes(gathered) and not any(e["possible"] for e in backend["executors"]):
            yield Diagnosis(
                part, WARNING, f"up, and prod is not possible: {missing}", f"ace backends show {name}"
            )
        else:
            yield Diagnosis(part, OK, f"up, {looked}. {missing}".rstrip())


def spans(gathered: Gathered) -> Iterator[Diagnosis]:
    """Where spans go, as the gateway reaches it."""
    if gathered.installation is None:
        return
    url, error = gathered.installation["spans"]["url"], gathered.installation["spans"]["error"]
    if url is None:
        yield Diagnosis("spans", OK, "none are exported: OTEL_EXPORTER_OTLP_ENDPOINT is not set")
    elif error:
        yield Diagnosis("spans", PROBLEM, f"{url} does not take them: {error}", f"curl -i {url}")
    else:
        yield Diagnosis("spans", OK, f"{url} takes them")


def clock(gathered: Gathered) -> Iterator[Diagnosis]:
    """The gateway's clock beside this one."""
    if gathered.skew_s is None:
        return
    said = f"the gateway's clock differs from this machine's by {abs(gathered.skew_s):.1f} s"
    if abs(gathered.skew_s) > _SKEW_S:
        yield Diagnosis("clock", WARNING, said, "timedatectl   # on both machines")
    else:
        yield Diagnosis("clock", OK, said)


CHECKS: tuple[Callable[[Gathered], Iterator[Diagnosis]], ...] = (
    installation,
    settings,
    the_gateway,
    policy,
    overlays,
    store,
    backends,
    runners,
    records,
    spans,
    clock,
)
"""In the order in which they are shown."""


def _dropped(page: str) -> Iterator[tuple[str, float]]:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "ace_records_dropped_total" and sample.value:
                yield sample.labels["sink"], sample.value


def _modes(gathered: Gathered) -> set[str]:
    """The modes that rules of the policy in force ask for."""
    held = (gathered.policy or {}).get("policy") or {}
    return {str(rule.get("mode")) for rule in held.get("rules", ())}


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
