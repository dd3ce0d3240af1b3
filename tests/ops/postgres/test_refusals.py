"""What a server that will not let the gateway in makes it say: what is wrong, and what to do. No password."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from gateway.cli.serve import prepare
from gateway.errors import StoreError, StoreRefused
from gateway.settings import Settings
from gateway.store.postgres import MOST_CONNECTIONS
from gateway.store.store import Store
from tests.fakes.postgres import PASSWORD, PostgresServer
from tests.fakes.stores import store_at

pytestmark = [pytest.mark.ops]

WRONG = "wr0ng/pass:word@here"

REFUSED: dict[str, tuple[Callable[[PostgresServer], str], str]] = {
    "unknown database": (lambda server: server.url("absent"), "CREATE DATABASE"),
    "wrong password": (lambda server: server.url(password=WRONG), "Correct the user or the password"),
    "unknown user": (lambda server: server.url(user="stranger"), "Correct the user or the password"),
    "unknown sslmode": (lambda server: f"{server.url()}?sslmode=maybe", "must be one of: disable, allow"),
    "unknown parameter": (lambda server: f"{server.url()}?pool=7", 'parameter "pool"'),
}
AWAY: dict[str, tuple[Callable[[PostgresServer], str], str]] = {
    "nobody there": (
        lambda _: f"postgresql://ace:{quote(PASSWORD, safe='')}@127.0.0.1:1/ace",
        "refused|failed",
    ),
    "unknown host": (lambda _: "postgresql://ace@no-such-host.invalid/ace", "not known"),
    "no encryption": (lambda server: f"{server.url()}?sslmode=require", "SSL"),
}


@pytest.mark.parametrize("why", [*REFUSED, *AWAY])
async def test_each_refusal_says_what_to_do_and_no_password(
    postgres: PostgresServer, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url, expected = (REFUSED | AWAY)[why]
    store = Store(url(postgres))
    with pytest.raises(StoreError, match=expected) as caught:
        await store.migrate()
    await store.close()
    assert isinstance(caught.value, StoreRefused) == (why in REFUSED)
    said = "".join(traceback.format_exception(caught.value)) + caplog.text
    for secret in (PASSWORD, WRONG):
        assert secret not in said
        assert quote(secret, safe="") not in said


async def test_a_password_among_the_parameters_is_not_said_either(postgres: PostgresServer) -> None:
    store = Store(f"postgresql://127.0.0.1:{postgres.port}/postgres?user=ace&password=hunter2")
    with pytest.raises(StoreRefused) as caught:
        await store.migrate()
    await store.close()
    assert "hunter2" not in str(caught.value)


def test_a_gateway_that_is_refused_does_not_start(postgres: PostgresServer, tmp_path: Path) -> None:
    settings = Settings.load({}, data_dir=tmp_path, store_url=postgres.url("absent"))
    with pytest.raises(StoreRefused, match="CREATE DATABASE"):
        asyncio.run(prepare(settings))


async def test_the_store_takes_libpqs_parameters(postgres: PostgresServer) -> None:
    url = await postgres.new_database()
    database = url.rpartition("/")[2]
    hosts = f"127.0.0.1:1,127.0.0.1:{postgres.port}"
    several = f"postgresql://ace:{quote(PASSWORD, safe='')}@/{database}?host={hosts}&sslmode=prefer"
    for spelled in (several, url.replace("postgresql://", "postgres://") + "?application_name=ace"):
        async with store_at(spelled) as store:
            assert await store.backends.all() == ()


async def test_a_process_holds_few_connections_however_much_it_asks(postgres: PostgresServer) -> None:
    url = await postgres.new_database()
    count = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid != pg_backend_pid()"
    )
    async with store_at(url) as store:
        await asyncio.gather(*(store.meta.changes() for _ in range(100)))
        asking = [asyncio.create_task(store.meta.changes()) for _ in range(100)]
        held = await postgres.execute(count, url)
        await asyncio.gather(*asking)
    assert 0 < held <= MOST_CONNECTIONS
