"""Backends as an operator declares them."""

from __future__ import annotations

from typing import Any

from gateway.fleet.declared import NewBackend, declaration_of
from gateway.fleet.model import Backend, Declaration, Registered


def declared(**given: Any) -> Declaration:
    """What a REST body with these values declares."""
    return declaration_of(NewBackend.model_validate(given))


def registered(*instances: Backend) -> Registered:
    """A backend that was registered by hand, with these instances; each has a URL of its own."""
    first = instances[0]
    declaration = Declaration(
        name=first.name,
        urls=tuple(instance.url for instance in instances),
        kind=first.declared_kind,
        credential=first.credential,
        tokenizer=first.tokenizer,
    )
    return Registered(declaration=declaration, instances=instances)
