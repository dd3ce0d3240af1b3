import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.fleet.model import Backend, BackendState, FleetSnapshot
from gateway.policy.model import Mode, Policy, Rule
from gateway.telemetry import metrics as table
from gateway.telemetry.metrics import MAX_LABEL_VALUES, Metrics
from tests.fakes.records import access, stage

ROOT = Path(__file__).parents[3]


@dataclass
class Loaded:
    policy: Policy
    revision: str = "rev1"
    loaded_at: float = 5.0


@dataclass
class Holder:
    current: Loaded
    error: str | None = None


@dataclass
class FleetFile:
    error: str | None = None


class Gateway:
    """A fleet and a policy that a test may change, and the metrics that watch them."""

    def __init__(self) -> None:
        self.fleet = FleetSnapshot((Backend(name="b", url="http://b", state=BackendState.UP, models=("m",)),))
        self.policy = Holder(Loaded(Policy(version=1, rules=(Rule(name="chat", mode=Mode.SHADOW),))))
        self.kills = 0
        self.fleet_file = FleetFile()
        self.metrics = Metrics(
            fleet=lambda: self.fleet,
            policy=self.policy,
            kills=lambda: self.kills,
            fleet_file=self.fleet_file,
        )

    def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        families = text_string_to_metric_families(self.metrics.exposition().decode())
        return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}

    def value(self, name: str, **labels: str) -> float | None:
        """The sum of the samples of `name` that have these labels; None when there are none."""
        found = [
            value
            for (sample, have), value in self.samples().items()
            if sample == name and labels.items() <= dict(have).items()
        ]
        return sum(found) if found else None


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def test_a_request_is_counted_by_mode_and_outcome(gateway: Gateway) -> None:
    gateway.metrics.access(access(mode="shadow"))
    gateway.metrics.access(access(mode="off", ending="client_left"))
    assert (
        gateway.value("ace_requests_total", mode="shadow", outcome="completed", model="m", backend="b") == 1
    )
    assert gateway.value("ace_requests_total", mode="off", outcome="client_left") == 1


@pytest.mark.parametrize(
    ("status", "ending", "outcome"),
    [
        (200, "completed", "completed"),
        (422, "completed", "status_4xx"),
        (500, "completed", "status_5xx"),
        (404, "model_not_found", "model_not_found"),
        (502, "backend_unreachable", "backend_unreachable"),
        (0, "aborted", "aborted"),
        (0, "made up by nobody", "other"),
    ],
)
def test_an_outcome_says_how_the_request_ended(
    gateway: Gateway, status: int, ending: str, outcome: str
) -> None:
    gateway.metrics.access(access(status=status, ending=ending))
    assert gateway.value("ace_requests_total", outcome=outcome) == 1


def test_overhead_is_observed_where_it_was_measured(gateway: Gateway) -> None:
    gateway.metrics.access(access(mode="off", overhead_s=0.0002))
    gateway.metrics.access(access(mode="off", overhead_s=None))
    assert gateway.value("ace_overhead_seconds_count", mode="off") == 1
    assert gateway.value("ace_overhead_seconds_sum", mode="off") == pytest.approx(0.0002)


def test_a_stream_that_breaks_off_after_its_first_byte_is_truncated(gateway: Gateway) -> None:
    gateway.metrics.access(access(ending="backend_broke_off", first_byte_s=0.1))
    gateway.metrics.access(access(ending="backend_broke_off", first_byte_s=None))
    gateway.metrics.access(access(ending="client_left", first_byte_s=0.1))
    assert gateway.value("ace_truncated_streams_total", backend="b") == 1


def test_a_speculated_request_moves_the_counts_and_the_spec_arm(gateway: Gateway) -> None:
    gateway.metrics.stage(stage())
    labels = {
        "mode": "prod",
        "model": "m",
        "backend": "b",
        "rule": "chat",
        "drafter": "ngram",
        "executor": "in_engine",
    }
    assert gateway.value("ace_spec_steps_total", **labels) == 10
    assert gateway.value("ace_spec_draft_tokens_total", **labels) == 30
    assert gateway.value("ace_spec_accepted_tokens_total", **labels) == 18
    assert gateway.value("ace_spec_accepted_by_position_total", position="0", **labels) == 8
    assert gateway.value("ace_spec_accepted_by_position_total", position="2", **labels) == 4
    assert gateway.value("ace_decode_tokens_total", arm="spec") == 30
    assert gateway.value("ace_decode_seconds_total", arm="spec") == 1.5


def test_a_control_request_moves_the_control_arm_and_nothing_of_speculation(gateway: Gateway) -> None:
    gateway.metrics.stage(stage(action="control", steps=None, draft_tokens=None, accepted_tokens=None))
    assert gateway.value("ace_decode_tokens_total", arm="control") == 30
    assert gateway.value("ace_spec_steps_total") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"decode_seconds": None, "tokens_per_second": None},
        {"multiplier_reason": "spans_a_switch"},
        {"reason": "killed"},
        {"reason": "runner_lost"},
        {"looping": True},
    ],
)
def test_a_speed_that_may_not_be_compared_is_in_no_arm(gateway: Gateway, changes: dict[str, Any]) -> None:
    gateway.metrics.stage(stage(**changes))
    assert gateway.value("ace_decode_tokens_total") is None
    assert gateway.value("ace_spec_steps_total") == 10


def test_what_would_have_been_accepted_is_never_mixed_with_what_was(gateway: Gateway) -> None:
    gateway.metrics.stage(stage())
    gateway.metrics.stage(stage(mode="shadow", action="would_speculate", executor=None, accepted_tokens=5))
    assert gateway.value("ace_spec_accepted_tokens_total", mode="prod") == 18
    assert gateway.value("ace_spec_accepted_tokens_total", mode="shadow", executor="none") == 5
    assert gateway.value("ace_decode_tokens_total") == 30


def test_bypassed_and_skipped_requests_are_counted_with_their_reason(gateway: Gateway) -> None:
    gateway.metrics.stage(stage(action="bypass", reason="unknown_field: min_p"))
    gateway.metrics.stage(stage(mode="shadow", action="skip", reason="queue_full"))
    assert gateway.value("ace_spec_bypass_total", reason="unknown_field", rule="chat") == 1
    assert gateway.value("ace_shadow_skipped_total", reason="queue_full") == 1
    assert gateway.value("ace_spec_steps_total") is None


def test_dropped_records_are_counted_by_sink(gateway: Gateway) -> None:
    gateway.metrics.dropped("store", 3)
    assert gateway.value("ace_records_dropped_total", sink="store") == 3


def test_a_dead_backend_is_shown_as_down(gateway: Gateway) -> None:
    assert gateway.value("ace_backend_state", backend="b") == 1
    gateway.fleet = FleetSnapshot((Backend(name="b", url="http://b", state=BackendState.DOWN),))
    assert gateway.value("ace_backend_state", backend="b") == 0


def test_instances_are_counted_by_state_and_one_is_enough_for_the_backend(gateway: Gateway) -> None:
    gateway.fleet = FleetSnapshot(
        tuple(
            Backend(name="b", url="http://b", instance=address, state=state)
            for address, state in zip(
                ("10.0.0.1", "10.0.0.2", "10.0.0.3"),
                (BackendState.DOWN, BackendState.UP, BackendState.DOWN),
                strict=True,
            )
        )
    )
    assert gateway.value("ace_backend_state", backend="b") == 1
    assert gateway.value("ace_backend_instances", backend="b", state="up") == 1
    assert gateway.value("ace_backend_instances", backend="b", state="down") == 2


def test_a_refused_fleet_file_is_shown(gateway: Gateway) -> None:
    assert gateway.value("ace_fleet_rejected") == 0
    gateway.fleet_file.error = "fleet.yaml:3: no"
    assert gateway.value("ace_fleet_rejected") == 1


def test_a_removed_backend_leaves_no_state_behind(gateway: Gateway) -> None:
    gateway.fleet = FleetSnapshot()
    assert gateway.value("ace_backend_state") is None


def test_a_refused_policy_file_is_shown(gateway: Gateway) -> None:
    assert gateway.value("ace_policy_rejected") == 0
    gateway.policy.error = "policy.yaml:3: no"
    assert gateway.value("ace_policy_rejected") == 1


def test_what_clients_choose_becomes_no_label(gateway: Gateway) -> None:
    gateway.metrics.access(access())
    gateway.metrics.stage(stage())
    before = len(gateway.samples())
    for i in range(1000):
        gateway.metrics.access(
            access(model=f"random {i}\n\"'", backend=f"x{i}", tenant=f"t{i}", ending=f"e{i}")
        )
        gateway.metrics.stage(
            stage(model="m" * 100_000, rule=f"r{i}", action="bypass", reason=f"free text {i}")
        )
    assert len(gateway.samples()) - before <= 20
    assert "tenant" not in str(gateway.samples())
    assert gateway.value("ace_requests_total", model="other", backend="other", outcome="other") == 1000
    assert gateway.value("ace_spec_bypass_total", reason="other", model="other", rule="other") == 1000


def test_a_backend_that_lists_endless_models_does_not_add_endless_series(gateway: Gateway) -> None:
    models = tuple(f"m{i}" for i in range(5 * MAX_LABEL_VALUES))
    gateway.fleet = FleetSnapshot((Backend(name="b", url="http://b", models=models),))
    for model in models:
        gateway.metrics.access(access(model=model, overhead_s=None))
    shown = [labels for name, labels in gateway.samples() if name == "ace_requests_total"]
    assert len(shown) == MAX_LABEL_VALUES + 1
    assert gateway.value("ace_requests_total") == len(models)


def test_label_values_are_escaped(gateway: Gateway) -> None:
    strange = 'a"b\\c\nd'
    gateway.fleet = FleetSnapshot((Backend(name="b", url="http://b", models=(strange,)),))
    gateway.metrics.access(access(model=strange))
    assert gateway.value("ace_requests_total", model=strange) == 1


def test_the_page_shows_the_names_of_the_table_and_no_others(gateway: Gateway) -> None:
    gateway.metrics.access(access(ending="backend_broke_off"))
    gateway.metrics.stage(stage())
    gateway.metrics.stage(stage(action="bypass", reason="no_executor"))
    gateway.metrics.stage(stage(action="skip", reason="queue_full"))
    gateway.metrics.dropped("store")
    shown = {name for name, _ in gateway.samples()}
    histograms = {f"{name}_{part}" for name in table.HISTOGRAMS for part in ("bucket", "sum", "count")}
    assert shown == set(table.COUNTERS) | histograms | set(table.GAUGES)


def test_the_policy_in_force_and_kills_can_be_alerted_on() -> None:
    gateway = Gateway()
    assert gateway.value("ace_policy_loaded_timestamp_seconds", revision="rev1") == 5.0
    assert gateway.value("ace_kill_active") == 0
    gateway.kills = 2
    gateway.policy.current = Loaded(Policy(version=1), revision="rev2", loaded_at=6.0)
    assert gateway.value("ace_policy_loaded_timestamp_seconds", revision="rev1") is None
    assert gateway.value("ace_policy_loaded_timestamp_seconds", revision="rev2") == 6.0
    assert gateway.value("ace_kill_active") == 2


WORKER = """
import sys
from pathlib import Path
from tests.fakes.records import access, stage
from tests.gateway.telemetry.test_metrics import Gateway
from gateway.telemetry.metrics import Metrics
gateway = Gateway()
metrics = Metrics(
    fleet=lambda: gateway.fleet, policy=gateway.policy, kills=lambda: 0, multiprocess_dir=Path(sys.argv[1])
)
for _ in range(int(sys.argv[2])):
    metrics.access(access())
    metrics.stage(stage())
sys.stdout.write(metrics.exposition().decode())
"""


def in_a_worker(folder: Path, requests: int) -> dict[str, float]:
    """The page as a worker process shows it after it has served some requests, by sample name."""
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    command = [sys.executable, "-c", WORKER, str(folder), str(requests)]
    page = subprocess.run(command, env=env, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    families = text_string_to_metric_families(page)
    return {s.name: s.value for family in families for s in family.samples}


@pytest.mark.slow
def test_every_worker_shows_the_sum_of_all_also_of_those_that_have_died(tmp_path: Path) -> None:
    in_a_worker(tmp_path, 3)
    page = in_a_worker(tmp_path, 2)
    assert page["ace_requests_total"] == 5
    assert page["ace_spec_accepted_tokens_total"] == 90
    assert page["ace_overhead_seconds_count"] == 5
    assert page["ace_backend_state"] == 1
    assert in_a_worker(tmp_path, 0)["ace_requests_total"] == 5
