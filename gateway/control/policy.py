"""Routes of the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Depends, Request
from fastapi.params import Depends as Dependency

from gateway.control.requests import (
    DiffWanted,
    HistoryWanted,
    NewPolicy,
    RollBack,
    json_body,
    json_of,
    query_of,
    takes_body,
    takes_query,
)
from gateway.control.views import (
    DiffView,
    ExplainedView,
    ExplanationView,
    HistoryView,
    PolicyView,
    RevisionTextView,
    RevisionView,
)
from gateway.errors import NotFound, StoreError
from gateway.fleet.model import Backend, FleetSnapshot
from gateway.policy.decide import NOTHING_KNOWN, decide
from gateway.policy.diff import policy_diff
from gateway.policy.explain import as_json, facts_from
from gateway.policy.load import LoadedPolicy, PolicySource
from gateway.policy.model import Facts, Policy
from gateway.policy.standing import Standing
from gateway.store.model import PolicyRevision
from gateway.store.policies import PolicyRows

PolicyBody = Annotated[NewPolicy, Depends(json_body(NewPolicy))]
RollBackBody = Annotated[RollBack, Depends(json_body(RollBack))]
HistoryQuery = Annotated[HistoryWanted, Depends(query_of(HistoryWanted))]
DiffQuery = Annotated[DiffWanted, Depends(query_of(DiffWanted))]

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
    def source(self) -> PolicySource:
        """Where policies come from."""

    @property
    def path(self) -> Path | None:
        """The file that is watched; None without one."""

    @property
    def error(self) -> str | None:
        """Why the file as it is now is not in force; None when it is."""

    async def put(self, text: str, *, based_on: str, author: str, reason: str) -> PolicyRevision:
        """Put a text in force; see StoredPolicy. Where a file is the source, a Conflict."""


def policy_routes(
    holder: PolicyInForce,
    revisions: PolicyRows,
    fleet: Callable[[], FleetSnapshot],
    standing_of: Callable[[Backend, str], Standing],
    clock: Callable[[], float],
    guards: list[Dependency],
) -> APIRouter:
    """Show the policy and its history, explain its decisions, and edit it where the store is its source."""
    routes = APIRouter(prefix="/admin/v1/policy", tags=["policy"], dependencies=guards)

    @routes.get("")
    async def show_policy() -> PolicyView:
        """The policy in force, and why a newer one is not."""
        loaded = holder.current
        return PolicyView(
            source=holder.source,
            number=await _number(revisions, loaded.revision),
            text=loaded.text,
            path=str(holder.path) if holder.path else None,
            revision=loaded.revision,
            loaded_at=loaded.loaded_at,
            error=holder.error,
            policy=loaded.policy.model_dump(mode="json"),
        )

    @routes.put("", openapi_extra=takes_body(NewPolicy))
    async def put_policy(body: PolicyBody) -> RevisionView:
        """Put a text in force, in every process within a second; 409 when another came between."""
        kept = await holder.put(body.text, based_on=body.based_on, author=body.author, reason=body.reason)
        return RevisionView.of(kept)

    @routes.post("/rollback", openapi_extra=takes_body(RollBack))
    async def roll_back(body: RollBackBody) -> RevisionView:
        """Put an earlier text in force again, as a new revision."""
        earlier = await _named(revisions, body.revision)
        newest = await revisions.newest()
        kept = await holder.put(
            earlier.text,
            based_on=newest.revision if newest else "default",
            author=body.author,
            reason=f"back to {earlier.number}: {body.reason}",
        )
        return RevisionView.of(kept)

    @routes.get("/history", openapi_extra=takes_query(HistoryWanted))
    async def show_history(wanted: HistoryQuery) -> HistoryView:
        """Every policy that has been in force, newest first, without the texts."""
        return HistoryView(revisions=[RevisionView.of(one) for one in await revisions.latest(wanted.limit)])

    @routes.get("/history/{revision}")
    async def show_revision(revision: str) -> RevisionTextView:
        """One of them, by its revision or number, with its text as it was written."""
        found = await _named(revisions, revision)
        return RevisionTextView(**RevisionView.of(found).model_dump(), text=found.text)

    @routes.get("/diff", openapi_extra=takes_query(DiffWanted))
    async def show_diff(wanted: DiffQuery) -> DiffView:
        """How two of them differ; unless others are named, the last two."""
        last = await revisions.latest(2)
        before = await _one_of(revisions, wanted.before, last[1:] or last)
        after = await _one_of(revisions, wanted.after, last)
        names = f"policy {before.number} {before.revision}", f"policy {after.number} {after.revision}"
        return DiffView(
            before=RevisionView.of(before),
            after=RevisionView.of(after),
            diff=policy_diff(before.text, after.text, names),
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


async def _number(revisions: PolicyRows, revision: str) -> int | None:
    """The newest number of a revision; None while it has none, or the store cannot be asked."""
    try:
        found = await revisions.named(revision)
    except StoreError:
        return None
    return found.number if found else None


async def _named(revisions: PolicyRows, name: str) -> PolicyRevision:
    if found := await revisions.named(name):
        return found
    raise NotFound(f"No policy has the revision or number {name!r}. `ace policy history` shows them.")


async def _one_of(
    revisions: PolicyRows, name: str | None, otherwise: Sequence[PolicyRevision]
) -> PolicyRevision:
    if name is not None:
        return await _named(revisions, name)
    if not otherwise:
        raise NotFound("No policy has been in force yet, so there is nothing to compare.")
    return otherwise[0]


def _explained(
    policy: Policy, facts: Facts, backend: Backend | None, at: float, standing: Standing
) -> ExplanationView:
    asked = backend or Backend(name="none, as no backend serves the model", url="")
    said: dict[str, Any] = as_json(decide(policy, facts, asked, at, standing))
    return ExplanationView(backend=backend.key if backend else None, **said)
