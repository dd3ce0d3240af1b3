"""A gateway whose data folder is on a disk that fills up: a real, small one."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest

from tests.fakes.openai_server import OpenAIServer
from tests.fakes.processes import ADMIN_TOKEN, Part, until
from tests.fakes.served import served
from tests.fakes.service_clients import ServiceClients

pytestmark = [pytest.mark.ops, pytest.mark.slow]

POLICY = """
version: 1
defaults: {mode: shadow, draft: ngram}
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "ace-test", folder], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr!r}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def fill(disk: Path) -> Path:
    """Take all the space that is left; the file that has it."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert shutil.disk_usage(disk).free == 0
    return ballast


def recorded(disk: Path) -> list[str]:
    with closing(sqlite3.connect(disk / "data" / "ace.db")) as database:
        return [request_id for (request_id,) in database.execute("SELECT request_id FROM stage_records")]


async def test_a_full_disk_costs_no_request_is_said_once_and_records_are_written_when_there_is_space(
    small_disk: Path, tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    gateway = Part(
        "gateway",
        ("serve", "--data", str(small_disk / "data"), "--policy", str(tmp_path / "policy.yaml")),
        tmp_path / "gateway.log",
        {"ACE_ADMIN_TOKEN": ADMIN_TOKEN},
    )
    with served(OpenAIServer().app) as backend, gateway:
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        async with httpx.AsyncClient(base_url=gateway.url, headers=headers, trust_env=False) as admin:
            new = {"name": "first", "url": backend}
            (await admin.post("/admin/v1/backends", json=new, timeout=60)).raise_for_status()
            made = await admin.post("/admin/v1/keys", json={"name": "k", "tenant": "t"})
            async with ServiceClients([gateway.url], [made.json()["key"]], clients=3) as clients:
                await clients.more(30)
                ballast = fill(small_disk)
                while "Stage records wait in memory" not in gateway.log.read_text():
                    await clients.more(10)
                await clients.more(200)
                ready = await admin.get("/readyz")
                assert ready.status_code == 200
                ballast.unlink()
                await clients.more(10)
            assert clients.failed == clients.cut == []
            until(lambda: len(recorded(small_disk)) == len(clients.served), "every record in the store")
            assert set(recorded(small_disk)) == set(clients.served)
    log = gateway.log.read_text()
    assert log.count("Stage records wait in memory") == 1
    assert log.count("are written to the store again") == 1
    assert log.count("is not saved for now") <= 1
