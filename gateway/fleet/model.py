"""Backend and FleetSnapshot: what is known of the fleet at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from probes.model import Capability, Finding, Support


class EngineKind(StrEnum):
    """Software kinds of model servers that have a probe suite and a dialect."""

    OPENAI = "openai"
    EMBEDDED = "embedded"


class BackendState(StrEnum):
    """Whether traffic may be sent."""

    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A registered model server as probes last saw it.

    Attributes:
        url: Base URL without a trailing slash and without `/v1`.
        declared_kind: What the operator said: `auto` or an EngineKind.
        kind: What it is taken for.
        state_reason: Why it is down; empty when up.
        credential: Reference to the backend's own key (`env:NAME` or `file:PATH`), never the key.
        tokenizer: Path of its model's tokenizer on the gateway's machine; None asks its `/tokenize` instead.
        probed_at: Unix time; None before the first probe has ended.
    """

    name: str
    url: str
    declared_kind: str = "auto"
    kind: EngineKind = EngineKind.OPENAI
    state: BackendState = BackendState.DOWN
    state_reason: str = "not probed yet"
    credential: str | None = None
    tokenizer: str | None = None
    models: tuple[str, ...] = ()
    findings: Mapping[Capability, Finding] = field(default_factory=dict)
    probed_at: float | None = None

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


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The fleet at one moment. A request takes one and keeps it."""

    backends: tuple[Backend, ...] = ()

    def serving(self, model: str) -> tuple[Backend, ...]:
        """Backends that list `model`, those that are up first."""
        found = [b for b in self.backends if model in b.models]
        return tuple(sorted(found, key=lambda b: b.state is not BackendState.UP))
