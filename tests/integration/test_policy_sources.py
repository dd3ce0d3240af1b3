"""Four workers and one policy: from the store within two seconds, from a swapped file, and its history."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.fakes.processes import ADMIN_TOKEN, Part, until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

WORKERS = 4
PROMISED_S = 2.0
ASKED_AGAIN = 6 * WORKERS
"""Requests on connections of their own, which fall to any worker."""


def text_of(name: str) -> str:
    return f"# as {name} was written\nversion: 1\nrules:\n  - {{name: {name}, mode: off}}\n"


class Gateway:
    """A gateway of several workers, asked on a new connection each time."""

    def __init__(self, url: str) -> None:
        self.url = f"{url}/admin/v1/policy"
        self.headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}

    def call(self, method: str, path: str = "", json: object = None) -> httpx.Response:
        return httpx.request(
            method, self.url + path, headers=self.headers, json=json, trust_env=False, timeout=30.0
        )

    def in_force(self) -> str:
        """The revision that whichever worker answers has in force."""
        return str(self.call("GET").raise_for_status().json()["revision"])

    def everywhere(self, revision: str) -> bool:
        return all(self.in_force() == revision for _ in range(ASKED_AGAIN))

    def history(self) -> list[str]:
        """The texts that have been in force, oldest first."""
        listed = self.call("GET", "/history").raise_for_status().json()["revisions"]
        texts = [self.call("GET", f"/history/{one['number']}").json()["text"] for one in listed]
        return texts[::-1]


@contextmanager
def gateway(folder: Path, policy: Path, **env: str) -> Iterator[Gateway]:
    arguments = ("serve", "--data", str(folder / "data"), "--policy", str(policy), "--workers", str(WORKERS))
    part = Part("gateway", arguments, folder / "gateway.log", {"ACE_ADMIN_TOKEN": ADMIN_TOKEN, **env})
    with part:
        yield Gateway(part.url)


def test_a_policy_put_into_the_store_is_in_force_in_every_worker_within_two_seconds(tmp_path: Path) -> None:
    seed = tmp_path / "seed.yaml"
    seed.write_text(text_of("seeded"))
    with gateway(tmp_path, seed, ACE_POLICY_SOURCE="store") as site:
        for name in ("second", "third", "fourth"):
            based_on = site.in_force()
            put = site.call("PUT", json={"text": text_of(name), "based_on": based_on, "reason": "a test"})
            began, revision = time.monotonic(), put.raise_for_status().json()["revision"]
            last_other = began
            while time.monotonic() < began + PROMISED_S + 1.0:
                if site.in_force() != revision:
                    last_other = time.monotonic()
            assert last_other - began <= PROMISED_S
            late = site.call("PUT", json={"text": text_of("late"), "based_on": based_on, "reason": "r"})
            assert late.status_code == 409
        assert site.history() == [text_of(name) for name in ("seeded", "second", "third", "fourth")]
        back = site.call("POST", "/rollback", json={"revision": "1", "reason": "a test"}).raise_for_status()
        until(lambda: site.everywhere(back.json()["revision"]), "the first policy everywhere")
    with gateway(tmp_path, seed, ACE_POLICY_SOURCE="store") as site:
        assert site.everywhere(back.json()["revision"])
        assert len(site.history()) == 5


def test_each_of_three_swaps_is_live_in_every_worker_and_kept_once(tmp_path: Path) -> None:
    """BR-C13: policy.yaml -> ..data/policy.yaml, and ..data is swapped."""
    names = ("ts1", "ts2", "ts3", "ts4")
    for name in names:
        (tmp_path / f"..{name}").mkdir()
        (tmp_path / f"..{name}" / "policy.yaml").write_text(text_of(name))
    (tmp_path / "..data").symlink_to("..ts1")
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")
    with gateway(tmp_path, tmp_path / "policy.yaml") as site:
        until(lambda: site.history() == [text_of("ts1")], "the first policy in the history")
        for name in names[1:]:
            before = site.in_force()
            (tmp_path / "..data_tmp").symlink_to(f"..{name}")
            (tmp_path / "..data_tmp").rename(tmp_path / "..data")
            until(lambda before=before: site.in_force() != before, f"{name} in force")  # type: ignore[misc]
            until(lambda: site.everywhere(site.in_force()), f"{name} everywhere")
        until(lambda: len(site.history()) == len(names), "the history of all")
        assert site.everywhere(site.in_force())
        assert site.history() == [text_of(name) for name in names]
        refused = site.call("PUT", json={"text": "version: 1\n", "based_on": "x", "reason": "r"})
        assert refused.status_code == 409
        assert str(tmp_path / "policy.yaml") in refused.json()["error"]["message"]
