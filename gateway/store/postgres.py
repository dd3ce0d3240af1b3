"""PostgreSQL: how it is connected to, and what its refusals ask of an operator."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from gateway.errors import SettingsError, StoreError, StoreRefused

if TYPE_CHECKING:
    import asyncpg

CONNECT_S = 5.0
"""Longest wait for a connection, its encryption and its log-in."""

KEPT_CONNECTIONS = 2
MOST_CONNECTIONS = 5
"""Of one process. Requests need none, so a few serve every background task and the pages."""

MIGRATION_LOCK = 0x41434547
"""Held by whoever migrates. The number is ours alone among those who lock things in the same database."""

_CHECK_URL = "Correct ACE_STORE_URL."
_AWAY = "See whether it runs and can be reached from here; the gateway tries again by itself."
_REMEDIES = {
    "28": "Correct the user or the password in ACE_STORE_URL, or let the user in: pg_hba.conf.",
    "3D": "Create it with CREATE DATABASE, or correct ACE_STORE_URL.",
    "42501": "Make the gateway's user the owner of the database.",
    "42704": "ACE_STORE_URL may have parameters of libpq and settings of the server only.",
    "42": "Look whether these are the gateway's tables: ACE_STORE_URL should name a database of its own.",
    "53100": "Free disk space on the database server.",
    "53300": f"Raise max_connections there: a gateway's worker may hold {MOST_CONNECTIONS} connections.",
    "25006": "ACE_STORE_URL must name the primary, not a standby; see target_session_attrs.",
    "57P03": "It is starting or stopping; the gateway tries again by itself.",
}
"""What to do about an SQLSTATE, or about the class that it begins with."""

_NEVER_BETTER = ("28", "3D", "42")
"""Classes of refusals at log-in that waiting does not change."""


def create_postgres_engine(url: URL, label: str, **options: Any) -> AsyncEngine:
    """An engine with a small pool, which asks a connection whether it still works before it is used.

    Raises:
        SettingsError: The driver is not installed.
    """
    if importlib.util.find_spec("asyncpg") is None:
        raise SettingsError("A postgresql:// store needs asyncpg: pip install 'ace-gateway[postgres]'.")
    # Written anew, so that a password's special characters are escaped as every reader expects.
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)

    async def connect() -> asyncpg.Connection[Any]:
        return await _connect(address, label)

    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        pool_size=KEPT_CONNECTIONS,
        max_overflow=MOST_CONNECTIONS - KEPT_CONNECTIONS,
        pool_timeout=CONNECT_S,
        pool_pre_ping=True,
        **options,
    )


async def _connect(address: str, label: str) -> asyncpg.Connection[Any]:
    """Connect; TimeoutError when nothing answers.

    The driver reads the address, so `sslmode` and others mean what they mean to libpq.
    """
    import asyncpg

    try:
        return await asyncpg.connect(address, timeout=CONNECT_S)
    except TimeoutError:
        raise  # the server is silent, which whoever wanted the connection must know
    except asyncpg.PostgresError as error:
        refused = _state(error).startswith(_NEVER_BETTER)
        kind = StoreRefused if refused else StoreError
        raise kind(label, str(error), remedy(error)) from error
    except ValueError as error:
        raise StoreRefused(label, str(error), _CHECK_URL) from error
    except FileNotFoundError as error:
        missing = "a certificate, or the folder of a socket, that ACE_STORE_URL names does not exist"
        raise StoreError(label, missing, _CHECK_URL) from error
    except (OSError, asyncpg.InterfaceError) as error:
        raise StoreError(label, str(error) or type(error).__name__, _AWAY) from error


def driver_errors() -> tuple[type[Exception], ...]:
    """What the driver raises past SQLAlchemy: a connection may break while it is being set up."""
    import asyncpg

    return (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


def remedy(error: BaseException) -> str | None:
    """What an operator can do about an error of the server; None when nothing special."""
    state = _state(error)
    return _REMEDIES.get(state) or _REMEDIES.get(state[:2])


def is_about_values(error: BaseException) -> bool:
    """Whether the database will refuse these values for ever: they are no text, or too large."""
    # The driver itself refuses a value that it cannot send with a ValueError.
    return _state(error).startswith("22") or isinstance(error, ValueError)


def _state(error: BaseException) -> str:
    return str(getattr(error, "sqlstate", None) or "")
