"""A backend's own key: named by reference, so that no key is ever stored, and read when it is needed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gateway.errors import CredentialMissing, MalformedRequest

_ALLOWED = (
    "Allowed: env:NAME (an environment variable of the gateway) or file:/ABSOLUTE/PATH "
    "(a file that the gateway can read). Put the key there and give its name here."
)
_ENVIRONMENT = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]{0,127}")
_FILE = re.compile(r"file:/[^\x00-\x1f\x7f]{1,500}")
_OUR_OWN = "env:ACE_"


def check_reference(given: object) -> str | None:
    """A reference to a backend's key, unchanged; None for None.

    Raises:
        MalformedRequest: It is none. What was given is not repeated, since it may be a key.
    """
    if given is None:
        return None
    if not isinstance(given, str) or not (_ENVIRONMENT.fullmatch(given) or _FILE.fullmatch(given)):
        raise MalformedRequest("The credential is no reference, so it was not kept. " + _ALLOWED)
    if given.startswith(_OUR_OWN):
        raise MalformedRequest(
            "ACE_* variables hold the gateway's own tokens and are never sent to a backend. " + _ALLOWED
        )
    return given


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


def auth_headers(backend: str, reference: str | None) -> dict[str, str]:
    """The headers that a backend's own key travels in; none without a reference.

    Raises:
        CredentialMissing: Names the reference, never what it holds.
    """
    return {} if reference is None else {"authorization": f"Bearer {read_credential(backend, reference)}"}
