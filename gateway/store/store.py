"""The store: one object for each table over one database."""

from __future__ import annotations

from gateway.store.backends import BackendRows
from gateway.store.calibrations import CalibrationRows
from gateway.store.database import Database
from gateway.store.engine_blocks import EngineBlockRows
from gateway.store.keys import KeyRows
from gateway.store.look import StoreLook, look_at
from gateway.store.meta import MetaRows
from gateway.store.overlays import OverlayRows
from gateway.store.policies import PolicyRows
from gateway.store.runners import RunnerRows
from gateway.store.stages import StageRows


class Store:
    """Backends, keys, runners, stage records, calibrations, blocks, overlays and policies.

    Every method of its parts raises StoreError when the database cannot be used.

    Args:
        url: `sqlite:///PATH` or `postgresql://...`.

    Raises:
        SettingsError: The URL names no database that the store can use.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        self.meta = MetaRows(self._database)
        self.backends = BackendRows(self._database)
        self.keys = KeyRows(self._database)
        self.runners = RunnerRows(self._database)
        self.stages = StageRows(self._database)
        self.calibrations = CalibrationRows(self._database)
        self.engine_blocks = EngineBlockRows(self._database)
        self.overlays = OverlayRows(self._database)
        self.policies = PolicyRows(self._database)

    @property
    def is_file(self) -> bool:
        """Whether it is a file on this machine; otherwise a server, which may be away for a while."""
        return self._database.is_file

    @property
    def migrated(self) -> bool:
        """Whether this process has brought the tables to the newest revision."""
        return self._database.migrated

    async def migrate(self) -> None:
        """Bring the tables to the newest revision; several processes may do it at once."""
        await self._database.migrate()

    async def look(self) -> StoreLook:
        """What an operator wants to know of the database; never raises, and changes nothing."""
        return await look_at(self._database)

    async def close(self) -> None:
        """Give every connection back."""
        await self._database.close()
