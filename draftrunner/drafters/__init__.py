"""Every drafter, in one table. A new one is a file here and a line below."""

from __future__ import annotations

from collections.abc import Callable

from draftrunner.drafters.ngram import NgramDrafter
from draftrunner.model import Drafter, Profile

DRAFTERS: dict[str, Callable[[Profile], Drafter]] = {
    "ngram": NgramDrafter,
}
