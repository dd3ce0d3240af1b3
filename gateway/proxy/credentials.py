"""A backend's own key, by reference: `env:NAME` or `file:PATH`."""

from __future__ import annotations

import os
from pathlib import Path

from gateway.errors import CredentialMissing

__all__ = ["CredentialMissing", "read_credential"]


def read_credential(backend: str, reference: str) -> str:
    """The key behind `reference`, read anew at every call so that a rotated key is used at once.

    Raises:
        CredentialMissing: Names the reference, never what it holds.
    """
    kind, _, name = reference.partition(":")
    key = ""
    if kind == "env":
        key = os.environ.get(name, "").strip()
    elif kind == "file":
        try:
            key = Path(name).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            key = ""
    if not key or not (key.isascii() and key.isprintable()):
        raise CredentialMissing(
            f"The credential {reference!r} of backend {backend!r} is not set, empty or not printable ASCII. "
            "Set that environment variable or file where the gateway runs."
        )
    return key
