"""The tables that migrations make are the tables that the code uses."""

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, TextClause, inspect, text

from gateway.errors import SettingsError, StoreError
from gateway.fleet.model import Backend, BackendState, Declaration
from gateway.store.database import Database
from gateway.store.migrate import config_for, upgrade
from gateway.store.store import Store
from gateway.store.tables import metadata
from probes.model import Capability, Finding, Support
from tests.fakes.fleet import registered
from tests.fakes.stores import opened_store, store_at, store_url


def differences(connection: Connection) -> list[Any]:
    options = {"compare_type": True, "compare_server_default": True}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


def tables(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())


def down_to_base(connection: Connection) -> None:
    command.downgrade(config_for(connection), "base")


async def test_migrated_tables_equal_the_codes_tables(url: str) -> None:
    database = Database(url)
    await database.migrate()
    async with database.reading() as connection:
        assert await connection.run_sync(differences) == []
        assert await connection.run_sync(tables) == {*metadata.tables, "alembic_version"}
    await database.close()


async def test_down_and_up_again_gives_the_same_tables(url: str) -> None:
    database = Database(url)
    await database.migrate()
    async with database.writing() as connection:
        await connection.run_sync(down_to_base)
        assert await connection.run_sync(tables) == {"alembic_version"}
    async with database.writing() as connection:
        await connection.run_sync(upgrade)
        assert await connection.run_sync(differences) == []
    await database.close()


def to_0006(connection: Connection) -> None:
    command.downgrade(config_for(connection), "0006")


OLD_BACKEND = {
    "name": "gpu-1",
    "url": "http://gpu-1:8000",
    "declared_kind": "vllm",
    "kind": "openai",
    "state": "up",
    "state_reason": "",
    "credential": "env:GPU_KEY",
    "tokenizer": "/models/m",
    "models": '["m", "n"]',
    "findings": '[{"capability": "streaming", "support": "yes", "evidence": "seen", "value": null}]',
    "probed_at": 12.5,
}
OLD_CALIBRATION = {
    "backend": "gpu-1",
    "model": "m",
    "strategy": "fanout",
    "drafter": "ngram",
    "band": "1",
    "measured_at": 1.0,
    "expires_at": 2.0,
    "context_tokens": 192,
    "plain_seconds": 0.02,
    "verify_seconds": '{"0": 0.02}',
    "draft_seconds": '{"0": 0.002}',
}


def put(table: str, row: dict[str, Any]) -> TextClause:
    values = ", ".join(f":{name}" for name in row)
    return text(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({values})")


async def test_a_backend_of_before_is_one_with_one_instance(tmp_path: Path) -> None:
    database = Database(store_url(tmp_path))
    await database.migrate()
    async with database.writing() as connection:
        await connection.run_sync(to_0006)
        await connection.execute(put("backends", OLD_BACKEND), OLD_BACKEND)
        await connection.execute(put("calibrations", OLD_CALIBRATION), OLD_CALIBRATION)
    await database.close()
    async with opened_store(tmp_path) as store:
        (backend,) = await store.backends.all()
        (calibration,) = await store.calibrations.all()
    streaming = Finding(capability=Capability.STREAMING, support=Support.YES, evidence="seen")
    assert backend.declaration == Declaration(
        name="gpu-1",
        urls=("http://gpu-1:8000",),
        kind="vllm",
        credential="env:GPU_KEY",
        tokenizer="/models/m",
    )
    assert (backend.declared_by, backend.discovery_error) == (None, "")
    assert backend.whole == Backend(
        name="gpu-1",
        url="http://gpu-1:8000",
        declared_kind="vllm",
        state=BackendState.UP,
        state_reason="",
        credential="env:GPU_KEY",
        tokenizer="/models/m",
        models=("m", "n"),
        findings={Capability.STREAMING: streaming},
        probed_at=12.5,
    )
    assert calibration.key.place == "gpu-1"


async def test_going_back_leaves_a_backend_its_first_instance(tmp_path: Path) -> None:
    async with opened_store(tmp_path) as store:
        one, two = (
            Backend(name="a", url=url, instance=url, probed_at=1.0) for url in ("http://one", "http://two")
        )
        await store.backends.add(registered(one, two))
    database = Database(store_url(tmp_path))
    async with database.writing() as connection:
        await connection.run_sync(to_0006)
        rows = await connection.execute(text("SELECT name, url, probed_at FROM backends"))
        assert [tuple(row) for row in rows] == [("a", "http://one", 1.0)]
    await database.close()


async def test_revisions_form_one_line(url: str) -> None:
    database = Database(url)
    await database.migrate()
    async with database.reading() as connection:
        heads = await connection.run_sync(lambda c: ScriptDirectory.from_config(config_for(c)).get_heads())
    assert len(heads) == 1
    await database.close()


async def test_processes_that_start_at_once_may_all_migrate(url: str) -> None:
    stores = [Store(url) for _ in range(4)]
    await asyncio.gather(*(store.migrate() for store in stores))
    assert [await store.backends.all() for store in stores] == [()] * 4
    for store in stores:
        await store.close()


async def test_migrating_again_keeps_what_is_there(url: str) -> None:
    async with store_at(url) as store:
        await store.meta.set_admin_token_sha256("a" * 64)
        await store.migrate()
        assert await store.meta.admin_token_sha256() == "a" * 64


async def test_tables_of_a_newer_version_are_left_alone(url: str) -> None:
    async with store_at(url):
        database = Database(url)
        async with database.writing() as connection:
            await connection.execute(text("UPDATE alembic_version SET version_num = 'of-tomorrow'"))
        with pytest.raises(StoreError, match="newer version of the gateway"):
            await database.migrate()
        assert not database.migrated
        await database.close()


async def test_a_folder_name_with_a_percent_sign_is_no_format(tmp_path: Path) -> None:
    folder = tmp_path / "50%(here)s"
    async with opened_store(folder) as store:
        assert await store.backends.all() == ()


async def test_sqlite_files_get_a_write_ahead_log(tmp_path: Path) -> None:
    database = Database(store_url(tmp_path))
    await database.migrate()
    async with database.reading() as connection:
        assert (await connection.exec_driver_sql("PRAGMA journal_mode")).scalar() == "wal"
        assert (await connection.exec_driver_sql("PRAGMA busy_timeout")).scalar() == 5000
    await database.close()


async def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    async with opened_store(tmp_path) as store:
        await store.meta.set_admin_token_sha256("a" * 64)
        modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "data").iterdir()}
    assert modes == {0o600}


async def test_a_folder_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    store = Store(store_url(tmp_path))
    with pytest.raises(StoreError, match="cannot be used"):
        await store.migrate()
    assert not store.migrated
    await store.close()


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://h/d", "sqlite://", "sqlite:///:memory:"])
def test_a_url_of_no_usable_database_says_what_is_allowed(url: str) -> None:
    with pytest.raises(SettingsError, match="sqlite:///PATH"):
        Database(url)


def test_a_password_in_the_url_is_not_shown() -> None:
    with pytest.raises(SettingsError) as refused:
        Database("mysql://operator:hunter2@host/db")
    assert "hunter2" not in str(refused.value)


def test_postgresql_without_its_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install .ace-gateway\[postgres\]"):
        Database("postgresql://operator:hunter2@host/db")
