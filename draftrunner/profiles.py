"""The engines that drafting and replay can stand for, as data."""

from __future__ import annotations

from dataclasses import replace

from draftrunner.model import Profile

EMBEDDED = Profile(name="embedded", tie="latest", min_n=2, max_n=5, pad_to_k=False)

RUNNER = replace(EMBEDDED, name="runner", clips_at_end=True)
"""The draft runner's own, for servers that do not draft: `gateway_loop` drafts for them with its drafters.

The embedded backend runs the same drafters. It also verifies drafts beyond an answer's token limit, which
cost it nothing; the loop does not, since each may be a prompt of its own to the target.
"""

PROFILES = {profile.name: profile for profile in (EMBEDDED, RUNNER)}
