"""Drafting, verification and replay, and the services built on them. Imports no `gateway`, no `probes`."""
