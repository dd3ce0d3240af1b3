"""All metric names in one table, and how a record moves them.

Shadow's counts are what would have been, prod's are what was: the `mode` label keeps `ace_spec_*` of the two
in different series. Label values come from what the operator registered or from our own words; everything
else is `other`, and tenants are never a label.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from gateway.errors import GatewayError
from gateway.evidence.comparable import speed_counts
from gateway.fleet.model import BackendState, FleetSnapshot
from gateway.policy.model import MAX_LOOKAHEAD, Action, Policy
from gateway.telemetry.record import AccessRecord, StageRecord

_WHERE = ("model", "backend", "rule")
_SPEC = ("mode", *_WHERE, "drafter", "executor")

COUNTERS: dict[str, tuple[tuple[str, ...], str]] = {
    "ace_requests_total": (
        ("mode", "outcome", "model", "backend"),
        "Requests by how they ended: status_4xx and status_5xx are a backend's own answers, relayed whole.",
    ),
    "ace_spec_steps_total": (_SPEC, "Passes that verified at least one draft; would-be in mode shadow."),
    "ace_spec_draft_tokens_total": (_SPEC, "Proposed draft tokens; would-be in mode shadow."),
    "ace_spec_accepted_tokens_total": (
        _SPEC,
        "Accepted draft tokens, without bonus and correction; would-be in mode shadow.",
    ),
    "ace_spec_accepted_by_position_total": (
        ("position", *_SPEC),
        "Steps that accepted the draft at this position, counted from 0; would-be in mode shadow.",
    ),
    "ace_decode_tokens_total": (
        ("arm", *_WHERE),
        "Tokens of comparable prod answers after the first emission: arm spec or control.",
    ),
    "ace_decode_seconds_total": (
        ("arm", *_WHERE),
        "Seconds in which ace_decode_tokens_total were decoded: arm spec or control.",
    ),
    "ace_spec_bypass_total": (("reason", *_WHERE), "Prod requests that were not to be speculated."),
    "ace_shadow_skipped_total": (("reason", *_WHERE), "Shadow requests that were not measured."),
    "ace_truncated_streams_total": (
        ("backend",),
        "Answers that the backend broke off after their first byte.",
    ),
    "ace_records_dropped_total": (("sink",), "Records that a sink could not take."),
}
HISTOGRAMS: dict[str, tuple[tuple[str, ...], str]] = {
    "ace_overhead_seconds": (("mode",), "Time spent in the gateway itself before the backend was called."),
}
GAUGES: dict[str, tuple[tuple[str, ...], str]] = {
    "ace_backend_state": (("backend",), "1 while the backend is up, 0 while it is down."),
    "ace_backend_instances": (
        ("backend", "state"),
        "Instances of the backend that are up or down; a name without an address counts as one that is down.",
    ),
    "ace_fleet_rejected": (
        (),
        "1 while the fleet file, or a backend in it, is refused and what was in force before stays.",
    ),
    "ace_policy_rejected": ((), "1 while the policy file is refused and the last good policy is in force."),
    "ace_policy_loaded_timestamp_seconds": (
        ("revision",),
        "Unix time at which the policy in force was loaded, by its revision.",
    ),
    "ace_kill_active": ((), "Kills in force, those of the file switch among them."),
}

MAX_LABEL_VALUES = 200
"""Values of one label that a worker process ever shows."""

_OVERHEAD_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_OTHER = "other"
_NONE = "none"


class LoadedPolicyView(Protocol):
    """The part of a LoadedPolicy that bounds labels, and that a gauge shows."""

    @property
    def revision(self) -> str:
        """Its name."""

    @property
    def loaded_at(self) -> float:
        """Unix time."""

    @property
    def policy(self) -> Policy:
        """The policy in force."""


class PolicyView(Protocol):
    """The part of a PolicyHolder that metrics show."""

    @property
    def current(self) -> LoadedPolicyView:
        """The last good policy."""

    @property
    def error(self) -> str | None:
        """Why the file on disk was refused; None when it is in force."""


class FleetFileView(Protocol):
    """The part of a FleetHolder that metrics show."""

    @property
    def error(self) -> str | None:
        """Why the file on disk is not in force; None when it is."""


class Metrics:
    """Prometheus series of one gateway, over all its worker processes.

    Args:
        fleet: The current snapshot; its backends and models are the only ones to become labels.
        policy: The policy holder; its rules are the only ones to become labels.
        kills: How many are in force.
        fleet_file: The holder of the fleet file; None without one.
        multiprocess_dir: Folder that all workers share, PROMETHEUS_MULTIPROC_DIR of their environment;
            None for a single process. Clean at start of the gateway, or counts go on from the last run.
    """

    def __init__(
        self,
        *,
        fleet: Callable[[], FleetSnapshot],
        policy: PolicyView,
        kills: Callable[[], int],
        fleet_file: FleetFileView | None = None,
        multiprocess_dir: Path | None = None,
    ) -> None:
        # The `_created` series double the page, and exist only without worker processes.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # not annotated upstream
        own = CollectorRegistry()
        self._counters = {
            name: Counter(name, text, labels, registry=own) for name, (labels, text) in COUNTERS.items()
        }
        labels, text = HISTOGRAMS["ace_overhead_seconds"]
        self._overhead = Histogram(
            "ace_overhead_seconds", text, labels, buckets=_OVERHEAD_BUCKETS, registry=own
        )
        # To look a series up here takes a tenth of the time that prometheus_client takes.
        self._series: dict[tuple[str, ...], Counter] = {}
        self._labels = BoundedLabels(fleet, policy)
        self._exposed = own
        if multiprocess_dir is not None:
            self._exposed = CollectorRegistry()
            MultiProcessCollector(self._exposed, str(multiprocess_dir))  # type: ignore[no-untyped-call]
        self._exposed.register(_States(fleet, policy, kills, fleet_file))

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes, the sum of all workers."""
        return generate_latest(self._exposed)

    def access(self, record: AccessRecord) -> None:
        """Count a request."""
        model, backend = self._labels.model(record.model), self._labels.backend(record.backend)
        self._add("ace_requests_total", 1, record.mode, _outcome(record), model, backend)
        if record.overhead_s is not None:
            self._overhead.labels(record.mode).observe(record.overhead_s)
        if record.first_byte_s is not None and record.ending in _CUT_BY_BACKEND:
            self._add("ace_truncated_streams_total", 1, backend)

    def stage(self, record: StageRecord) -> None:
        """Count a stage."""
        where = self._labels.where(record)
        if record.action == Action.BYPASS:
            self._add("ace_spec_bypass_total", 1, self._labels.reason(record.reason), *where)
        elif record.action == Action.SKIP:
            self._add("ace_shadow_skipped_total", 1, self._labels.reason(record.reason), *where)
        elif record.action in _ARMS and speed_counts(record):
            self._decoded(_ARMS[record.action], record, where)
        if record.action in (Action.SPECULATE, Action.WOULD_SPECULATE):
            self._speculated(record, (record.mode, *where, record.drafter or _NONE, record.executor or _NONE))

    def dropped(self, sink: str, count: int = 1) -> None:
        """Count records that `sink` could not take."""
        self._add("ace_records_dropped_total", count, sink)

    def _decoded(self, arm: str, record: StageRecord, where: tuple[str, ...]) -> None:
        self._add("ace_decode_tokens_total", record.decode_tokens or 0, arm, *where)
        self._add("ace_decode_seconds_total", record.decode_seconds or 0, arm, *where)

    def _speculated(self, record: StageRecord, labels: tuple[str, ...]) -> None:
        self._add("ace_spec_steps_total", record.steps or 0, *labels)
        self._add("ace_spec_draft_tokens_total", record.draft_tokens or 0, *labels)
        self._add("ace_spec_accepted_tokens_total", record.accepted_tokens or 0, *labels)
        for position, count in enumerate((record.accepted_by_position or ())[:MAX_LOOKAHEAD]):
            self._add("ace_spec_accepted_by_position_total", count, str(position), *labels)

    def _add(self, name: str, amount: float, *labels: str) -> None:
        series = self._series.get((name, *labels))
        if series is None:
            series = self._series[(name, *labels)] = self._counters[name].labels(*labels)
        series.inc(amount)


class BoundedLabels:
    """Label values from known sets; what is not known, too long or one too many is `other`."""

    _MAX_LENGTH = 128

    def __init__(self, fleet: Callable[[], FleetSnapshot], policy: PolicyView) -> None:
        self._fleet, self._policy = fleet, policy
        # Backends and models may come and go for months, so what was ever shown is bounded as well.
        self._shown: dict[str, set[str]] = {"model": set(), "backend": set(), "rule": set(), "reason": set()}
        self._known_fleet = FleetSnapshot()
        self._known_models: frozenset[str] = frozenset()

    def model(self, name: str) -> str:
        """`name` when a backend lists it."""
        fleet = self._fleet()
        if fleet is not self._known_fleet:
            self._known_models = frozenset(model for b in fleet.backends for model in b.models)
            self._known_fleet = fleet
        return self._admit("model", name, name in self._known_models)

    def backend(self, name: str) -> str:
        """`name` when it is registered."""
        return self._admit("backend", name, any(name == b.name for b in self._fleet().backends))

    def rule(self, name: str) -> str:
        """`name` when the policy in force has it."""
        rules = self._policy.current.policy.rules
        return self._admit("rule", name, name == "default" or any(name == rule.name for rule in rules))

    def reason(self, text: str | None) -> str:
        """The word before any detail: `unknown_field` of `unknown_field: min_p`."""
        word = (text or "").partition(":")[0].strip()
        return self._admit("reason", word, word.replace("_", "").isalnum())

    def where(self, record: StageRecord) -> tuple[str, str, str]:
        """The labels model, backend and rule of a record."""
        return self.model(record.model), self.backend(record.backend), self.rule(record.rule)

    def _admit(self, label: str, value: str, known: bool) -> str:
        if not value:
            return _NONE
        shown = self._shown[label]
        if value in shown:
            return value
        if not known or len(value) > self._MAX_LENGTH or len(shown) >= MAX_LABEL_VALUES:
            return _OTHER
        shown.add(value)
        return value


class _States(Collector):
    """Gauges read when scraped: any worker knows them all, and what is gone leaves no series behind."""

    def __init__(
        self,
        fleet: Callable[[], FleetSnapshot],
        policy: PolicyView,
        kills: Callable[[], int],
        fleet_file: FleetFileView | None,
    ) -> None:
        self._fleet, self._policy, self._kills, self._fleet_file = fleet, policy, kills, fleet_file

    def collect(self) -> Iterator[Metric]:
        by_state = collections.Counter((backend.name, backend.state) for backend in self._fleet().backends)
        names = dict.fromkeys(name for name, _ in by_state)
        states, instances = _gauge("ace_backend_state"), _gauge("ace_backend_instances")
        for name in names:
            states.add_metric([name], float(by_state[name, BackendState.UP] > 0))
            for state in BackendState:
                instances.add_metric([name, state], by_state[name, state])
        yield from (states, instances)
        fleet_rejected = _gauge("ace_fleet_rejected")
        fleet_rejected.add_metric([], float(bool(self._fleet_file and self._fleet_file.error)))
        yield fleet_rejected
        rejected = _gauge("ace_policy_rejected")
        rejected.add_metric([], float(self._policy.error is not None))
        yield rejected
        loaded = _gauge("ace_policy_loaded_timestamp_seconds")
        loaded.add_metric([self._policy.current.revision], self._policy.current.loaded_at)
        yield loaded
        kills = _gauge("ace_kill_active")
        kills.add_metric([], float(self._kills()))
        yield kills


def _gauge(name: str) -> GaugeMetricFamily:
    labels, text = GAUGES[name]
    return GaugeMetricFamily(name, text, labels=labels)


_ARMS = {str(Action.SPECULATE): "spec", str(Action.CONTROL): "control"}
_CUT_BY_BACKEND = frozenset({"backend_broke_off", "backend_timeout"})


def _codes(tree: type[GatewayError]) -> Iterable[str]:
    yield tree.code
    for branch in tree.__subclasses__():
        yield from _codes(branch)


_OUTCOMES = frozenset({"completed", "client_left", "aborted", *_codes(GatewayError)})


def _outcome(record: AccessRecord) -> str:
    if record.ending == "completed" and record.status >= 400:
        return f"status_{record.status // 100}xx"
    return record.ending if record.ending in _OUTCOMES else _OTHER
