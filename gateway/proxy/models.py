"""The gateway's own `/v1/models`: what the backends that are up list, merged."""

from __future__ import annotations

from typing import Any

from gateway.errors import UnknownModel
from gateway.fleet.model import BackendState, FleetSnapshot


def models_answer(fleet: FleetSnapshot, model: str) -> dict[str, Any]:
    """The answer to `/v1/models`, or to `/v1/models/{model}` for a model that is not empty.

    Raises:
        UnknownModel: No backend that is up lists it.
    """
    first_seen: dict[str, int] = {}
    for backend in fleet.backends:
        if backend.state is BackendState.UP:
            for name in backend.models:
                first_seen.setdefault(name, int(backend.probed_at or 0))
    if not model:
        return {"object": "list", "data": [_card(name, created) for name, created in first_seen.items()]}
    if model not in first_seen:
        raise UnknownModel(model, tuple(first_seen))
    return _card(model, first_seen[model])


def _card(model: str, created: int) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": created, "owned_by": "ace-gateway"}
