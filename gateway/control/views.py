"""What the REST routes answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel

from gateway.evidence.loop_costs import Calibration
from gateway.fleet.declared import Difference, why_refused_by_hand
from gateway.fleet.executors import executors_of
from gateway.fleet.model import Backend, Registered
from gateway.policy.kill_switch import KillSwitch
from gateway.policy.load import PolicySource
from gateway.policy.overlays import Overlay
from gateway.store.model import PolicyRevision, Runner, StoredKey


class FindingView(BaseModel):
    """A probe's answer to one question."""

    capability: str
    support: Literal["yes", "no", "unknown"]
    evidence: str
    value: int | str | list[str] | None


class ExecutorView(BaseModel):
    """Whether prod can be carried out one way."""

    name: str
    possible: bool
    sentence: str


class CalibrationView(BaseModel):
    """What a step of the gateway's loop costs, in seconds; by drafts where it depends on them."""

    model: str
    strategy: str
    drafter: str
    band: str
    instance: str
    measured_at: float
    expires_at: float
    context_tokens: int
    plain_seconds: float
    verify_seconds: dict[int, float]
    draft_seconds: dict[int, float]

    @classmethod
    def of(cls, calibration: Calibration) -> CalibrationView:
        """How `calibration` is shown."""
        key = calibration.key
        return cls(
            model=key.model,
            strategy=key.strategy,
            drafter=key.drafter,
            band=key.band,
            instance=key.instance,
            measured_at=calibration.measured_at,
            expires_at=calibration.expires_at,
            context_tokens=calibration.context_tokens,
            plain_seconds=calibration.plain_seconds,
            verify_seconds=dict(calibration.verify_seconds),
            draft_seconds=dict(calibration.draft_seconds),
        )


class InstanceView(BaseModel):
    """One of a backend's instances.

    Attributes:
        instance: Its URL or address; empty where the backend has but one URL.
        started_at: Unix time at which its process says it was started.
    """

    instance: str
    url: str
    kind: str
    state: Literal["up", "down"]
    state_reason: str
    models: list[str]
    findings: list[FindingView]
    probed_at: float | None
    started_at: float | None
    version: str | None

    @classmethod
    def of(cls, instance: Backend) -> InstanceView:
        """How `instance` is shown."""
        return cls(
            instance=instance.instance,
            url=instance.url,
            kind=instance.kind.value,
            state=instance.state.value,
            state_reason=instance.state_reason,
            models=list(instance.models),
            findings=_findings(instance),
            probed_at=instance.probed_at,
            started_at=instance.process.started_at,
            version=instance.process.version,
        )


def _findings(backend: Backend) -> list[FindingView]:
    return [
        FindingView(
            capability=finding.capability,
            support=finding.support.value,
            evidence=finding.evidence,
            value=finding.value,
        )
        for finding in backend.findings.values()
    ]


class BackendView(BaseModel):
    """A registered backend. State, models and findings are those of all its instances together.

    Attributes:
        url: The first of `urls`.
        declared_by: The file that declares it; null for one registered by hand.
        differing: Findings that its instances do not agree on.
        warnings: What is wrong with it while it serves.
    """

    name: str
    url: str
    urls: list[str]
    discovery: Literal["none", "dns"]
    declared_by: str | None
    declared_kind: str
    kind: str
    state: Literal["up", "down"]
    state_reason: str
    credential: str | None
    tokenizer: str | None
    models: list[str]
    findings: list[FindingView]
    executors: list[ExecutorView]
    calibrations: list[CalibrationView]
    probed_at: float | None
    instances: list[InstanceView]
    differing: list[str]
    warnings: list[str]

    @classmethod
    def of(cls, registered: Registered, calibrations: Sequence[Calibration]) -> BackendView:
        """How a backend is shown, and what was measured on it; its credential as the reference that it is."""
        backend = registered.whole
        return cls(
            name=backend.name,
            url=backend.url,
            urls=list(registered.declaration.urls),
            discovery=registered.declaration.discovery.value,
            declared_by=registered.declared_by,
            declared_kind=backend.declared_kind,
            kind=backend.kind.value,
            state=backend.state.value,
            state_reason=backend.state_reason,
            credential=backend.credential,
            tokenizer=backend.tokenizer,
            models=list(backend.models),
            findings=_findings(backend),
            executors=[
                ExecutorView(name=verdict.name, possible=verdict.possible, sentence=verdict.sentence)
                for verdict in executors_of(backend, calibrations)
            ],
            calibrations=[CalibrationView.of(calibration) for calibration in calibrations],
            probed_at=backend.probed_at,
            instances=[InstanceView.of(instance) for instance in registered.instances],
            differing=[str(capability) for capability in registered.differing],
            warnings=list(registered.warnings()),
        )


class BackendsView(BaseModel):
    """All registered backends."""

    backends: list[BackendView]


class FleetFileView(BaseModel):
    """The fleet file in force.

    Attributes:
        path: Null without a file.
        error: Why what the file holds now is not in force, or not all of it.
        backends: Names of those that it declares.
    """

    path: str | None
    revision: str | None
    loaded_at: float | None
    error: str | None
    backends: list[str]


class ChangeView(BaseModel):
    """A backend that would be declared otherwise: field names to the old and the new value."""

    name: str
    fields: dict[str, tuple[Any, Any]]


class FleetDifferenceView(BaseModel):
    """What a fleet file would change.

    Attributes:
        refused: One sentence for each backend that would stay as it was registered by hand.
    """

    added: list[str]
    changed: list[ChangeView]
    removed: list[str]
    refused: list[str]

    @classmethod
    def of(cls, wanted: Difference) -> FleetDifferenceView:
        """How a difference is shown."""
        return cls(
            added=[declaration.name for declaration in wanted.added],
            changed=[ChangeView(name=change.name, fields=dict(change.fields)) for change in wanted.changed],
            removed=list(wanted.removed),
            refused=[why_refused_by_hand(name) for name in wanted.refused],
        )


class KeyView(BaseModel):
    """A key, without the key."""

    id: str
    name: str
    tenant: str
    prefix: str
    created_at: float
    revoked_at: float | None

    @classmethod
    def of(cls, key: StoredKey) -> KeyView:
        """How `key` is shown."""
        return cls(
            id=key.id,
            name=key.name,
            tenant=key.tenant,
            prefix=key.prefix,
            created_at=key.created_at,
            revoked_at=key.revoked_at,
        )


class KeysView(BaseModel):
    """All keys."""

    keys: list[KeyView]


class IssuedKeyView(BaseModel):
    """A new key, shown this once."""

    id: str
    name: str
    tenant: str
    key: str
    prefix: str


class DraftModelView(BaseModel):
    """The draft model that a runner has loaded."""

    name: str
    fingerprint: str
    vocabulary_size: int


class RunnerView(BaseModel):
    """A draft runner that has joined."""

    url: str
    node: str
    drafters: list[str]
    draft_model: DraftModelView | None
    version: str
    joined_at: float
    seen_at: float
    live: bool

    @classmethod
    def of(cls, runner: Runner, *, live: bool) -> RunnerView:
        """How `runner` is shown."""
        return cls(
            url=runner.url,
            node=runner.node,
            drafters=list(runner.drafters),
            draft_model=DraftModelView(**asdict(runner.draft_model)) if runner.draft_model else None,
            version=runner.version,
            joined_at=runner.joined_at,
            seen_at=runner.seen_at,
            live=live,
        )


class RunnersView(BaseModel):
    """All draft runners."""

    runners: list[RunnerView]


class PolicyView(BaseModel):
    """The policy in force, and why a newer one is not.

    Attributes:
        number: Its place in the history; null while it has none, or the store cannot be asked.
        text: As it was written; null where nobody wrote one.
    """

    source: PolicySource
    path: str | None
    revision: str
    number: int | None
    loaded_at: float
    text: str | None
    error: str | None
    policy: dict[str, Any]


class RevisionView(BaseModel):
    """A policy that has been in force."""

    number: int
    revision: str
    author: str
    reason: str
    source: str
    created_at: float

    @classmethod
    def of(cls, revision: PolicyRevision) -> RevisionView:
        """How `revision` is shown."""
        return cls(**{name: getattr(revision, name) for name in cls.model_fields})


class RevisionTextView(RevisionView):
    """The same with its text."""

    text: str


class HistoryView(BaseModel):
    """Policies that have been in force, newest first."""

    revisions: list[RevisionView]


class DiffView(BaseModel):
    """How two policies differ: a unified diff, empty for equal texts."""

    before: RevisionView
    after: RevisionView
    diff: str


class ExplanationView(BaseModel):
    """What the policy says of a request at one backend."""

    backend: str | None
    decision: dict[str, Any]
    trail: list[str]


class ExplainedView(ExplanationView):
    """The same for the backend that would be chosen, and for every one that serves the model."""

    backends: list[ExplanationView]


class ScopeView(BaseModel):
    """What an overlay holds for; null holds for all."""

    tenant: str | None
    model: str | None
    backend: str | None
    rule: str | None


class OverlayView(BaseModel):
    """An overlay, in force or not."""

    id: str
    kind: str
    scope: ScopeView
    value: str | int | None
    author: str
    reason: str
    created_at: float
    expires_at: float | None
    lifted_at: float | None
    lifted_by: str | None
    holds: bool

    @classmethod
    def of(cls, overlay: Overlay, at: float) -> OverlayView:
        """How `overlay` is shown at Unix time `at`."""
        return cls(**asdict(overlay), holds=overlay.holds(at))


class SwitchView(BaseModel):
    """The kill switch that needs no store.

    Attributes:
        file: Its existence kills.
        thrown: Whether the file or ACE_KILL kills something now.
        error: Why everything is killed although that is not what it says; null when it was understood.
    """

    file: str
    thrown: bool
    error: str | None

    @classmethod
    def of(cls, switch: KillSwitch) -> SwitchView:
        """How `switch` is shown."""
        return cls(file=str(switch.file), thrown=bool(switch.kills), error=switch.error)


class OverlaysView(BaseModel):
    """Overlays, and whether they are all.

    Attributes:
        read: Whether the store's have been read since the start; nothing is speculated before.
    """

    overlays: list[OverlayView]
    read: bool
    switch: SwitchView


class KillView(BaseModel):
    """What is killed now."""

    active: bool
    kills: list[OverlayView]
    read: bool
    switch: SwitchView


class StagesView(BaseModel):
    """Stage records, newest first."""

    stages: list[dict[str, Any]]


class ReadyView(BaseModel):
    """Whether requests may be sent here.

    Attributes:
        reasons: What is missing; empty when ready.
        warnings: What is wrong, and does not keep requests from being served.
    """

    ready: bool
    reasons: list[str]
    warnings: list[str]
