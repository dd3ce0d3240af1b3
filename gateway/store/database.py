"""One engine, short transactions, and every foreign exception turned into ours."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import orjson
from sqlalchemy import URL, Connection, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from gateway.errors import SettingsError, StoreError
from gateway.store import migrate

_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
_BUSY_TIMEOUT_MS = 5000

Params = ParamSpec("Params")
Result = TypeVar("Result")
_WRITES = "ace_writes"


class Database:
    """Connections to the database that a URL names.

    Args:
        url: `sqlite:///PATH` or `postgresql://...`; the asynchronous driver is chosen here.

    Raises:
        SettingsError: The URL names no database that the store can use.
    """

    def __init__(self, url: str) -> None:
        self._url = _with_driver(url)
        self._engine = create_async_engine(
            self._url,
            json_serializer=_dump_json,
            json_deserializer=orjson.loads,
            pool_pre_ping=not self._is_file,
        )
        if self._is_file:
            _prepare_sqlite(self._engine)
        self._writer = self._engine.execution_options(**{_WRITES: True})
        self.migrated = False

    @property
    def label(self) -> str:
        """The URL without driver and password, for messages."""
        plain = self._url.set(drivername=self._url.get_backend_name())
        return plain.render_as_string(hide_password=True)

    @property
    def file(self) -> Path | None:
        """Where a SQLite database is; None for a server."""
        return Path(str(self._url.database)) if self._is_file else None

    @property
    def _is_file(self) -> bool:
        return self._url.get_backend_name() == "sqlite"

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection that sees one moment of the database.

        Raises:
            StoreError: The database cannot be used now.
        """
        with self._translated():
            async with self._engine.connect() as connection:
                yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that is committed at the end of the block, or not at all.

        Raises:
            StoreError: The database cannot be used now.
        """
        with self._translated():
            async with self._writer.begin() as connection:
                yield connection

    async def migrate(self) -> None:
        """Bring the tables to the newest revision; several processes may do it at once.

        Raises:
            StoreError: The database cannot be used now.
        """
        with self._translated():
            if self._is_file:
                await asyncio.to_thread(_create_sqlite, Path(str(self._url.database)))
            async with self._writer.begin() as connection:
                await connection.run_sync(migrate.upgrade)
        self.migrated = True

    async def close(self) -> None:
        """Give every connection back."""
        await self._engine.dispose()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except DataError:
            raise  # these values can never be stored; that says nothing of the database
        except DBAPIError as error:
            raise StoreError(self.label, str(error.orig)) from error
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise StoreError(self.label, str(error) or type(error).__name__) from error


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


def _with_driver(text: str) -> URL:
    try:
        url = make_url(text)
    except ArgumentError:
        url = URL.create("")
    driver = _DRIVERS.get(url.get_backend_name())
    in_memory = url.get_backend_name() == "sqlite" and url.database in {None, "", ":memory:"}
    if driver is None or in_memory:
        raise SettingsError(
            "The store URL names no database that the store can use. "
            "Allowed: sqlite:///PATH, postgresql://USER:PASSWORD@HOST/DATABASE."
        )
    if importlib.util.find_spec(driver.partition("+")[2]) is None:
        module = driver.partition("+")[2]
        raise SettingsError(f"The store URL needs the Python package {module!r}: pip install {module}.")
    return url.set(drivername=driver)


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
