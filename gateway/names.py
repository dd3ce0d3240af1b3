"""What operators may call things."""

from __future__ import annotations

import re

from gateway.errors import MalformedRequest

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_name(what: str, name: str) -> str:
    """A name, unchanged.

    Raises:
        MalformedRequest: It is none; `what` says whose name it was to be.
    """
    if not _NAME.fullmatch(name):
        raise MalformedRequest(
            f"The {what} {name[:100]!r} is not allowed: 1 to 64 letters, digits, '_', '.' or '-', "
            "the first a letter or digit."
        )
    return name
