from __future__ import annotations

from draftrunner.drafters.ngram import NgramDrafter
from draftrunner.embedded.fitting import FittingDrafter
from draftrunner.profiles import EMBEDDED

PROMPT = [1, 2, 3, 4, 5, 6, 1, 2, 3]


def test_drafts_stay_within_the_context() -> None:
    drafter = FittingDrafter(NgramDrafter(EMBEDDED), context_length=len(PROMPT) + 2)
    session = drafter.open(PROMPT)
    assert session.propose(5) == [4, 5]
    session.extend([4])
    assert session.propose(5) == [5]
    session.extend([5])
    assert session.propose(5) == []


def test_drafts_far_from_the_end_are_the_drafters_own() -> None:
    drafter = FittingDrafter(NgramDrafter(EMBEDDED), context_length=1000)
    assert drafter.open(PROMPT).propose(4) == NgramDrafter(EMBEDDED).open(PROMPT).propose(4) == [4, 5, 6, 1]
    assert drafter.name == "ngram"
