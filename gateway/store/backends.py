"""The registry's rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from gateway.errors import Conflict
from gateway.fleet.model import Backend, BackendState, EngineKind
from gateway.store.database import Database, unbroken
from gateway.store.meta import count_change
from gateway.store.tables import backends, calibrations
from probes.model import Capability, Finding, Support


class BackendRows:
    """The backends table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @unbroken
    async def all(self) -> tuple[Backend, ...]:
        """Every backend, by name."""
        async with self._database.reading() as connection:
            rows = await connection.execute(select(backends).order_by(backends.c.name))
            return tuple(_backend(row) for row in rows)

    @unbroken
    async def add(self, backend: Backend) -> None:
        """Keep a new backend.

        Raises:
            Conflict: Its name is taken.
        """
        async with self._database.writing() as connection:
            try:
                await connection.execute(insert(backends).values(_columns(backend)))
            except IntegrityError as error:
                raise Conflict(
                    f"A backend named {backend.name!r} is registered already. Choose another name, "
                    f"or remove it first with `ace backends remove {backend.name}`."
                ) from error
            await count_change(connection)

    @unbroken
    async def save(self, backend: Backend) -> bool:
        """Keep what is now known of a backend; whether it is still registered at that URL."""
        async with self._database.writing() as connection:
            here = (backends.c.name == backend.name, backends.c.url == backend.url)
            saved = await connection.execute(update(backends).where(*here).values(_columns(backend)))
            if saved.rowcount:
                await count_change(connection)
            return bool(saved.rowcount)

    @unbroken
    async def remove(self, name: str) -> bool:
        """Forget a backend, and what was measured on it; whether there was one."""
        async with self._database.writing() as connection:
            # The next server of that name may be another one.
            await connection.execute(delete(calibrations).where(calibrations.c.backend == name))
            removed = await connection.execute(delete(backends).where(backends.c.name == name))
            if removed.rowcount:
                await count_change(connection)
            return bool(removed.rowcount)


def _columns(backend: Backend) -> dict[str, Any]:
    return {
        "name": backend.name,
        "url": backend.url,
        "declared_kind": backend.declared_kind,
        "kind": str(backend.kind),
        "state": str(backend.state),
        "state_reason": backend.state_reason,
        "credential": backend.credential,
        "tokenizer": backend.tokenizer,
        "models": list(backend.models),
        "findings": [
            {
                "capability": str(finding.capability),
                "support": str(finding.support),
                "evidence": finding.evidence,
                "value": finding.value,
            }
            for finding in backend.findings.values()
        ],
        "probed_at": backend.probed_at,
    }


def _backend(row: Row[Any]) -> Backend:
    findings = [_finding(kept) for kept in row.findings if kept["capability"] in set(Capability)]
    return Backend(
        name=row.name,
        url=row.url,
        declared_kind=row.declared_kind,
        kind=EngineKind(row.kind),
        state=BackendState(row.state),
        state_reason=row.state_reason,
        credential=row.credential,
        tokenizer=row.tokenizer,
        models=tuple(row.models),
        findings={finding.capability: finding for finding in findings},
        probed_at=row.probed_at,
    )


def _finding(kept: Mapping[str, Any]) -> Finding:
    return Finding(
        capability=Capability(kept["capability"]),
        support=Support(kept["support"]),
        evidence=kept["evidence"],
        value=kept["value"],
    )
