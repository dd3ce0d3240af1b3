"""Alembic, driven from Python, so that an installed wheel can migrate without files of its own."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

_SCRIPTS = Path(__file__).parent / "migrations"


def upgrade(connection: Connection) -> None:
    """Bring the tables to the newest revision, inside the connection's transaction."""
    command.upgrade(config_for(connection), "head")


def newest() -> str:
    """The revision that `upgrade` brings a database to."""
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    return str(ScriptDirectory.from_config(config).get_current_head())


def config_for(connection: Connection) -> Config:
    """What any Alembic command needs in order to work on `connection` with our revisions."""
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
