"""The engines that drafting and replay can stand for, as data."""

from __future__ import annotations

from dataclasses import replace

from draftrunner.model import Profile

EMBEDDED = Profile(name="embedded", tie="latest", min_n=2, max_n=5, pad_to_k=False)

RUNNER = replace(EMBEDDED, name="runner")
"""The draft runner's own, for servers that do not draft: `gateway_loop` drafts for them with its drafters.

The embedded backend runs the same drafters, so that its habits are these under another name.
"""

PROFILES = {profile.name: profile for profile in (EMBEDDED, RUNNER)}
