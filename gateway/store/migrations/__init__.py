"""Migrations of the store, oldest first in `versions/`; a test compares their outcome with the tables."""
