from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.openai_server import OpenAIServer
from tests.fakes.postgres import PostgresServer
from tests.fakes.processes import ADMIN_TOKEN, RUNNER_TOKEN, Part, until
from tests.fakes.served import served

POLICY = """
version: 1
rules:
  - {name: shadow, match: {tenant: shadow}, mode: shadow, draft: ngram}
"""


@pytest.fixture(scope="module")
def mortal_postgres() -> Iterator[PostgresServer]:
    """A server that tests may kill and hang, and leave running."""
    with PostgresServer() as server:
        yield server


@dataclass
class Gateways:
    """Three gateway processes on one PostgreSQL, with two backends registered at the first.

    Attributes:
        parts: The processes.
        keys: API keys of a tenant that is served plainly, and of one whose requests are shadowed.
        database: URL of what they share.
    """

    parts: list[Part]
    folder: Path
    database: str

    @property
    def urls(self) -> list[str]:
        return [part.url for part in self.parts]

    def another(self, name: str) -> Part:
        """One more gateway on the same database, not started yet."""
        (self.folder / "policy.yaml").write_text(POLICY)
        return Part(
            "gateway",
            ("serve", "--data", str(self.folder / name), "--policy", str(self.folder / "policy.yaml")),
            self.folder / f"{name}.log",
            {
                "ACE_STORE_URL": self.database,
                "ACE_POLICY_SOURCE": "store",
                "ACE_ADMIN_TOKEN": ADMIN_TOKEN,
                "ACE_RUNNER_TOKEN": RUNNER_TOKEN,
            },
        )

    def ask(self, method: str, path: str, *, at: int = 0, **more: Any) -> httpx.Response:
        """An operator's request to one of them."""
        return httpx.request(
            method,
            f"{self.urls[at]}{path}",
            headers={"authorization": f"Bearer {ADMIN_TOKEN}"},
            timeout=60,
            trust_env=False,
            **more,
        )

    def key(self, tenant: str) -> str:
        made = self.ask("POST", "/admin/v1/keys", json={"name": f"of-{tenant}", "tenant": tenant})
        return str(made.raise_for_status().json()["key"])

    def state_of(self, backend: str, *, at: int) -> str | None:
        """A backend's state as one gateway sees it; None if it does not know it."""
        found = self.ask("GET", f"/admin/v1/backends/{backend}", at=at)
        return str(found.json()["state"]) if found.status_code == 200 else None

    def is_up(self, backend: str, at: int) -> bool:
        return self.state_of(backend, at=at) == "up"

    def explained(self, tenant: str, *, at: int) -> dict[str, Any]:
        """What one gateway decides about a tenant's request."""
        facts = {"model": "m", "tenant": tenant}
        answer = self.ask("POST", "/admin/v1/policy/explain", at=at, json=facts)
        return dict(answer.raise_for_status().json()["decision"])

    def dropped(self, *, at: int) -> float:
        """Stage records that one gateway could not keep."""
        page = self.ask("GET", "/metrics", at=at).text
        lines = [line for line in page.splitlines() if 'ace_records_dropped_total{sink="store"}' in line]
        return sum(float(line.rpartition(" ")[2]) for line in lines)


@pytest.fixture
async def gateways(mortal_postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Gateways]:
    shared = Gateways([], tmp_path, await mortal_postgres.new_database())
    with ExitStack() as running, ThreadPoolExecutor() as threads:
        parts = [shared.another(f"gateway-{number}") for number in range(3)]
        shared.parts += threads.map(running.enter_context, parts)
        for name in ("first", "second"):
            url = running.enter_context(served(OpenAIServer(token_s=0.002).app))
            new = {"name": name, "url": url}
            shared.ask("POST", "/admin/v1/backends", json=new).raise_for_status()
        for at in range(3):
            until(partial(shared.is_up, "second", at), "every gateway seeing the backends")
        yield shared
