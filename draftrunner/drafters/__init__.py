"""Every drafter, in one table. A new one is a file here and a line below."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from draftrunner.drafters.ngram import NgramDrafter
from draftrunner.drafters.suffix import SuffixDrafter
from draftrunner.model import Drafter, Profile
from draftrunner.profiles import PROFILES

DRAFTERS: dict[str, Callable[[Profile], Drafter]] = {
    "ngram": NgramDrafter,
    "suffix": SuffixDrafter,
}

Drafters = Mapping[str, Mapping[str, Drafter]]
"""What can be drafted with: drafter name, then profile name, to the drafter."""


def make_drafters() -> Drafters:
    """One drafter for each name and profile, kept as long as the process: some learn from answers."""
    return {
        name: {profile.name: make(profile) for profile in PROFILES.values()}
        for name, make in DRAFTERS.items()
    }
