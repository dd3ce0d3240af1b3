"""Credentials are references; a key is never kept, nor repeated."""

import pytest

from gateway.errors import MalformedRequest
from gateway.fleet.credentials import check_reference


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
