"""Credentials are references; a key is never kept, nor repeated."""

from pathlib import Path

import pytest

from gateway.errors import CredentialMissing, MalformedRequest
from gateway.fleet.credentials import check_reference, read_credential


@pytest.mark.parametrize("reference", [None, "env:GPU_KEY", "env:_x1", "file:/run/secrets/gpu key"])
def test_a_reference_is_kept_as_it_is(reference: str | None) -> None:
    assert check_reference(reference) == reference


@pytest.mark.parametrize(
    "given",
    [
        *("", "sk-secret", "env:", "env:1secret", "env:A-secret", "file:secret", "file:", "ENV:secret"),
        *("file:/a\nsecret", ["sk-secret"], {"key": "sk-secret"}, 7),
    ],
)
def test_anything_else_is_refused_without_repeating_it(given: object) -> None:
    with pytest.raises(MalformedRequest, match="env:NAME") as refused:
        check_reference(given)
    assert "secret" not in str(refused.value)


def test_the_gateways_own_tokens_are_not_for_backends() -> None:
    with pytest.raises(MalformedRequest, match="never sent to a backend"):
        check_reference("env:ACE_ADMIN_TOKEN")


def test_a_key_is_read_anew_each_time(tmp_path: Path) -> None:
    file = tmp_path / "key"
    for key in ("one", "two"):
        file.write_text(f" {key}\n")
        assert read_credential("b1", f"file:{file}") == key


def test_a_key_in_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "k")
    assert read_credential("b1", "env:SOME_KEY") == "k"


@pytest.mark.parametrize("content", [b"", b" \n", b"a\nb", b"caf\xc3\xa9", b"\xff"])
def test_a_file_without_a_usable_key_is_named_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(CredentialMissing) as raised:
        read_credential("b1", f"file:{file}")
    assert str(file) in str(raised.value)
    assert "caf" not in str(raised.value)


@pytest.mark.parametrize("reference", ["file:/no/such/file", "env:NO_SUCH_NAME", "sk-no-reference", ""])
def test_what_leads_nowhere_is_missing(reference: str) -> None:
    with pytest.raises(CredentialMissing):
        read_credential("b1", reference)
