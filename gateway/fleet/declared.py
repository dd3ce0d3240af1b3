"""What an operator may say of a backend, over REST or in a file, and what a file's word would change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from gateway.errors import MalformedRequest
from gateway.fleet.credentials import check_reference
from gateway.fleet.model import Declaration, Discovery, Registered
from gateway.fleet.urls import check_url
from gateway.names import check_name

MAX_URLS = 256


class NewBackend(BaseModel):
    """A backend to register: one URL, a list of them, or a name whose addresses are its instances."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str
    url: str | None = Field(default=None, max_length=2000)
    urls: tuple[Annotated[str, Field(max_length=2000)], ...] | None = Field(
        default=None, min_length=1, max_length=MAX_URLS
    )
    discovery: Literal["none", "dns"] = "none"
    kind: Literal["auto", "openai", "embedded", "vllm", "sglang"] = "auto"
    # Any type is let through to where it is judged: a refusal here would repeat it, and it may be a key.
    credential: Annotated[object, WithJsonSchema({"type": ["string", "null"]})] = None
    tokenizer: str | None = Field(default=None, max_length=1000)


def declaration_of(given: NewBackend) -> Declaration:
    """What `given` says, checked and in its one spelling; whether its tokenizer can be loaded is not.

    Raises:
        MalformedRequest: A value is not allowed.
    """
    return Declaration(
        name=check_name("backend name", given.name),
        urls=_checked_urls(given),
        discovery=Discovery(given.discovery),
        kind=given.kind,
        credential=check_reference(given.credential),
        tokenizer=given.tokenizer,
    )


def _checked_urls(given: NewBackend) -> tuple[str, ...]:
    if (given.url is None) == (given.urls is None):
        raise MalformedRequest("A backend has either `url`, or `urls`: a list with one URL for each server.")
    urls = tuple(check_url(url) for url in (given.urls or (given.url or "",)))
    repeated = sorted({url for url in urls if urls.count(url) > 1})
    if repeated:
        raise MalformedRequest(f"The URL {repeated[0]!r} is given twice; each server is listed once.")
    if Discovery(given.discovery) is Discovery.DNS:
        _check_discoverable(urls)
    return urls


def _check_discoverable(urls: tuple[str, ...]) -> None:
    if len(urls) > 1:
        raise MalformedRequest("`discovery: dns` takes one URL, whose name's addresses are the instances.")
    host = urlsplit(urls[0]).hostname or ""
    try:
        ip_address(host)
    except ValueError:
        return
    raise MalformedRequest(
        f"`discovery: dns` needs a URL with a name, and {host} is an address; leave `discovery` out."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A backend that a file says something else of than is in force: field names to both values."""

    name: str
    fields: Mapping[str, tuple[object, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What would change if a file's declarations came into force.

    Attributes:
        refused: Names that are registered by hand, so that the file's word on them is not taken.
    """

    added: tuple[Declaration, ...] = ()
    changed: tuple[Change, ...] = ()
    removed: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether everything is as the file says."""
        return not (self.added or self.changed or self.removed or self.refused)


def difference(declarations: Iterable[Declaration], registered: Iterable[Registered]) -> Difference:
    """What it would take to have exactly `declarations` declared by the file.

    Backends that were registered by hand stay as they are.
    """
    known = {backend.name: backend for backend in registered}
    by_name = {declaration.name: declaration for declaration in declarations}
    by_hand = {name for name, backend in known.items() if backend.declared_by is None}
    fields = {
        name: _fields(known[name].declaration, declaration)
        for name, declaration in by_name.items()
        if name in known and name not in by_hand
    }
    return Difference(
        added=tuple(declaration for name, declaration in by_name.items() if name not in known),
        changed=tuple(Change(name=name, fields=found) for name, found in fields.items() if found),
        removed=tuple(sorted(known.keys() - by_hand - by_name.keys())),
        refused=tuple(name for name in by_name if name in by_hand),
    )


def why_refused_by_hand(name: str) -> str:
    """Why a file's word on a backend is not taken."""
    return (
        f"backend {name!r} is registered by hand already. Remove that one with "
        f"`ace backends remove {name}`, or take it out of the file."
    )


def _fields(old: Declaration, new: Declaration) -> Mapping[str, tuple[object, object]]:
    both = {
        field: (getattr(old, field), getattr(new, field))
        for field in ("urls", "discovery", "kind", "credential", "tokenizer")
    }
    return {field: values for field, values in both.items() if values[0] != values[1]}
