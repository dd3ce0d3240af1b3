"""Where spans go, and whether anybody takes them there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import httpx
from opentelemetry.util.re import parse_env_headers

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
_TIME_LIMIT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointLook:
    """What one look at the OTLP endpoint found.

    Attributes:
        url: Without user, password and query; None where no span is exported.
        error: Why it takes no spans; None when it does, or none are exported.
    """

    url: str | None
    error: str | None = None


def exports_spans(env: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's variables ask for spans."""
    unwanted = env.get("OTEL_SDK_DISABLED", "").lower() == "true" or env.get("OTEL_TRACES_EXPORTER") == "none"
    return not unwanted and any(env.get(name) for name in ENDPOINTS)


async def look_at_endpoint(env: Mapping[str, str]) -> EndpointLook:
    """Send an export of no spans to where spans would go; never raises."""
    if not exports_spans(env):
        return EndpointLook(url=None)
    url = env.get(ENDPOINTS[0]) or env[ENDPOINTS[1]].rstrip("/") + "/v1/traces"
    text = next((env[name] for name in _HEADERS if env.get(name)), "")
    headers = {"content-type": "application/x-protobuf", **parse_env_headers(text, liberal=True)}
    try:
        async with httpx.AsyncClient(timeout=_TIME_LIMIT_S) as client:
            reply = await client.post(url, content=b"", headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return EndpointLook(url=_plain(url), error=f"{type(error).__name__}: {error}"[:300])
    return EndpointLook(
        url=_plain(url), error=None if reply.is_success else f"it answers HTTP {reply.status_code}"
    )


def _plain(url: str) -> str:
    """Without what may be a secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "a URL that cannot be read"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
