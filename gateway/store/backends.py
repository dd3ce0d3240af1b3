"""The registry's rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import Row, delete, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.errors import Conflict
from gateway.fleet.model import (
    Backend,
    BackendState,
    Declaration,
    Discovery,
    EngineKind,
    Process,
    Registered,
    in_order,
)
from gateway.store.database import Database, unbroken
from gateway.store.meta import count_change
from gateway.store.tables import backends, calibrations, instances
from probes.model import Capability, Finding, Support


class BackendRows:
    """The tables of backends and of their instances."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @unbroken
    async def all(self) -> tuple[Registered, ...]:
        """Every backend, by name."""
        # One statement, which sees one moment: a declaration never meets the instances of another.
        both = backends.outerjoin(instances, backends.c.name == instances.c.backend)
        statement = select(backends, instances).select_from(both).order_by(backends.c.name)
        async with self._database.reading() as connection:
            rows = await connection.execute(statement)
            return tuple(_registered(list(found)) for _, found in groupby(rows, key=attrgetter("name")))

    @unbroken
    async def add(self, backend: Registered) -> None:
        """Keep a new backend.

        Raises:
            Conflict: Its name is taken.
        """
        async with self._database.writing() as connection:
            await _insert(connection, backend)
            await count_change(connection)

    @unbroken
    async def declare(self, changed: Iterable[Registered], removed: Iterable[str]) -> None:
        """Put what the fleet file declares in place of what it declared before.

        Args:
            changed: Backends that are new or others.
            removed: Names of those that it declares no more.

        Raises:
            Conflict: A name was taken by hand meanwhile, or by another process that declares the same.
        """
        changed, removed = tuple(changed), tuple(removed)
        if not changed and not removed:
            return
        async with self._database.writing() as connection:
            for name in removed:
                await _delete(connection, name)
            for backend in changed:
                await connection.execute(delete(calibrations).where(calibrations.c.backend == backend.name))
                await connection.execute(
                    delete(backends).where(
                        backends.c.name == backend.name, backends.c.declared_by.is_not(None)
                    )
                )
                await _insert(connection, backend)
            await count_change(connection)

    @unbroken
    async def set_instances(self, backend: Registered) -> None:
        """Keep which instances a backend has now, if it is still registered."""
        async with self._database.writing() as connection:
            changed = await connection.execute(
                update(backends)
                .where(backends.c.name == backend.name)
                .values(discovery_error=backend.discovery_error)
            )
            if changed.rowcount:
                await _put_instances(connection, backend)
                await count_change(connection)

    @unbroken
    async def save(self, backend: Backend) -> bool:
        """Keep what is now known of an instance; whether it is still registered at that URL."""
        here = (
            instances.c.backend == backend.name,
            instances.c.instance == backend.instance,
            instances.c.url == backend.url,
        )
        async with self._database.writing() as connection:
            saved = await connection.execute(update(instances).where(*here).values(_seen(backend)))
            if saved.rowcount:
                await count_change(connection)
            return bool(saved.rowcount)

    @unbroken
    async def remove(self, name: str) -> bool:
        """Forget a backend, and what was measured on it; whether there was one."""
        async with self._database.writing() as connection:
            removed = await _delete(connection, name)
            if removed:
                await count_change(connection)
            return removed


async def _insert(connection: AsyncConnection, backend: Registered) -> None:
    try:
        await connection.execute(insert(backends).values(_declared(backend)))
    except IntegrityError as error:
        raise Conflict(
            f"A backend named {backend.name!r} is registered already. Choose another name, "
            f"or remove it first with `ace backends remove {backend.name}`."
        ) from error
    await _put_instances(connection, backend)


async def _put_instances(connection: AsyncConnection, backend: Registered) -> None:
    await connection.execute(delete(instances).where(instances.c.backend == backend.name))
    if backend.instances:
        await connection.execute(insert(instances), [_seen(instance) for instance in backend.instances])


async def _delete(connection: AsyncConnection, name: str) -> bool:
    # The next server of that name may be another one.
    await connection.execute(delete(calibrations).where(calibrations.c.backend == name))
    await connection.execute(delete(instances).where(instances.c.backend == name))
    removed = await connection.execute(delete(backends).where(backends.c.name == name))
    return bool(removed.rowcount)


def _declared(backend: Registered) -> dict[str, Any]:
    declaration = backend.declaration
    return {
        "name": declaration.name,
        "urls": list(declaration.urls),
        "discovery": str(declaration.discovery),
        "declared_kind": declaration.kind,
        "credential": declaration.credential,
        "tokenizer": declaration.tokenizer,
        "declared_by": backend.declared_by,
        "discovery_error": backend.discovery_error,
    }


def _seen(backend: Backend) -> dict[str, Any]:
    return {
        "backend": backend.name,
        "instance": backend.instance,
        "url": backend.url,
        "kind": str(backend.kind),
        "state": str(backend.state),
        "state_reason": backend.state_reason,
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
        "started_at": backend.process.started_at,
        "version": backend.process.version,
        "process_since": backend.process_since,
    }


def _registered(rows: Sequence[Row[Any]]) -> Registered:
    """A backend from a row for each of its instances, or from one with none."""
    row = rows[0]
    declaration = Declaration(
        name=row.name,
        urls=tuple(row.urls),
        discovery=Discovery(row.discovery),
        kind=row.declared_kind,
        credential=row.credential,
        tokenizer=row.tokenizer,
    )
    return Registered(
        declaration=declaration,
        declared_by=row.declared_by,
        instances=in_order(declaration, (_backend(declaration, seen) for seen in rows if seen.backend)),
        discovery_error=row.discovery_error,
    )


def _backend(declaration: Declaration, row: Row[Any]) -> Backend:
    address = row.instance if declaration.discovery is Discovery.DNS else None
    findings = [_finding(kept) for kept in row.findings if kept["capability"] in set(Capability)]
    return Backend(
        name=declaration.name,
        url=row.url if address is None else declaration.urls[0],
        instance=row.instance,
        address=address,
        declared_kind=declaration.kind,
        kind=EngineKind(row.kind),
        state=BackendState(row.state),
        state_reason=row.state_reason,
        credential=declaration.credential,
        tokenizer=declaration.tokenizer,
        models=tuple(row.models),
        findings={finding.capability: finding for finding in findings},
        probed_at=row.probed_at,
        process=Process(started_at=row.started_at, version=row.version),
        process_since=row.process_since,
    )


def _finding(kept: Mapping[str, Any]) -> Finding:
    return Finding(
        capability=Capability(kept["capability"]),
        support=Support(kept["support"]),
        evidence=kept["evidence"],
        value=kept["value"],
    )
