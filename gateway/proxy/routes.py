"""Which paths the data plane serves, and which never reach a backend."""

from __future__ import annotations

import re
from enum import StrEnum

from gateway.errors import MethodNotAllowed, UnknownRoute


class Route(StrEnum):
    """How a path is served."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    MODELS = "models"
    """Answered by the gateway itself, merged over backends."""
    OTHER = "other"
    """Passed through."""


_POST_ONLY = {"/v1/chat/completions": Route.CHAT, "/v1/completions": Route.COMPLETIONS}
_MODELS = "/v1/models"

OPERATOR_ROUTES = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/loads"})
"""Engine routes below /v1/ that are an operator's, not a client's."""
OPERATOR_FOLDERS = ("/v1/internal/",)

# What a backend may read as another path than the one checked here, percent signs encoded again included.
_AMBIGUOUS = re.compile(rb"\.\.|//|/\./|\\|%(?:25)*(?:2e|2f|5c|00)", re.IGNORECASE)


def route_of(method: str, path: str, raw_path: bytes) -> Route:
    """How the request is served.

    Args:
        method: As received.
        path: Decoded path, without the query.
        raw_path: The same as received.

    Raises:
        UnknownRoute: The path is not proxied.
        MethodNotAllowed: The path is ours and takes other methods.
    """
    if path == _MODELS or path.startswith(f"{_MODELS}/"):
        return _only(Route.MODELS, ("GET", "HEAD"), method, path)
    if route := _POST_ONLY.get(path):
        return _only(route, ("POST",), method, path)
    if not path.startswith("/v1/") or _AMBIGUOUS.search(raw_path) or _is_operators(path):
        raise UnknownRoute(
            f"{path[:200]!r} is not served here. Served: /v1/chat/completions, /v1/completions, /v1/models "
            "and plain paths below /v1/ that are not an operator's."
        )
    return Route.OTHER


def model_in(path: str) -> str:
    """The model id of `/v1/models/{id}`; empty for the whole list."""
    return path.removeprefix(_MODELS).strip("/")


def _only(route: Route, methods: tuple[str, ...], method: str, path: str) -> Route:
    if method not in methods:
        raise MethodNotAllowed(method, path[:200], ", ".join(methods))
    return route


def _is_operators(path: str) -> bool:
    plain = path.rstrip("/").lower()
    return plain in OPERATOR_ROUTES or f"{plain}/".startswith(OPERATOR_FOLDERS)
