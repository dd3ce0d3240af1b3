"""Canaries in prompts, answers, keys, tokens and credentials: none is in anything that the gateway leaves."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gateway.telemetry.document import LOGS, log_fields
from tests.fakes.openai_server import Document, OpenAIServer
from tests.fakes.otlp_receiver import OtlpReceiver, otlp_receiver
from tests.fakes.processes import Part, until
from tests.fakes.served import served

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PROMPT, ANSWER, ERROR = "canary-prompt", "canary-answer", "canary-error"
ADMIN, RUNNER = "canary-admin-token-00", "canary-runner-token-0"
CREDENTIAL, COLLECTOR, WRONG = "canary-credential", "canary-collector", "canary-wrong-key"
CANARIES = (PROMPT, ANSWER, ERROR, ADMIN, RUNNER, CREDENTIAL, COLLECTOR, WRONG)
POLICY = """
version: 1
rules:
  - {name: off, match: {tenant: off}, mode: off}
  - {name: shadow, match: {tenant: shadow}, mode: shadow, draft: ngram}
  - {name: prod, mode: prod, experimental: true, draft: ngram, prod: {control: {fraction: 0}}}
"""


@dataclass
class Site:
    """A gateway through which canaries have gone, and where it left things."""

    folder: Path
    gateway: Part
    receiver: OtlpReceiver
    keys: tuple[str, ...]
    log: Path

    def ace(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command line, in the folder."""
        environment = {"ACE_TOKEN": ADMIN, "ACE_GATEWAY_URL": self.gateway.url, "PATH": "/usr/bin:/bin"}
        return subprocess.run(
            [sys.executable, "-m", "gateway", *arguments],
            env=environment | {"HOME": str(self.folder), "PYTHONPATH": ":".join(sys.path)},
            cwd=self.folder,
            capture_output=True,
            text=True,
        )


def says_the_answer(request: Document, answer: Document) -> None:
    """Has the backend say a canary, in its answers and in names that a hostile one would make up."""
    for choice in answer["choices"]:
        if "message" in choice:
            choice["message"]["content"] = ANSWER
        else:
            choice["text"] = ANSWER
        choice["finish_reason"] = "stop"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("canaries")
    (folder / "policy.yaml").write_text(POLICY)
    (folder / "credential").write_text(CREDENTIAL)
    server = OpenAIServer(key=CREDENTIAL)
    with otlp_receiver() as receiver, served(server.app) as url:
        gateway = Part(
            "gateway",
            ("serve", "--data", str(folder / "data"), "--policy", str(folder / "policy.yaml")),
            folder / "gateway.log",
            {
                "ACE_ADMIN_TOKEN": ADMIN,
                "ACE_RUNNER_TOKEN": RUNNER,
                "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
                "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{COLLECTOR}",
                "OTEL_BSP_SCHEDULE_DELAY": "20",
            },
        )
        with gateway:
            made = traffic(gateway, server, url, folder)
            until(lambda: len(receiver.taken) >= 12, "the spans of all requests")
            yield Site(folder, gateway, receiver, made, folder / "gateway.log")


def traffic(gateway: Part, server: OpenAIServer, url: str, folder: Path) -> tuple[str, ...]:
    """Requests of every mode, answered, refused and failed; returns the tenants' keys."""
    with httpx.Client(base_url=gateway.url, trust_env=False, timeout=60) as client:
        admin = {"authorization": f"Bearer {ADMIN}"}
        backend = {"name": "b", "url": url, "credential": f"file:{folder / 'credential'}"}
        client.post("/admin/v1/backends", json=backend, headers=admin).raise_for_status()
        keys = tuple(
            client.post("/admin/v1/keys", json={"name": name, "tenant": name}, headers=admin).json()["key"]
            for name in ("off", "shadow", "prod")
        )
        server.spoil = says_the_answer
        asked = {"model": "m", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8}
        for key in keys:
            for body in (asked, asked | {"stream": True}, asked | {"model": "unknown"}):
                mine = {"authorization": f"Bearer {key}", "cookie": WRONG, "x-api-key": WRONG}
                client.post("/v1/chat/completions", json=body, headers=mine)
        wrong = {"authorization": f"Bearer {WRONG}"}
        client.post("/v1/chat/completions", json=asked, headers=wrong)
        client.get("/admin/v1/policy", headers=wrong)
        client.post("/v1/chat/completions", content=f'{{"model": "{PROMPT}', headers={})
        server.answers["/v1/chat/completions"] = (
            500,
            json.dumps({"error": {"message": ERROR, "code": ERROR}}),
        )
        client.post("/v1/chat/completions", json=asked, headers={"authorization": f"Bearer {keys[2]}"})
    return keys


def without_canaries(text: str, site: Site) -> None:
    assert [canary for canary in (*CANARIES, *site.keys) if canary in text] == []


def test_none_is_in_the_logs_the_metrics_the_spans_and_the_stage_records(site: Site) -> None:
    log = site.log.read_text()
    assert '"log":"ace.stage"' in log
    without_canaries(log, site)
    without_canaries(httpx.get(f"{site.gateway.url}/metrics").text, site)
    without_canaries(repr(site.receiver.taken), site)
    assert site.receiver.exports[0].headers["authorization"] == f"Bearer {COLLECTOR}"
    until(lambda: stages(site), "stage records in the store")
    without_canaries(json.dumps(stages(site)), site)
    without_canaries((site.folder / "data" / "ace.db").read_bytes().decode("latin-1"), site)
    without_canaries((site.folder / "data" / "ace.db-wal").read_bytes().decode("latin-1"), site)


def stages(site: Site) -> list[object]:
    found: list[object] = httpx.get(
        f"{site.gateway.url}/admin/v1/stages", headers={"authorization": f"Bearer {ADMIN}"}
    ).json()["stages"]
    return found


def test_every_line_of_a_real_gateway_is_as_the_page_of_logs_says(site: Site) -> None:
    lines = [json.loads(line) for line in site.log.read_text().splitlines() if line.startswith('{"log"')]
    assert {line["log"] for line in lines} == set(LOGS)
    for line in lines:
        described = log_fields(LOGS[line["log"]])
        assert list(line) == ["log", *(item.name for item in described)]
        nulls = {item.name for item in described if line[item.name] is None}
        assert nulls <= {item.name for item in described if item.when_null}


def unpacked(file: Path) -> dict[str, str]:
    with tarfile.open(file) as archive:
        return {
            member.name.removeprefix("ace-support/"): io.TextIOWrapper(content, "utf-8").read()
            for member in archive.getmembers()
            if (content := archive.extractfile(member)) is not None
        }


def test_none_is_in_a_support_bundle_which_says_what_it_holds(site: Site) -> None:
    done = site.ace("support-bundle", "bundle.tar.gz")
    assert done.returncode == 0, done.stdout + done.stderr
    files = unpacked(site.folder / "bundle.tar.gz")
    assert set(files) == {
        "doctor.json", "machine.json", "installation.json", "policy.json", "backends.json", "runners.json",
        "stages.json", "metrics.txt", "log.txt", "overlays.json", "policy_history.json",
    }  # fmt: skip
    assert all(name in done.stdout for name in files)
    without_canaries("".join(files.values()) + done.stdout + done.stderr, site)
    assert json.loads(files["installation.json"])["settings"]["admin_token"] == "set"
    assert json.loads(files["backends.json"])[0]["credential"] == "set"
    assert json.loads(files["stages.json"])
    assert "ace_requests_total" in files["metrics.txt"]
    assert "gateway" in files["log.txt"]


def test_a_bundle_that_exists_is_not_overwritten(site: Site) -> None:
    (site.folder / "mine").write_text("mine")
    done = site.ace("support-bundle", "mine")
    assert done.returncode == 1
    assert "exists already" in done.stderr
    assert (site.folder / "mine").read_text() == "mine"


def test_the_doctor_sees_a_healthy_gateway_and_shows_no_canary(site: Site) -> None:
    done = site.ace("doctor", "--json")
    without_canaries(done.stdout + done.stderr, site)
    document = json.loads(done.stdout)
    assert (done.returncode, document["healthy"]) == (0, True), document
    parts = {diagnosis["part"] for diagnosis in document["diagnoses"]}
    assert parts == {
        "installation", "settings", "gateway", "policy", "overlays", "store", "backend b", "draft runners",
        "records", "spans", "clock",
    }  # fmt: skip


def test_a_bundle_of_a_gateway_that_is_down_has_what_there_is(site: Site) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "support-bundle", "down.tar.gz", "--gateway", "http://127.0.0.1:9",
         "--data", str(site.folder / "data"), "--policy", str(site.folder / "policy.yaml")],
        env={"HOME": str(site.folder), "PYTHONPATH": ":".join(sys.path), "ACE_ADMIN_TOKEN": ADMIN},
        cwd=site.folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    files = unpacked(site.folder / "down.tar.gz")
    assert set(files) == {"doctor.json", "machine.json"}
    without_canaries("".join(files.values()), site)
    found = {d["part"]: d["state"] for d in json.loads(files["doctor.json"])["diagnoses"]}
    assert found["gateway"] == "problem"
    assert found["store"] == found["policy file"] == "ok"
    assert "not to be had" in done.stdout
