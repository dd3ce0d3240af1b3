"""A real gateway, started with what the chart would give its pod."""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from tests.fakes.processes import Part, until
from tests.ops.helm.chart import Rendered, render
from tests.ops.helm.value_sets import POLICY, VALUE_SETS

pytestmark = [pytest.mark.ops, pytest.mark.slow]

HERE = {"ACE_HOST": "127.0.0.1", "ACE_OPERATIONS_PORT": "0", "ACE_DRAIN_DELAY_S": "0"}
"""What differs here from a pod, which has an address of its own; the port is given as a flag."""


def mounted(folder: Path, data: Mapping[str, str], version: int = 1) -> None:
    """Lay out a ConfigMap as the kubelet does: files are links through `..data`, which is swapped whole."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"..version-{version}"
    kept.mkdir()
    for name, text in data.items():
        (kept / name).write_bytes(text.encode())
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(f"..data/{name}")
    fresh = folder / "..data_tmp"
    fresh.symlink_to(kept.name)
    fresh.rename(folder / "..data")
    for old in folder.glob("..version-*"):
        if old != kept:
            shutil.rmtree(old)


class Pod:
    """The gateway's container with its volumes in a folder of ours."""

    def __init__(self, rendered: Rendered, folder: Path) -> None:
        self.folder = folder
        for config in rendered.all("ConfigMap"):
            (name,) = config["data"]
            mounted(folder / "etc/ace" / name.removesuffix(".yaml"), config["data"])
        env = {name: self._here(value) for name, value in rendered.env().items()} | HERE
        self.log = folder / "gateway.log"
        self.part = Part("gateway", tuple(rendered.container()["args"]), self.log, env)

    def _here(self, value: str) -> str:
        return re.sub(r"^/(?=etc/|var/)", f"{self.folder}/", value)

    def rules(self) -> list[str]:
        """The rules in force."""
        admin = {"authorization": "Bearer ace-admin-token-of-the-chart"}
        shown = httpx.get(f"{self.part.url}/admin/v1/policy", headers=admin, trust_env=False).json()
        return [rule["name"] for rule in shown["policy"]["rules"]]

    def has_rules(self, names: list[str]) -> bool:
        """Whether these rules are in force."""
        return self.rules() == names

    def operations(self, path: str) -> httpx.Response:
        """What a probe is answered."""
        (base,) = re.findall(r"metrics: +(\S+)/metrics\n", self.log.read_text())
        return httpx.get(base + path, trust_env=False)


@pytest.mark.parametrize("chosen", ["four workers and a volume", "by JSON"])
def test_a_gateway_starts_with_the_rendered_environment_and_files(chosen: str, tmp_path: Path) -> None:
    rendered = render({**VALUE_SETS[chosen], "policy": {"text": POLICY}})
    pod = Pod(rendered, tmp_path)
    with pod.part:
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = rendered.container()[name]["httpGet"]["path"]
            assert pod.operations(asked).status_code == 200
        assert pod.rules() == ["rag"]
        assert "ace_policy_rejected 0.0" in pod.operations("/metrics").text
        assert httpx.get(f"{pod.part.url}/metrics", trust_env=False).status_code == 404
        assert httpx.get(f"{pod.part.url}/v1/models", trust_env=False).status_code == 200


def test_each_change_of_the_config_map_is_in_force_without_a_restart(tmp_path: Path) -> None:
    pod = Pod(render({"policy": {"text": POLICY}}), tmp_path)
    with pod.part:
        assert pod.rules() == ["rag"]
        for version in (2, 3, 4):
            text = f"version: 1\nrules: [{{name: version-{version}, mode: shadow}}]\n"
            mounted(tmp_path / "etc/ace/policy", {"policy.yaml": text}, version)
            wanted = [f"version-{version}"]
            until(functools.partial(pod.has_rules, wanted), f"version {version} in force")


def test_a_bad_config_map_leaves_the_last_good_one_and_operators_are_told(tmp_path: Path) -> None:
    pod = Pod(render({"policy": {"text": POLICY}}), tmp_path)
    with pod.part:
        mounted(tmp_path / "etc/ace/policy", {"policy.yaml": "version: 1\nruls: []\n"}, version=2)
        until(lambda: pod.operations("/readyz").json()["warnings"], "a warning")
        ready = pod.operations("/readyz")
        assert (ready.status_code, pod.rules()) == (200, ["rag"])
        assert "policy.yaml:2" in ready.json()["warnings"][0]
        assert "ace_policy_rejected 1.0" in pod.operations("/metrics").text
