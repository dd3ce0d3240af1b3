"""Why a demo cannot go on, in words for the person who started it."""

from __future__ import annotations

from gateway.errors import GatewayError


class DemoFailed(GatewayError):
    """The demo cannot go on; the message says what happened and what to do about it."""

    code = "demo_failed"
