"""One engine, short transactions, and every foreign exception turned into ours."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import orjson
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Select, Table, delete, event, func, make_url, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from gateway.errors import SettingsError, StoreError
from gateway.store import migrate
from gateway.store.postgres import (
    MIGRATION_LOCK,
    create_postgres_engine,
    driver_errors,
    is_about_values,
    remedy,
)

_BUSY_TIMEOUT_MS = 5000
_LIMIT_S = 5.0
_LONG_LIMIT_S = 60.0
_ASKED_AGAIN_S = 0.5

Params = ParamSpec("Params")
Result = TypeVar("Result")
Upsert = sqlite.Insert | postgresql.Insert
_WRITES = "ace_writes"


class Database:
    """Connections to the database that a URL names.

    A database server that does not answer holds up an operation for its limit of time at most, and only
    those begun until then: others fail at once until it answers again. A file has no limit: its disk
    answers or fails, and a lock is waited for within the driver.

    Args:
        url: `sqlite:///PATH` or `postgresql://...`.

    Raises:
        SettingsError: The URL names no database that the store can use.
    """

    def __init__(self, url: str) -> None:
        self._url = _checked(url)
        options: dict[str, Any] = {
            "json_serializer": _dump_json,
            "json_deserializer": orjson.loads,
            "hide_parameters": True,  # errors are logged, and values may be a tenant's
        }
        if self.is_file:
            self._engine = create_async_engine(self._url.set(drivername="sqlite+aiosqlite"), **options)
            _prepare_sqlite(self._engine)
            self._failures: tuple[type[Exception], ...] = (SQLAlchemyError, sqlite3.Error, OSError)
        else:
            self._engine = create_postgres_engine(self._url, self.label, **options)
            self._failures = (SQLAlchemyError, OSError, *driver_errors())
        self._writer = self._engine.execution_options(**{_WRITES: True})
        self._silence: asyncio.Task[None] | None = None
        self.migrated = False

    @property
    def label(self) -> str:
        """The URL for messages: without its password and its parameters, which may hold another."""
        return self._url.set(query={}).render_as_string(hide_password=True)

    @property
    def file(self) -> Path | None:
        """Where a SQLite database is; None for a server."""
        return Path(str(self._url.database)) if self.is_file else None

    @property
    def is_file(self) -> bool:
        """Whether it is SQLite's, of this machine alone; otherwise a server's that others may share."""
        return self._url.get_backend_name() == "sqlite"

    @asynccontextmanager
    async def reading(self, *, long: bool = False) -> AsyncIterator[AsyncConnection]:
        """A connection to read by.

        Args:
            long: Whether very many rows are read, which may take a minute instead of seconds.

        Raises:
            StoreError: The database cannot be used now.
        """
        async with self._limited(long), self._engine.connect() as connection:
            yield connection

    @asynccontextmanager
    async def writing(self, *, long: bool = False) -> AsyncIterator[AsyncConnection]:
        """A transaction that is committed at the end of the block, or not at all.

        Args:
            long: Whether very many rows are written, which may take a minute instead of seconds.

        Raises:
            StoreError: The database cannot be used now.
        """
        async with self._limited(long), self._writer.begin() as connection:
            yield connection

    async def migrate(self) -> None:
        """Bring the tables to the newest revision; several processes may do it at once.

        Raises:
            StoreError: The database cannot be used now, or is a newer version's.
        """
        if self.is_file:
            with self._translated():
                await asyncio.to_thread(_create_sqlite, Path(str(self._url.database)))
        async with self.writing(long=True) as connection:
            if not self.is_file:
                await connection.execute(select(func.pg_advisory_xact_lock(MIGRATION_LOCK)))
            await connection.run_sync(migrate.upgrade)
        self.migrated = True

    async def close(self) -> None:
        """Give every connection back."""
        if self._silence is not None:
            self._silence.cancel()
        await self._engine.dispose()

    @asynccontextmanager
    async def _limited(self, long: bool) -> AsyncIterator[None]:
        if self._silence is not None:
            raise StoreError(self.label, "it has not answered for a while; the gateway keeps asking")
        limit_s = None if self.is_file else _LONG_LIMIT_S if long else _LIMIT_S
        with self._translated():
            try:
                async with asyncio.timeout(limit_s):
                    yield
            except TimeoutError:
                if not self.is_file and self._silence is None:
                    self._silence = asyncio.create_task(self._wait_for_any_answer())
                raise

    async def _wait_for_any_answer(self) -> None:
        while await self._is_silent():  # noqa: ASYNC110 - a server offers no event
            await asyncio.sleep(_ASKED_AGAIN_S)
        self._silence = None

    async def _is_silent(self) -> bool:
        """Ask the server something; an error is an answer too."""
        try:
            with self._translated():
                async with asyncio.timeout(_LIMIT_S), self._engine.connect() as connection:
                    await connection.execute(select(1))
        except StoreError as error:
            return isinstance(error.__cause__, TimeoutError)
        return False

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (DataError, IntegrityError):
            raise  # these values can never be stored; that says nothing of the database
        except DBAPIError as error:
            # SQLAlchemy's stand-in for a driver's error repeats its class in front of its message.
            cause = getattr(error.orig, "__cause__", None) or error.orig or error
            if is_about_values(cause):
                raise
            raise StoreError(self.label, str(cause), remedy(cause)) from error
        except TimeoutError as error:
            raise StoreError(self.label, str(error) or "it did not answer in time") from error
        except CommandError as error:
            newer = "Its tables are of a newer version of the gateway: run that version, or a newer one."
            raise StoreError(self.label, str(error), newer) from error
        except self._failures as error:
            raise StoreError(self.label, str(error) or type(error).__name__, remedy(error)) from error


def insert_or(connection: AsyncConnection, table: Table) -> Upsert:
    """An INSERT that can say what becomes of a row that is there already: `on_conflict_do_...`.

    Read first and written then, two processes would both find no row, and one would fail.
    """
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def unbroken(
    operation: Callable[Params, Coroutine[Any, Any, Result]],
) -> Callable[Params, Coroutine[Any, Any, Result]]:
    """Have an operation, once begun, be finished even if its caller is cancelled.

    Cut off in the middle, a transaction would lose its connection, and the driver's thread would
    report to an event loop that may be closed by then.
    """

    @functools.wraps(operation)
    async def finished(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        task = asyncio.create_task(operation(*args, **kwargs))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # nobody is left to hear of it
            raise

    return finished


async def delete_picked(connection: AsyncConnection, table: Table, ids: Select[tuple[int]]) -> int:
    """Delete the rows whose ids a query picks; how many went.

    Other replicas sweep too: each takes rows that no other is deleting, and none waits for another.
    """
    picked = ids.with_for_update(skip_locked=True)
    gone = await connection.execute(delete(table).where(table.c.id.in_(picked)))
    return gone.rowcount


def _checked(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        url = URL.create("")
    name = {"postgres": "postgresql"}.get(url.get_backend_name(), url.get_backend_name())
    in_memory = name == "sqlite" and url.database in {None, "", ":memory:"}
    if name not in {"sqlite", "postgresql"} or in_memory:
        raise SettingsError(
            "The store URL names no database that the store can use. "
            "Allowed: sqlite:///PATH, postgresql://USER:PASSWORD@HOST/DATABASE."
        )
    return url.set(drivername=name)


def _create_sqlite(path: Path) -> None:
    """Make the file with a write-ahead log, in which readers and the writer do not block each other."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for wait in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, None):
            try:
                connection.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError as error:
                # This one statement does not wait for a lock that another starting process holds.
                if wait is None or "locked" not in str(error):
                    raise
                time.sleep(wait)
            else:
                return


def _prepare_sqlite(engine: AsyncEngine) -> None:
    @event.listens_for(engine.sync_engine, "do_connect")
    def try_first(_dialect: Any, _record: Any, where: Any, how: Any) -> None:
        # The driver leaves a thread behind when it cannot connect, which may report to a closed loop.
        await_only(asyncio.to_thread(lambda: sqlite3.connect(*where, **how).close()))

    @event.listens_for(engine.sync_engine, "connect")
    def configure(connection: DBAPIConnection, _record: Any) -> None:
        # The driver would open transactions by itself, late and never for reading; ours are explicit.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Connection) -> None:
        # A transaction that reads first and writes later fails at once when another has written between.
        writes = connection.get_execution_options().get(_WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _dump_json(value: object) -> str:
    return orjson.dumps(value).decode()
