"""The embedded backend's Prometheus series, all of them."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from draftrunner.model import Step

CONTENT_TYPE = CONTENT_TYPE_LATEST


class EngineMetrics:
    """Counts what the engine does. Counters are safe to move from any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._running = self._gauge("requests_running", "Prompts being computed or answered.")
        self._waiting = self._gauge("requests_waiting", "Prompts that wait for their turn.")
        self._pass_seconds = Summary(
            "ace_embedded_pass_seconds",
            "Wall time of a decode step (propose, forward, choose, commit) by tokens fed to the forward.",
            ["width"],
            registry=self._registry,
        )
        self._generated = self._counter("generation_tokens", "Tokens generated.")
        self._prompted = self._counter("prompt_tokens", "Prompt tokens received.")
        self._spec_steps = self._counter("spec_steps", "Passes that verified at least one draft.")
        self._spec_drafted = self._counter("spec_draft_tokens", "Draft tokens verified.")
        self._spec_accepted = self._counter("spec_accepted_tokens", "Draft tokens accepted.")

    def watch_queue(self, running: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Read the two gauges from these functions from now on."""
        self._running.set_function(running)
        self._waiting.set_function(waiting)

    def prompt_accepted(self, tokens: int) -> None:
        """Count a prompt of `tokens` tokens."""
        self._prompted.inc(tokens)

    def emitted(self, tokens: int) -> None:
        """Count generated tokens."""
        self._generated.inc(tokens)

    def pass_done(self, done: Step, seconds: float) -> None:
        """Count one decode forward, which took `seconds` from proposing to committing."""
        self._pass_seconds.labels(width=str(1 + done.drafted)).observe(seconds)
        if done.drafted:
            self._spec_steps.inc()
            self._spec_drafted.inc(done.drafted)
            self._spec_accepted.inc(done.accepted)

    def exposition(self) -> bytes:
        """Return every series in Prometheus' text format."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(f"ace_embedded_{name}", meaning, registry=self._registry)

    def _counter(self, name: str, meaning: str) -> Counter:
        return Counter(f"ace_embedded_{name}", meaning, registry=self._registry)
