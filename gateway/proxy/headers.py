"""Which headers cross the gateway, in each direction."""

from __future__ import annotations

import re
from collections.abc import Iterable

RawHeaders = tuple[tuple[bytes, bytes], ...]

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers that speak of one connection; never copied to the next."""

PRIVATE = frozenset({b"authorization", b"cookie", b"x-api-key", b"api-key"})
"""What a client tells the gateway and no backend may learn."""

REQUEST_ID = b"x-request-id"
_WRITTEN_BY_US = frozenset({b"host", b"content-length", b"expect", REQUEST_ID})
_NOT_FORWARDED = HOP_BY_HOP | PRIVATE | _WRITTEN_BY_US
_ACCEPT_ENCODING = b"accept-encoding"
_BODYLESS = frozenset({204, 304})
_SANE_ID = re.compile(rb"[\x20-\x7e]{1,128}")


def first(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Value of the first header called `name` (lower case), None without one."""
    return next((value for key, value in headers if key.lower() == name), None)


def accepted_request_id(headers: RawHeaders) -> str | None:
    """The client's request id, if it is short and printable."""
    given = (first(headers, REQUEST_ID) or b"").strip()
    return given.decode() if _SANE_ID.fullmatch(given) else None


def to_backend(headers: RawHeaders, request_id: str, *, readable: bool) -> tuple[tuple[str, str], ...]:
    """A client's end-to-end headers, in order, with our request id and without anything private.

    Args:
        headers: The client's.
        request_id: Ours.
        readable: Ask for an answer that is not compressed, because it is to be read on its way.
    """
    dropped = _NOT_FORWARDED | _named_by_connection(headers)
    ours = [(_text(REQUEST_ID), request_id)]
    if readable:
        dropped |= {_ACCEPT_ENCODING}
        ours.append((_text(_ACCEPT_ENCODING), "identity"))
    return (*((_text(name), _text(value)) for name, value in headers if name.lower() not in dropped), *ours)


def to_client(
    headers: RawHeaders, request_id: str, *, status: int, length_changes: bool
) -> list[tuple[bytes, bytes]]:
    """A backend's end-to-end headers, in order and repeated where it repeated them, with our request id."""
    dropped = HOP_BY_HOP | _named_by_connection(headers) | {REQUEST_ID}
    if length_changes or status in _BODYLESS:
        dropped |= {b"content-length"}
    kept = [(name.lower(), value) for name, value in headers if name.lower() not in dropped]
    return [*kept, (REQUEST_ID, request_id.encode())]


def _named_by_connection(headers: RawHeaders) -> frozenset[bytes]:
    named = [value for name, value in headers if name.lower() == b"connection"]
    return frozenset(token.strip().lower() for value in named for token in value.split(b","))


def _text(raw: bytes) -> str:
    """As the text that the HTTP client encodes back to the same bytes, where there is one."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
