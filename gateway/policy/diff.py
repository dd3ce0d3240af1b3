"""How two policy texts differ."""

from __future__ import annotations

from difflib import unified_diff


def policy_diff(before: str, after: str, names: tuple[str, str]) -> str:
    """A unified diff; empty for equal texts. `names` are what its head calls the two."""
    lines = unified_diff(before.splitlines(), after.splitlines(), *names, lineterm="")
    return "".join(f"{line}\n" for line in lines)
