"""Routes of the policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from fastapi import APIRouter, Request
from fastapi.params import Depends as Dependency

from gateway.control.requests import json_of
from gateway.control.views import ExplainedView, ExplanationView, PolicyView
from gateway.fleet.model import Backend, FleetSnapshot
from gateway.policy.decide import NOTHING_KNOWN, decide
from gateway.policy.explain import as_json, facts_from
from gateway.policy.load import LoadedPolicy
from gateway.policy.model import Facts, Policy
from gateway.policy.standing import Standing

_FACTS = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"type": "object"},
                "example": {"model": "llama-3.1-8b", "workload": "rag", "temperature": 0},
            }
        },
    }
}


class PolicyInForce(Protocol):
    """What the routes need of a PolicyHolder."""

    @property
    def current(self) -> LoadedPolicy:
        """The policy in force."""

    @property
    def path(self) -> Path | None:
        """The file that is watched; None without one."""

    @property
    def error(self) -> str | None:
        """Why the file as it is now is not in force; None when it is."""


def policy_routes(
    holder: PolicyInForce,
    fleet: Callable[[], FleetSnapshot],
    standing_of: Callable[[Backend, str], Standing],
    clock: Callable[[], float],
    guards: list[Dependency],
) -> APIRouter:
    """Show the policy and explain its decisions."""
    routes = APIRouter(prefix="/admin/v1/policy", tags=["policy"], dependencies=guards)

    @routes.get("")
    async def show_policy() -> PolicyView:
        """The policy in force, and why a newer file is not."""
        loaded = holder.current
        return PolicyView(
            source="file" if holder.path else "default",
            path=str(holder.path) if holder.path else None,
            revision=loaded.revision,
            loaded_at=loaded.loaded_at,
            error=holder.error,
            policy=loaded.policy.model_dump(mode="json"),
        )

    @routes.post("/explain", openapi_extra=_FACTS)
    async def explain(request: Request) -> ExplainedView:
        """What the policy says of a request with these facts, at every backend that serves its model."""
        facts = facts_from(await json_of(request))
        policy, at = holder.current.policy, clock()
        backends = fleet().serving(facts.model)
        explained = [_explained(policy, facts, b, at, standing_of(b, facts.model)) for b in backends]
        # Without a backend the rules still match; what depends on findings then finds none.
        first = explained[0] if explained else _explained(policy, facts, None, at, NOTHING_KNOWN)
        return ExplainedView(**first.model_dump(), backends=explained)

    return routes


def _explained(
    policy: Policy, facts: Facts, backend: Backend | None, at: float, standing: Standing
) -> ExplanationView:
    asked = backend or Backend(name="none, as no backend serves the model", url="")
    said: dict[str, Any] = as_json(decide(policy, facts, asked, at, standing))
    return ExplanationView(backend=backend.key if backend else None, **said)
