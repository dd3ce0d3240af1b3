"""How a backend's own key is named at registration: by reference, so that no key is ever stored."""

from __future__ import annotations

import re

from gateway.errors import MalformedRequest

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
