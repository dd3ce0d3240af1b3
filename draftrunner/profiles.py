"""The engines that drafting and replay can stand for, as data."""

from __future__ import annotations

from draftrunner.model import Profile

EMBEDDED = Profile(name="embedded", tie="latest", min_n=2, max_n=5, pad_to_k=False)

PROFILES = {profile.name: profile for profile in (EMBEDDED,)}
