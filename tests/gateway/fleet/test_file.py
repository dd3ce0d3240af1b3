"""fleet.yaml: what it may say, and how it is followed."""

import asyncio
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import FleetError
from gateway.fleet.file import FleetHolder, fleet_from, fleet_schema, schema_text
from gateway.fleet.model import Declaration, Discovery
from gateway.fleet.processes import CONSISTENT_LOOKS
from tests.fakes.clock import FakeClock
from tests.fakes.waiting import until

GOOD = """\
version: 1
x-key: &key {credential: "env:GPU_KEY", kind: vllm}
backends:
  - {name: solo, url: "http://gpu-1:8000/v1/"}
  - name: pair
    urls: ["http://gpu-2:8000", "http://gpu-3:8000"]
    <<: *key
  - {name: pods, url: "http://llama.pods.svc:8000", discovery: dns}
"""


def names(declarations: Iterable[Declaration]) -> list[str]:
    return [declaration.name for declaration in declarations]


def complaints(text: str) -> str:
    with pytest.raises(FleetError) as refused:
        fleet_from(text.encode(), "fleet.yaml", at=0.0)
    return str(refused.value)


def test_a_file_says_what_the_rest_body_says() -> None:
    loaded = fleet_from(GOOD.encode(), "fleet.yaml", at=5.0)
    assert loaded.declarations == (
        Declaration(name="solo", urls=("http://gpu-1:8000",)),
        Declaration(
            name="pair",
            urls=("http://gpu-2:8000", "http://gpu-3:8000"),
            kind="vllm",
            credential="env:GPU_KEY",
        ),
        Declaration(name="pods", urls=("http://llama.pods.svc:8000",), discovery=Discovery.DNS),
    )
    assert (loaded.source, loaded.loaded_at) == ("fleet.yaml", 5.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "fleet.yaml:1: the file is empty"),
        ("[]", "fleet.yaml:1: a fleet is a mapping"),
        ("version: 2\n", "fleet.yaml:1: version is 2. Allowed: 1."),
        ("backends: []\n", "fleet.yaml:1: version is missing"),
        ("version: 1\nbackend: []\n", "fleet.yaml:2: backend is not a known key. Did you mean 'backends'?"),
        ("version: 1\nversion: 1\n", "fleet.yaml:2: key 'version' is already given on line 1."),
        (
            "version: 1\nbackends:\n  - name: a\n    url: http://a\n    knd: vllm\n",
            "fleet.yaml:5: backend 'a': knd is not a known key. Did you mean 'kind'?",
        ),
        (
            "version: 1\nbackends:\n  - name: a\n    url: http://a\n    kind: trtllm\n",
            "fleet.yaml:5: backend 'a': kind is 'trtllm'. Allowed: auto, openai, embedded, vllm, sglang.",
        ),
        ("version: 1\nbackends:\n  - url: http://a\n", "backend number 1: name is missing"),
        ("version: 1\nbackends:\n  - name: a\n", "fleet.yaml:3: backend 'a': A backend has either `url`"),
        (
            "version: 1\nbackends:\n  - {name: a, url: http://a}\n  - {name: a, url: http://b}\n",
            "fleet.yaml:4: backend 'a': the name is already taken on line 3.",
        ),
        (
            "version: 1\nbackends:\n  - {name: a, url: 'http://169.254.169.254'}\n",
            "fleet.yaml:3: backend 'a': The backend URL 'http://169.254.169.254' is refused",
        ),
    ],
)
def test_everything_wrong_has_its_file_and_line(text: str, said: str) -> None:
    assert said in complaints(text)


def test_all_complaints_come_at_once() -> None:
    text = "version: 1\nbackends:\n  - {name: a, url: 'http://[::ffff:169.254.169.254]'}\n  - {name: -b, url: http://b}\n"
    assert [line.split(": ")[0] for line in complaints(text).splitlines()] == ["fleet.yaml:3", "fleet.yaml:4"]


def test_a_key_that_was_pasted_in_is_not_repeated() -> None:
    said = complaints("version: 1\nbackends:\n  - {name: a, url: http://a, credential: sk-secret}\n")
    assert "env:NAME" in said
    assert "sk-secret" not in said


@given(st.text(max_size=60))
def test_any_text_is_a_fleet_or_a_fleet_error(text: str) -> None:
    with suppress(FleetError):
        assert fleet_from(text.encode(errors="replace"), "fleet.yaml", at=0.0).declarations == ()


def test_the_shipped_schema_is_the_generated_one() -> None:
    """Renew it with `python -m gateway.fleet.file > policies/fleet.schema.json`."""
    shipped = resources.files("policies").joinpath("fleet.schema.json").read_text(encoding="utf-8")
    assert shipped == schema_text()


def test_no_level_of_the_schema_takes_unknown_keys() -> None:
    schema = fleet_schema()
    levels = [schema, *(part for part in schema["$defs"].values() if part["type"] == "object")]
    assert all(level["additionalProperties"] is False for level in levels)


# Following


@dataclass
class Declared:
    """Takes what a holder declares."""

    sets: list[list[str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    async def declare(self, source: str, declarations: Iterable[Declaration]) -> None:
        self.sets.append(names(declarations))

    def holder(self, path: Path | None) -> FleetHolder:
        return FleetHolder(path, declare=self.declare, refused=lambda: self.refused, clock=FakeClock())


def text_of(*backends: str) -> str:
    return "version: 1\nbackends:\n" + "".join(
        f"  - {{name: {name}, url: http://{name}}}\n" for name in backends
    )


def write(path: Path, text: str) -> None:
    path.write_text(text)


def remove(path: Path) -> None:
    path.unlink()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(text_of("a"))
    return path


async def look(holder: FleetHolder, times: int = 2) -> None:
    """What the second of two equal looks finds is believed."""
    for _ in range(times):
        holder.check_once()
        await holder.declare_once()


async def test_without_a_file_nothing_is_declared() -> None:
    declared = Declared()
    holder = declared.holder(None)
    await look(holder)
    await holder.run(0.001)
    assert (declared.sets, holder.current, holder.error) == ([], None, None)


def test_a_bad_file_at_the_start_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="cannot be read"):
        Declared().holder(tmp_path / "none.yaml")


async def test_a_change_is_declared_once(path: Path) -> None:
    declared = Declared()
    holder = declared.holder(path)
    await look(holder, 4)
    write(path, text_of("a", "b"))
    await look(holder, 4)
    assert declared.sets == [["a"], ["a", "b"]]


async def test_a_half_written_file_declares_nothing(path: Path) -> None:
    """BR-C12: the part before the cut is valid, and would remove a backend."""
    declared = Declared()
    holder = declared.holder(path)
    await holder.declare_once()
    whole = text_of("a", "b", "c")
    for state in ("", whole[:40], text_of("a", "b"), whole):
        write(path, state)
        await look(holder, 1)
    assert (declared.sets, holder.error) == ([["a"]], None)
    await look(holder, 1)
    assert declared.sets == [["a"], ["a", "b", "c"]]


async def test_a_bad_file_keeps_what_was_declared_and_says_why(path: Path) -> None:
    declared = Declared()
    holder = declared.holder(path)
    await look(holder)
    write(path, "version: 1\nbackend: []\n")
    await look(holder, 3)
    assert declared.sets == [["a"]]
    assert holder.error is not None
    assert "fleet.yaml:2: backend is not a known key" in holder.error
    assert "stays in force" in holder.error
    remove(path)
    await look(holder, 3)
    assert "cannot be read" in holder.error
    write(path, text_of("a"))
    await look(holder)
    assert not holder.error
    assert declared.sets == [["a"]]


async def test_what_is_not_in_force_is_said(path: Path) -> None:
    declared = Declared(refused=["fleet.yaml: backend 'a' is registered by hand already."])
    holder = declared.holder(path)
    assert holder.error == "fleet.yaml: backend 'a' is registered by hand already."


async def test_a_config_maps_swap_is_followed(tmp_path: Path) -> None:
    """BR-C13."""
    for version in ("ts1", "ts2"):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "fleet.yaml").write_text(text_of(version))
    (tmp_path / "..data").symlink_to("..ts1")
    (tmp_path / "fleet.yaml").symlink_to("..data/fleet.yaml")
    declared = Declared()
    following = asyncio.create_task(declared.holder(tmp_path / "fleet.yaml").run(0.001))
    await until(lambda: declared.sets == [["ts1"]])
    (tmp_path / "..data_tmp").symlink_to("..ts2")
    (tmp_path / "..data_tmp").replace(tmp_path / "..data")
    await until(lambda: declared.sets == [["ts1"], ["ts2"]])
    following.cancel()


def test_the_documented_example_is_a_fleet() -> None:
    page = (Path(__file__).parents[3] / "docs" / "fleet.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    declarations = fleet_from(example.encode(), "docs/fleet.md", at=0.0).declarations
    assert names(declarations) == ["embedded", "llama-8b", "llama-70b"]
    assert f"After {CONSISTENT_LOOKS} looks" in page
