"""What stops a draft-side process at its start; each service's own errors live beside its routes."""

from __future__ import annotations


class StartError(Exception):
    """A process cannot start. The message says why and what to do, and is all that the operator sees."""
