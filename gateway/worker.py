"""The app as a worker process makes it, from settings that `ace serve` left in the environment."""

from __future__ import annotations

import os
from typing import Any

from gateway.app import create_app
from gateway.settings import Settings


def app() -> Any:
    """The gateway's ASGI app."""
    return create_app(Settings.load(os.environ))
