"""Every drafter that needs no weights, in one table. A new one is a file here and a line below.

A draft model is loaded by `draftrunner.drafters.loading` and handed in: it needs torch, and not every
runner has one.
"""

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


def make_drafters(draft_model: Drafter | None = None) -> Drafters:
    """One drafter for each name and profile, kept as long as the process: some learn from answers.

    Args:
        draft_model: Drafts alike under every profile; None where no draft model is loaded.
    """
    made: dict[str, dict[str, Drafter]] = {
        name: {profile.name: make(profile) for profile in PROFILES.values()}
        for name, make in DRAFTERS.items()
    }
    if draft_model is not None:
        made[draft_model.name] = dict.fromkeys(PROFILES, draft_model)
    return made
