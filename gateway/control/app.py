"""The control plane as one application."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, FastAPI

import gateway
from gateway.control.access import admins_only, runners_only
from gateway.control.backends import backend_routes
from gateway.control.errors import answer_errors
from gateway.control.fleet import fleet_routes
from gateway.control.installation import Installation, installation_routes
from gateway.control.keys import key_routes
from gateway.control.overlays import overlay_routes
from gateway.control.policy import PolicyInForce, policy_routes
from gateway.control.runners import runner_routes
from gateway.control.stages import stage_routes
from gateway.evidence.calibrations import Calibrations
from gateway.evidence.standings import Standings
from gateway.fleet.file import FleetHolder
from gateway.fleet.registry import Registry
from gateway.fleet.runners import Runners
from gateway.keys import KeyRing, RunnerGate
from gateway.policy.board import OverlayBoard
from gateway.store.store import Store


def create_control_app(
    *,
    store: Store,
    registry: Registry,
    runners: Runners,
    keys: KeyRing,
    runner_gate: RunnerGate,
    policy: PolicyInForce,
    overlays: OverlayBoard,
    fleet: FleetHolder,
    calibrations: Calibrations,
    standings: Standings,
    operation: APIRouter | None,
    installation: Installation,
    clock: Callable[[], float],
) -> FastAPI:
    """REST under `/admin/v1`, `/runner/v1/join`, `/openapi.json`, `/docs`, and the operation routes.

    Every failure is answered in OpenAI's error shape.

    Args:
        store: Where stage records are read.
        registry: The fleet.
        runners: The draft runners that have joined.
        keys: API keys and the admin token.
        runner_gate: Judges the runner token.
        policy: The policy in force.
        overlays: What operators have taken away.
        fleet: Follows the fleet file.
        calibrations: What a step of the gateway's loop costs.
        standings: What decisions look at besides findings.
        operation: The operation routes; None where they have a port of their own.
        installation: What `ace doctor` asks of this process.
        clock: Unix time.
    """
    app = FastAPI(
        title="ACE gateway, control plane",
        version=gateway.__version__,
        redoc_url=None,
        # A POST that is answered with a redirect loses its body at some clients.
        redirect_slashes=False,
    )
    elsewhere = "" if operation else " /healthz, /readyz and /metrics are at ACE_OPERATIONS_PORT."
    answer_errors(app, routes_are=f"/docs lists those of the control plane.{elsewhere}")
    admins = admins_only(keys.check_admin)
    if operation is not None:
        app.include_router(operation)
    app.include_router(backend_routes(registry, calibrations, admins))
    app.include_router(fleet_routes(registry, fleet, admins))
    app.include_router(
        policy_routes(policy, store.policies, registry.snapshot, standings.of_next, clock, admins)
    )
    app.include_router(overlay_routes(overlays, clock, admins))
    app.include_router(stage_routes(store, admins))
    app.include_router(key_routes(keys, admins))
    app.include_router(installation_routes(installation, admins))
    app.include_router(runner_routes(runners, admins=admins, joiners=runners_only(runner_gate.check)))
    return app


def create_operations_app(operation: APIRouter) -> FastAPI:
    """The operation routes alone, for a port of their own."""
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    answer_errors(app, routes_are="This port has /healthz, /readyz and /metrics.")
    app.include_router(operation)
    return app
