"""Backend, Registered and FleetSnapshot: what is known of the fleet at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from ipaddress import ip_address

from probes.model import Capability, Finding, Support


class EngineKind(StrEnum):
    """Software kinds of model servers that have a probe suite and a dialect."""

    OPENAI = "openai"
    EMBEDDED = "embedded"


class BackendState(StrEnum):
    """Whether traffic may be sent."""

    UP = "up"
    DOWN = "down"


class Discovery(StrEnum):
    """How a backend's instances are found."""

    NONE = "none"
    """Each URL is an instance."""
    DNS = "dns"
    """Each address that the URL's name resolves to is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What an operator says of a backend, checked and in its one spelling.

    Attributes:
        urls: Base URLs without a trailing slash and without `/v1`; at least one, and exactly one to discover.
        kind: `auto` or what it is said to be.
        credential: Reference to the backend's own key (`env:NAME` or `file:PATH`), never the key.
        tokenizer: Path of its model's tokenizer on the gateway's machine; None asks its `/tokenize` instead.
    """

    name: str
    urls: tuple[str, ...]
    discovery: Discovery = Discovery.NONE
    kind: str = "auto"
    credential: str | None = None
    tokenizer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """How one server process is told from another.

    Attributes:
        started_at: Unix time by the server's own clock; None where it does not say.
        version: Of its software; None where it does not say.
    """

    started_at: float | None = None
    version: str | None = None

    def differs(self, other: Process) -> bool:
        """Whether the two are certainly not one process. What one of them does not say decides nothing."""
        pairs = ((self.started_at, other.started_at), (self.version, other.version))
        return any(None not in pair and pair[0] != pair[1] for pair in pairs)

    def __str__(self) -> str:
        said = [] if self.started_at is None else [f"started at {_moment(self.started_at)}"]
        said += [] if self.version is None else [f"version {self.version}"]
        return ", ".join(said) or "unknown"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A registered model server at one of its instances, as looks and probes last saw it.

    Attributes:
        name: The backend's, which its instances share.
        url: Base URL without a trailing slash and without `/v1`.
        instance: Which of several it is, by its URL or address; empty where the backend has but one URL.
        address: IP address to connect to in place of what the URL's name resolves to; None for the latter.
        declared_kind: What the operator said: `auto` or an EngineKind.
        kind: What it is taken for.
        state_reason: Why it is down; empty when up.
        credential: Reference to the backend's own key (`env:NAME` or `file:PATH`), never the key.
        tokenizer: Path of its model's tokenizer on the gateway's machine; None asks its `/tokenize` instead.
        probed_at: Unix time; None before the first probe has ended.
        process: The server process that answers, as far as it says.
        process_since: Unix time from which what is measured on it is of that process; 0 from ever.
    """

    name: str
    url: str
    instance: str = ""
    address: str | None = None
    declared_kind: str = "auto"
    kind: EngineKind = EngineKind.OPENAI
    state: BackendState = BackendState.DOWN
    state_reason: str = "not probed yet"
    credential: str | None = None
    tokenizer: str | None = None
    models: tuple[str, ...] = ()
    findings: Mapping[Capability, Finding] = field(default_factory=dict)
    probed_at: float | None = None
    process: Process = field(default_factory=Process)
    process_since: float = 0.0

    @property
    def key(self) -> str:
        """Names the instance among all of the fleet; the backend's name where it has but one URL."""
        return instance_key(self.name, self.instance)

    @property
    def engine(self) -> str:
        """Its software as tables of engines name it: what the operator said, else what it was taken for."""
        return self.declared_kind if self.declared_kind in ("vllm", "sglang") else str(self.kind)

    def supports(self, capability: Capability) -> Support:
        """The finding's answer; unknown when never asked."""
        finding = self.findings.get(capability)
        return finding.support if finding else Support.UNKNOWN

    @property
    def engine_drafters(self) -> tuple[str, ...]:
        """What the engine itself can draft with: what it lists, or n-gram alone where it lists nothing."""
        finding = self.findings.get(Capability.IN_ENGINE)
        listed = finding.value if finding else None
        return tuple(listed) if isinstance(listed, list) else ("ngram",)


def instance_key(name: str, instance: str) -> str:
    """One word for a backend's instance, by which load and costs are counted."""
    return f"{name}@{instance}" if instance else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A registered backend with all its instances.

    Attributes:
        declared_by: The file that declares it; None for one that was registered by hand.
        instances: In the order of the URLs, or of the addresses. Empty while a name has no address.
        discovery_error: Why the name's addresses are not those of now; empty where they are.
    """

    declaration: Declaration
    declared_by: str | None = None
    instances: tuple[Backend, ...] = ()
    discovery_error: str = ""

    @property
    def name(self) -> str:
        """The backend's."""
        return self.declaration.name

    @property
    def whole(self) -> Backend:
        """The backend as one: up while an instance is, and able to do what all of them are."""
        if len(self.instances) == 1:
            return self.instances[0]
        if not self.instances:
            reason = self.discovery_error or "its name has no address"
            return replace(_unseen(self.declaration, self.declaration.urls[0]), state_reason=reason)
        first = min(self.instances, key=lambda instance: instance.state is not BackendState.UP)
        models = dict.fromkeys(model for instance in self.instances for model in instance.models)
        return replace(
            first,
            url=self.declaration.urls[0],
            instance="",
            address=None,
            state_reason="" if first.state is BackendState.UP else self._why_all_are_down(),
            models=tuple(models),
            findings=self._common_findings(),
            probed_at=max((i.probed_at for i in self.instances if i.probed_at is not None), default=None),
        )

    @property
    def differing(self) -> tuple[Capability, ...]:
        """The questions that its instances answer differently."""
        asked = dict.fromkeys(name for instance in self._asked for name in instance.findings)
        return tuple(name for name in asked if len({i.supports(name) for i in self._asked}) > 1)

    def warnings(self) -> Iterator[str]:
        """What is wrong with it while it serves, and what an operator can do about it."""
        if self.discovery_error:
            yield f"backend {self.name}: its instances are those of before: {self.discovery_error}"
        for instance in self.instances:
            if instance.supports(Capability.SINGLE_PROCESS) is Support.NO:
                yield (
                    f"backend {instance.key}: {instance.findings[Capability.SINGLE_PROCESS].evidence}. Its "
                    "counters are unknown and gateway_loop is off there. Register each server by its own "
                    "URL, or a headless name with `discovery: dns`."
                )

    @property
    def _asked(self) -> tuple[Backend, ...]:
        """The instances whose findings are of now: those that are up, or all while none is."""
        return tuple(i for i in self.instances if i.state is BackendState.UP) or self.instances

    def _common_findings(self) -> Mapping[Capability, Finding]:
        """Where instances differ, the least that one of them can do, with what each of them says."""
        common = {name: found for i in reversed(self._asked) for name, found in i.findings.items()}
        for name in self.differing:
            supports = [instance.supports(name) for instance in self._asked]
            said = ", ".join(f"{i.instance} {i.supports(name)}" for i in self._asked)
            least = min(supports, key=_LEAST_FIRST.index)
            common[name] = Finding(capability=name, support=least, evidence=f"its instances differ: {said}")
        return common

    def _why_all_are_down(self) -> str:
        return "; ".join(f"{instance.instance}: {instance.state_reason}" for instance in self.instances)


_LEAST_FIRST = (Support.NO, Support.UNKNOWN, Support.YES)


def instances_at(
    declaration: Declaration, addresses: Iterable[str], known: Iterable[Backend], at: float
) -> tuple[Backend, ...]:
    """The instances of a backend. What was known of those that stay is kept.

    Args:
        declaration: Of the backend.
        addresses: What the name resolves to, where instances are discovered by it.
        known: The instances so far.
        at: Unix time; what was measured before at the place of one that is new is not of it.
    """
    places: list[tuple[str, str, str | None]]
    if declaration.discovery is Discovery.DNS:
        places = [(declaration.urls[0], address, address) for address in addresses]
    else:
        several = len(declaration.urls) > 1
        places = [(url, url if several else "", None) for url in declaration.urls]
    by_place = {(backend.url, backend.address): backend for backend in known}
    return tuple(
        replace(
            by_place.get((url, address)) or replace(_unseen(declaration, url), process_since=at),
            instance=instance,
            address=address,
            declared_kind=declaration.kind,
            credential=declaration.credential,
            tokenizer=declaration.tokenizer,
        )
        for url, instance, address in places
    )


def in_order(declaration: Declaration, instances: Iterable[Backend]) -> tuple[Backend, ...]:
    """Instances in the order of their URLs, or of their addresses."""
    if declaration.discovery is Discovery.DNS:
        return tuple(sorted(instances, key=lambda instance: int(ip_address(instance.instance))))
    return tuple(sorted(instances, key=lambda instance: declaration.urls.index(instance.url)))


def _unseen(declaration: Declaration, url: str) -> Backend:
    return Backend(
        name=declaration.name,
        url=url,
        declared_kind=declaration.kind,
        credential=declaration.credential,
        tokenizer=declaration.tokenizer,
    )


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The fleet at one moment: every backend at each of its instances. A request takes one and keeps it."""

    backends: tuple[Backend, ...] = ()

    def serving(self, model: str) -> tuple[Backend, ...]:
        """Instances that list `model`, those that are up first."""
        found = [b for b in self.backends if model in b.models]
        return tuple(sorted(found, key=lambda b: b.state is not BackendState.UP))
