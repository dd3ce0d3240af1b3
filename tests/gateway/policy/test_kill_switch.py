"""The kill file: whatever cannot be read or understood kills everything, and says so."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.kill_switch import (
    MAX_BYTES,
    KillSwitch,
    NotUnderstood,
    line_of,
    remove_file,
    scopes_in,
    write_file,
)
from gateway.policy.overlays import Scope

EVERYTHING = Scope()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kill"


def switch_at(file: Path, variable: str | None = None) -> KillSwitch:
    return KillSwitch(file, variable, lambda: 5.0)


def scopes_of(switch: KillSwitch) -> list[Scope]:
    return [kill.scope for kill in switch.kills]


def test_without_a_file_nothing_is_killed(file: Path) -> None:
    switch = switch_at(file)
    assert (switch.kills, switch.error, switch.check_once()) == ((), None, False)


@pytest.mark.parametrize(
    ("text", "scopes"),
    [
        ("", [EVERYTHING]),
        ("\n# somebody: too slow\n", [EVERYTHING]),
        ("all\n", [EVERYTHING]),
        ("\ufeffALL\r\n", [EVERYTHING]),
        ("tenant search\n", [Scope(tenant="search")]),
        ("model llama-3*\n  backend gpu 7\n", [Scope(model="llama-3*"), Scope(backend="gpu 7")]),
        ("tenant a\nall\n", [Scope(tenant="a"), EVERYTHING]),
    ],
)
def test_the_file_kills_what_it_says(file: Path, text: str, scopes: list[Scope]) -> None:
    file.write_text(text, encoding="utf-8")
    switch = switch_at(file)
    assert (scopes_of(switch), switch.error) == (scopes, None)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"tenants search\n", "line 1 is 'tenants search'; allowed are `all`, `tenant NAME`"),
        (b"tenant a\nrule chat\n", "line 2"),
        (b"tenant\n", "line 1"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"#" * (MAX_BYTES + 1), "is larger than"),
    ],
)
def test_what_is_not_understood_kills_everything_and_says_so(
    file: Path, caplog: pytest.LogCaptureFixture, content: bytes, words: str
) -> None:
    file.write_bytes(content)
    switch = switch_at(file)
    assert scopes_of(switch) == [EVERYTHING]
    assert switch.error is not None
    assert str(file) in switch.error
    assert words in switch.error
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_what_cannot_be_read_kills_everything(file: Path) -> None:
    file.mkdir()
    switch = switch_at(file)
    assert scopes_of(switch) == [EVERYTHING]
    assert "cannot be read (Is a directory)" in (switch.error or "")


def test_a_link_to_nothing_kills_everything(file: Path) -> None:
    file.symlink_to("gone")
    assert scopes_of(switch_at(file)) == [EVERYTHING]


def test_a_folder_that_is_not_there_kills_nothing(tmp_path: Path) -> None:
    assert switch_at(tmp_path / "none" / "kill").kills == ()


def test_each_change_is_seen_once_and_logged_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    switch = switch_at(file)
    seen = []
    for change in (lambda: file.write_text("tenant a"), lambda: file.write_text("all"), file.unlink):
        change()
        seen.append((switch.check_once(), switch.check_once(), scopes_of(switch)))
    assert seen == [
        (True, False, [Scope(tenant="a")]),
        (True, False, [EVERYTHING]),
        (True, False, []),
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]


def test_a_config_maps_swap_is_an_ordinary_change(tmp_path: Path) -> None:
    for name, text in (("..ts1", "tenant a"), ("..ts2", "tenant b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kill").write_text(text)
    (tmp_path / "..data").symlink_to("..ts1")
    (tmp_path / "kill").symlink_to("..data/kill")
    switch = switch_at(tmp_path / "kill")
    assert scopes_of(switch) == [Scope(tenant="a")]
    (tmp_path / "..data_tmp").symlink_to("..ts2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert switch.check_once()
    assert scopes_of(switch) == [Scope(tenant="b")]


def test_the_variable_kills_besides_the_file(file: Path) -> None:
    file.write_text("tenant a")
    switch = switch_at(file, "model m")
    assert scopes_of(switch) == [Scope(model="m"), Scope(tenant="a")]
    assert [kill.author for kill in switch.kills] == ["ACE_KILL", str(file)]
    assert switch_at(file, "false").error is not None, "not one of the words, so everything is killed"


def test_writing_adds_to_what_is_killed(file: Path) -> None:
    assert write_file(file, Scope(tenant="a"), "ann: slow\nor so") == "tenant a"
    assert write_file(file, Scope(model="m"), "") == "tenant a; model m"
    assert scopes_of(switch_at(file)) == [Scope(tenant="a"), Scope(model="m")]
    assert write_file(file, EVERYTHING, "") == "everything"
    remove_file(file)
    remove_file(file)
    assert not file.exists()


def test_writing_keeps_what_was_written_by_hand(file: Path) -> None:
    file.write_text("# by hand\ntenant a")
    assert write_file(file, Scope(tenant="b"), "") == "tenant a; tenant b"
    assert file.read_text().startswith("# by hand\ntenant a\n")


@pytest.mark.parametrize("content", [b"", b"# only a comment\n", b"all", b"what?", b"# \xff\ntenant b\n"])
def test_writing_never_narrows_a_file_that_kills_everything(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert write_file(file, Scope(tenant="a"), "") == "everything"
    assert EVERYTHING in scopes_of(switch_at(file))


@pytest.mark.parametrize("scope", [Scope(tenant="a", model="m"), Scope(tenant="a\nb"), Scope(tenant=" a")])
def test_a_scope_that_no_line_can_say_is_refused(file: Path, scope: Scope) -> None:
    with pytest.raises(NotUnderstood):
        write_file(file, scope, "")
    assert not file.exists()


@given(st.text(max_size=60))
def test_any_text_is_scopes_or_not_understood(text: str) -> None:
    with contextlib.suppress(NotUnderstood):
        assert scopes_in(text)


@given(st.sampled_from(["tenant", "model", "backend"]), st.text(min_size=1, max_size=20))
def test_a_line_says_exactly_its_scope_or_is_refused(condition: str, name: str) -> None:
    scope = Scope(**{condition: name})
    try:
        line = line_of(scope)
    except NotUnderstood:
        return
    assert scopes_in(line) == (scope,)
