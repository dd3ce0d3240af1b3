import asyncio
import contextlib
import logging
import os
import shutil
from pathlib import Path

import pytest

from gateway.errors import PolicyError
from gateway.policy.load import DEFAULT_POLICY
from gateway.policy.watch import PolicyHolder


def policy_text(name: str) -> str:
    return f"version: 1\nrules:\n  - name: {name}\n    mode: shadow\n"


def rule_of(holder: PolicyHolder) -> str:
    return holder.current.policy.rules[0].name


def look_twice(holder: PolicyHolder) -> None:
    """What the second of two equal looks finds is believed."""
    holder.check_once()
    holder.check_once()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(policy_text("first"))
    return path


@pytest.fixture
def holder(path: Path) -> PolicyHolder:
    times = iter(range(1000, 2000))
    return PolicyHolder(path, lambda: float(next(times)))


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="gateway.policy.watch")
    return caplog


def test_without_a_file_everything_is_off() -> None:
    holder = PolicyHolder(None, lambda: 5.0)
    look_twice(holder)
    assert holder.current.policy == DEFAULT_POLICY
    assert (holder.current.source, holder.current.loaded_at, holder.error) == ("default", 5.0, None)


def test_a_bad_file_at_the_start_is_refused_since_there_is_nothing_to_keep(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read"):
        PolicyHolder(tmp_path / "none.yaml", lambda: 0.0)


def test_a_change_is_live_after_two_looks(holder: PolicyHolder, path: Path) -> None:
    before = holder.current
    path.write_text(policy_text("second"))
    holder.check_once()
    assert holder.current is before
    holder.check_once()
    assert rule_of(holder) == "second"
    assert holder.current.revision != before.revision
    assert holder.current.loaded_at > before.loaded_at


def test_a_file_that_is_still_being_written_is_left_alone(holder: PolicyHolder, path: Path) -> None:
    """BR-C12: a cut-off policy can be valid; it is not believed while the next look finds another."""
    before = holder.current
    for state in ("", "version: 1\n", policy_text("second")[:-5], policy_text("second")):
        path.write_text(state)
        holder.check_once()
        assert holder.current is before
    assert holder.error is None
    holder.check_once()
    assert rule_of(holder) == "second"


def test_the_same_half_of_two_saves_is_not_believed(holder: PolicyHolder, path: Path) -> None:
    """BR-C12: whoever saves again and again is caught at the same place."""
    before = holder.current
    for _ in range(4):
        path.write_text("version: 1\n")
        later = path.stat().st_mtime_ns + 1_000_000
        os.utime(path, ns=(later, later))
        holder.check_once()
        assert holder.current is before
        path.write_text(policy_text("second"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"version: 1\nrule: 3\n", ":2: rule is not a known key"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_a_bad_file_keeps_the_last_good_policy_and_says_so_once(
    holder: PolicyHolder, path: Path, log: pytest.LogCaptureFixture, content: bytes, words: str
) -> None:
    before = holder.current
    path.write_bytes(content)
    for _ in range(5):
        holder.check_once()
    assert holder.current is before
    assert holder.error is not None
    assert words in holder.error
    assert f"Policy {before.revision}, loaded at 1970-01-01T00:16:40+00:00, stays in force." in holder.error
    assert [record.levelname for record in log.records] == ["ERROR"]


def test_a_missing_file_keeps_the_last_good_policy_until_it_is_back(
    holder: PolicyHolder, path: Path, log: pytest.LogCaptureFixture
) -> None:
    path.unlink()
    look_twice(holder)
    assert rule_of(holder) == "first"
    assert holder.error is not None
    assert holder.error.startswith(f"{path}: cannot be read: No such file or directory.")
    path.write_text(policy_text("first"))
    look_twice(holder)
    assert holder.error is None
    look_twice(holder)
    assert [record.levelname for record in log.records] == ["ERROR", "INFO"]


def test_a_file_that_is_away_for_one_look_is_no_error(holder: PolicyHolder, path: Path) -> None:
    path.unlink()
    holder.check_once()
    path.write_text(policy_text("second"))
    look_twice(holder)
    assert rule_of(holder) == "second"
    assert holder.error is None


def test_a_good_file_clears_the_error(holder: PolicyHolder, path: Path) -> None:
    path.write_text("version: 2\n")
    look_twice(holder)
    assert holder.error is not None
    path.write_text(policy_text("second"))
    look_twice(holder)
    assert rule_of(holder) == "second"
    assert holder.error is None


def test_the_same_bad_file_is_refused_anew_after_a_good_one(holder: PolicyHolder, path: Path) -> None:
    for text in ("version: 2\n", policy_text("second"), "version: 2\n"):
        path.write_text(text)
        look_twice(holder)
    assert rule_of(holder) == "second"
    assert holder.error is not None


def test_each_change_leaves_one_log_line(
    holder: PolicyHolder, path: Path, log: pytest.LogCaptureFixture
) -> None:
    for name in ("second", "third"):
        path.write_text(policy_text(name))
        look_twice(holder)
        look_twice(holder)
    assert len(log.records) == 2
    assert holder.current.revision in log.records[-1].getMessage()


def test_a_config_maps_swaps_are_seen(tmp_path: Path) -> None:
    """BR-C13: policy.yaml -> ..data/policy.yaml and ..data -> ..ts1; an update swaps ..data."""

    def version(name: str) -> Path:
        folder = tmp_path / f"..{name}"
        folder.mkdir()
        (folder / "policy.yaml").write_text(policy_text(name))
        return folder

    data = tmp_path / "..data"
    current = version("ts1")
    data.symlink_to(current.name)
    path = tmp_path / "policy.yaml"
    path.symlink_to("..data/policy.yaml")
    holder = PolicyHolder(path, lambda: 0.0)
    for name in ("ts2", "ts3", "ts4"):
        following = version(name)
        swap = tmp_path / "..data_tmp"
        swap.symlink_to(following.name)
        swap.rename(data)
        shutil.rmtree(current)
        current = following
        look_twice(holder)
        assert (rule_of(holder), holder.error) == (name, None)


@pytest.fixture
def changed(holder: PolicyHolder, path: Path) -> PolicyHolder:
    path.write_text(policy_text("second"))
    return holder


async def test_run_looks_again_and_again(changed: PolicyHolder) -> None:
    watching = asyncio.create_task(changed.run(interval=0.001))
    async with asyncio.timeout(10):
        while rule_of(changed) != "second":  # noqa: ASYNC110 - a holder announces nothing
            await asyncio.sleep(0.001)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
