"""The control plane as one application."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI

import gateway
from gateway.control.access import admins_only, runners_only
from gateway.control.backends import backend_routes
from gateway.control.errors import answer_errors
from gateway.control.fleet import fleet_routes
from gateway.control.keys import key_routes
from gateway.control.operation import Readiness, operation_routes
from gateway.control.policy import PolicyInForce, policy_routes
from gateway.control.runners import runner_routes
from gateway.control.stages import stage_routes
from gateway.evidence.calibrations import Calibrations
from gateway.evidence.standings import Standings
from gateway.fleet.file import FleetHolder
from gateway.fleet.registry import Registry
from gateway.fleet.runners import Runners
from gateway.keys import KeyRing, RunnerGate
from gateway.store.store import Store


def create_control_app(
    *,
    store: Store,
    registry: Registry,
    runners: Runners,
    keys: KeyRing,
    runner_gate: RunnerGate,
    policy: PolicyInForce,
    fleet: FleetHolder,
    calibrations: Calibrations,
    standings: Standings,
    metrics: Callable[[], bytes],
    clock: Callable[[], float],
) -> FastAPI:
    """REST under `/admin/v1`, `/runner/v1/join`, `/healthz`, `/readyz`, `/metrics`, `/openapi.json`, `/docs`.

    Every failure is answered in OpenAI's error shape.

    Args:
        store: Where stage records are read.
        registry: The fleet.
        runners: The draft runners that have joined.
        keys: API keys and the admin token.
        runner_gate: Judges the runner token.
        policy: The policy in force.
        fleet: Follows the fleet file.
        calibrations: What a step of the gateway's loop costs.
        standings: What decisions look at besides findings.
        metrics: The page for Prometheus.
        clock: Unix time.
    """
    app = FastAPI(
        title="ACE gateway, control plane",
        version=gateway.__version__,
        redoc_url=None,
        # A POST that is answered with a redirect loses its body at some clients.
        redirect_slashes=False,
    )
    answer_errors(app)
    admins = admins_only(keys.check_admin)
    readiness = Readiness(store=store, registry=registry, keys=keys, policy=policy, fleet=fleet)
    app.include_router(operation_routes(readiness, metrics))
    app.include_router(backend_routes(registry, calibrations, admins))
    app.include_router(fleet_routes(registry, fleet, admins))
    app.include_router(policy_routes(policy, registry.snapshot, standings.of_next, clock, admins))
    app.include_router(stage_routes(store.stages, admins))
    app.include_router(key_routes(keys, admins))
    app.include_router(runner_routes(runners, admins=admins, joiners=runners_only(runner_gate.check)))
    return app
