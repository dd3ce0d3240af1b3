"""What a policy would do, asked and answered in JSON: for `ace policy explain` and its REST twin."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError

from gateway.errors import MalformedRequest
from gateway.policy.model import Decision, Facts, Workload
from gateway.policy.refusals import refusals


class _FactsInput(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    request_id: str = ""
    endpoint: Literal["chat", "completions", "other"] = "chat"
    model: str = ""
    tenant: str = "anonymous"
    workload: Workload = Workload.CHAT
    temperature: Annotated[float, Field(strict=True)] | None = None
    stream: StrictBool = False
    fields: frozenset[str] = frozenset()


def facts_from(given: object) -> Facts:
    """The facts that a JSON object names; the rest keep their defaults.

    Raises:
        MalformedRequest: A fact is not known, or its value is not allowed; names every one of them.
    """
    try:
        checked = _FactsInput.model_validate(given)
    except ValidationError as error:
        found = refusals(error, _FactsInput, given)
        raise MalformedRequest(
            "\n".join(f"facts: {'.'.join(map(str, r.path)) or 'the value'} {r.text}" for r in found)
        ) from error
    return Facts(**{field.name: getattr(checked, field.name) for field in fields(Facts)})


def as_json(decision: Decision) -> dict[str, Any]:
    """A decision as JSON values: `decision` without its trail, and `trail`."""
    values = asdict(decision)
    if decision.control is not None:
        values["control"] = decision.control.model_dump(mode="json")
    trail = list(values.pop("trail"))
    return {"decision": values, "trail": trail}
