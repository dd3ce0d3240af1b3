"""fleet.yaml: backends as a file declares them, in the words of the REST body."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from gateway.errors import FleetError, MalformedRequest
from gateway.fleet.declared import NewBackend, declaration_of
from gateway.fleet.model import Declaration
from gateway.policy.load import revision_of
from gateway.policy.model import no_look_alike
from gateway.policy.refusals import MAX_SHOWN, Refusal, refusals, shown
from gateway.policy.yaml_tree import Block, Complaint, in_lines, line_of, read_yaml
from gateway.settled import SettledFile, decoded, read_content

_log = logging.getLogger(__name__)


class Fleet(BaseModel):
    """What a fleet file holds."""

    # A top-level key that starts with x- is a free place for YAML anchors; loading drops it.
    model_config = ConfigDict(
        extra="forbid", frozen=True, json_schema_extra={"patternProperties": {"^x-": {}}}
    )

    version: Literal[1]
    backends: tuple[NewBackend, ...] = ()

    @field_validator("version", mode="before")
    @classmethod
    def _one(cls, version: object) -> object:
        return no_look_alike(version)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFleet:
    """The backends that a file declares.

    Attributes:
        revision: First 12 hex digits of the text's SHA-256.
        source: The file's path as it was given.
        loaded_at: Unix time.
    """

    declarations: tuple[Declaration, ...]
    revision: str
    source: str
    loaded_at: float


def load_fleet(path: Path, *, clock: Callable[[], float] = time.time) -> LoadedFleet:
    """Read a fleet file.

    Raises:
        FleetError: The file cannot be read, or is no valid fleet.
    """
    return fleet_from(read_content(path, FleetError), str(path), at=clock())


def fleet_from(content: bytes, source: str, *, at: float) -> LoadedFleet:
    """The fleet that a file's bytes hold.

    Raises:
        FleetError: They are no valid fleet: one line for each complaint, `source:line: ...`.
    """
    tree, complaints = read_yaml(decoded(content, source, "fleet", FleetError).removeprefix("\ufeff"))
    declarations: tuple[Declaration, ...] = ()
    if isinstance(tree, Block):
        declarations, more = _validated(tree)
        complaints += more
    elif not complaints:
        complaints = [Complaint(1, _not_a_mapping(tree))]
    if complaints:
        raise FleetError(in_lines(complaints, source))
    return LoadedFleet(declarations=declarations, revision=revision_of(content), source=source, loaded_at=at)


def fleet_schema() -> dict[str, Any]:
    """The JSON schema of a fleet file, as generated from the models that validate it."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Fleet.model_json_schema(),
        "title": "ACE gateway fleet",
    }


def schema_text() -> str:
    """What policies/fleet.schema.json holds."""
    return json.dumps(fleet_schema(), indent=2) + "\n"


class FleetHolder:
    """Follows the fleet file and has what it declares be in force.

    Args:
        path: The file; None declares nothing.
        declare: Brings declarations of a source into force.
        refused: Why some of what was declared is not in force.
        clock: Unix time.

    Raises:
        FleetError: From the constructor, when the file is no valid fleet: there is no good one to keep.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        declare: Callable[[str, Iterable[Declaration]], Awaitable[None]],
        refused: Callable[[], Iterable[str]],
        clock: Callable[[], float],
    ) -> None:
        self._declare = declare
        self._refused = refused
        self._in_force: str | None = None
        self._file: SettledFile[LoadedFleet] | None = None
        if path is not None:
            self._file = SettledFile(
                path,
                what="fleet",
                load=lambda content: fleet_from(content, str(path), at=clock()),
                error=FleetError,
                log=_log,
            )

    @property
    def current(self) -> LoadedFleet | None:
        """What the file held when it was last good; None without a file."""
        return self._file.current if self._file else None

    @property
    def error(self) -> str | None:
        """Why what the file holds now is not in force, or not all of it; None when it is."""
        file_error = self._file.error if self._file else None
        return "\n".join([*([file_error] if file_error else []), *self._refused()]) or None

    def check_once(self) -> None:
        """One look at the file. Acts on what it finds only if the look before found the same."""
        if self._file is not None:
            self._file.check_once()

    async def declare_once(self) -> None:
        """Bring into force what has changed in the file since the last time."""
        current = self.current
        if current is not None and current.revision != self._in_force:
            await self._declare(current.source, current.declarations)
            self._in_force = current.revision

    async def run(self, interval: float) -> None:
        """Follow the file for ever, looking every `interval` seconds; return at once without a file."""
        while self._file is not None:
            await self.declare_once()
            await asyncio.sleep(interval)
            await asyncio.to_thread(self.check_once)


def _not_a_mapping(tree: object) -> str:
    if tree is None:
        return "the file is empty. The smallest fleet is `version: 1`, which declares no backend."
    return "a fleet is a mapping with the keys version and backends."


def _validated(tree: Block) -> tuple[tuple[Declaration, ...], list[Complaint]]:
    block = tree.selected(key for key in tree if not key.startswith("x-"))
    try:
        fleet = Fleet.model_validate(block)
    except ValidationError as error:
        return (), [_complaint(refusal, block) for refusal in refusals(error, Fleet, block)]
    declarations: list[Declaration] = []
    complaints: list[Complaint] = []
    lines: dict[str, int] = {}
    for place, given in enumerate(fleet.backends):
        line = line_of(("backends", place, "name"), block)
        try:
            declarations.append(declaration_of(given))
        except MalformedRequest as error:
            complaints.append(Complaint(line, f"backend {shown(given.name)}: {error}"))
        if given.name in lines:
            text = f"backend {shown(given.name)}: the name is already taken on line {lines[given.name]}."
            complaints.append(Complaint(line, text))
        lines.setdefault(given.name, line)
    return tuple(declarations), complaints


def _complaint(refusal: Refusal, block: Block) -> Complaint:
    who, inner = "", refusal.path
    match refusal.path:
        case ("backends", int(place), *rest):
            who, inner = f"{_called(block, place)}: ", tuple(rest)
    name = ".".join(str(step) for step in inner) or "the value"
    if not name.isprintable() or len(name) > MAX_SHOWN:
        name = shown(name)
    return Complaint(line_of(refusal.path, block), f"{who}{name} {refusal.text}")


def _called(block: Block, place: int) -> str:
    backends = block["backends"]
    entry = backends[place] if isinstance(backends, list) else None
    name = entry.get("name") if isinstance(entry, dict) else None
    return f"backend {shown(name)}" if isinstance(name, str) else f"backend number {place + 1}"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
