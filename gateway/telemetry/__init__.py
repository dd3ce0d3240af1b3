"""Telemetry: records and where they go."""
