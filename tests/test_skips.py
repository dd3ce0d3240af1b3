"""A skip that nobody has allowed fails a run, and says why it was skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SKIPPING = """
import pytest

def test_runs(): pass

@pytest.mark.parametrize("n", [1, 2])
def test_rests(n): pytest.skip("no such device")

def test_rests_too(): pytest.skip("nor such a one")

@pytest.mark.xfail(strict=True)
def test_known(): assert False
"""
WHOLE_FILE = "import pytest\npytest.skip('not on this machine', allow_module_level=True)\ndef test_a(): pass"


def run(pytester: pytest.Pytester, *options: str, allowed: tuple[str, ...] = ()) -> pytest.RunResult:
    """A run of its own, with our options."""
    (pytester.path / "allowed.txt").write_text("\n".join(["# why", "", *allowed]))
    (pytester.path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    pytester.syspathinsert(ROOT)
    return pytester.runpytest_inprocess("-p", "no:asyncio", *options)


def named(result: pytest.RunResult) -> list[str]:
    """The tests that must not have been skipped, as the run's last words have them."""
    words = result.stdout.str().partition("skipped, and not allowed to be")[2]
    return [line for line in words.splitlines() if line.startswith("test_")]


def test_a_skip_fails_the_run_and_says_why_unless_its_name_is_allowed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SKIPPING)
    result = run(
        pytester, "--only-skip", "allowed.txt", allowed=("test_it.py::test_rests[2]", "test_rests_too")
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert named(result) == [
        "test_it.py::test_rests[1]: Skipped: no such device",
        "test_it.py::test_rests_too: Skipped: nor such a one",
    ]


def test_a_run_whose_skips_are_all_allowed_has_passed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SKIPPING, test_whole=WHOLE_FILE)
    allowed = ("test_it.py::test_rests", "test_it.py::test_rests_too", "test_whole.py")
    assert run(pytester, "--only-skip", "allowed.txt", allowed=allowed).ret == pytest.ExitCode.OK


@pytest.mark.slow
def test_a_file_that_skips_itself_is_seen_from_a_parallel_run_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_whole=WHOLE_FILE)
    result = run(pytester, "--only-skip", "allowed.txt", "-n", "1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert named(result) == ["test_whole.py: Skipped: not on this machine"]


def test_skips_are_left_alone_by_those_who_do_not_ask(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SKIPPING)
    assert run(pytester).ret == pytest.ExitCode.OK
