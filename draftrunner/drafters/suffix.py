"""Suffix decoding (Oliaro et al. 2024, arXiv 2411.04975; vLLM's `suffix` method).

Every suffix of the context is looked for in the request's own text and in the tenant's earlier answers. What
followed there is followed again, the most frequent token first, while the product of the tokens' shares stays
likely; a longer match may draft more. The draft with the largest sum of these products, which is how many of
its tokens are expected to be accepted, is proposed.

As in arctic-inference, which vLLM uses: the meaning of the three parameters, one path instead of a tree of
drafts, and among equal drafts the request's own before a cached one and the longer match's before a shorter
one's. Different here: of a match only the latest MOST_OCCURRENCES are counted, and equal counts go to what
followed latest; an occurrence at the end of a text has no share, as nothing followed; and an answer is copied
from by others once it is finished, not while it is generated.
"""

from __future__ import annotations

import bisect
import itertools
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from draftrunner.model import NOBODY, DraftSession, Origin, Profile

MOST_OCCURRENCES = 32
"""Bounds what a proposal costs in text that repeats itself."""

GRAMS = (1, 2, 4, 8)
"""Lengths of the n-grams that occurrences are looked up by. Each serves the matches shorter than the next."""

TOKENS_PER_TENANT = 32_768
"""Most tokens of earlier answers that are kept for one tenant."""

TENANTS = 16
"""Most tenants whose answers are kept. A full one's take some 17 MB, so all of them less than 300 MB."""

_NOWHERE = -1
_END = -1
"""Stands behind each cached answer. It is no token's id, so that nothing is matched or followed across it."""


class SuffixDrafter:
    """Copies what mostly followed where the end of the context occurred before.

    Args:
        profile: Says how long matches may be and how likely drafts must be.
        tokens_per_tenant: Most tokens of earlier answers kept for a tenant. Beyond it the older half goes.
        tenants: Most tenants whose answers are kept. Beyond it the one that learnt longest ago goes.
        now: Unix time.
    """

    name = "suffix"
    consistent = False

    def __init__(
        self,
        profile: Profile,
        *,
        tokens_per_tenant: int = TOKENS_PER_TENANT,
        tenants: int = TENANTS,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._profile = profile
        self._cache = _Cache(tokens_per_tenant // 2, tenants, now)

    def open(self, prompt: Sequence[int], origin: Origin = NOBODY) -> DraftSession:
        """Index `prompt`, a few look-ups per token, beside the answers that the tenant had at that time."""
        session = _SuffixSession(self._profile, self._cache.seen_by(origin))
        session.extend(prompt)
        return session

    def learn(self, answer: Sequence[int], origin: Origin) -> None:
        """Keep `answer` for the tenant's later requests; nobody's is not kept. Safe while others draft."""
        if origin.tenant and answer:
            self._cache.add(answer, origin.tenant)


class _Text:
    """Token ids, and the places where each n-gram was followed by one, from the latest to the earliest.

    It only grows, and a place is complete before anything leads to it. So one thread may read up to a length
    that it knows while another appends.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._latest: list[dict[tuple[int, ...], int]] = [{} for _ in GRAMS]
        self._earlier: list[list[int]] = [[] for _ in GRAMS]

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            end = len(self.tokens)
            self.tokens.append(token)
            for n, latest, earlier in zip(GRAMS, self._latest, self._earlier, strict=True):
                gram = tuple(self.tokens[max(end - n, 0) : end])
                earlier.append(latest.get(gram, _NOWHERE))
                latest[gram] = end

    def places(self, gram: tuple[int, ...], before: int) -> Iterator[int]:
        """Where what followed `gram` stands, the latest first."""
        which = GRAMS.index(len(gram))
        earlier = self._earlier[which]
        place = self._latest[which].get(gram, _NOWHERE)
        while place != _NOWHERE:
            if place < before:
                yield place
            place = earlier[place]


@dataclass(frozen=True, slots=True)
class _Extract:
    """A text up to some place, as somebody sees it."""

    text: _Text
    length: int


@dataclass(slots=True)
class _Answers:
    """Finished answers in one text, with the moment at which each was learnt and the text's length then."""

    text: _Text = field(default_factory=_Text)
    moments: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def add(self, answer: Sequence[int], moment: float) -> None:
        self.text.extend([*answer, _END])
        # Clocks are set back now and then.
        self.moments.append(max([moment, *self.moments[-1:]]))
        self.lengths.append(len(self.text.tokens))

    def seen_at(self, moment: float | None) -> _Extract:
        """What had been learnt before `moment`; all of it for None."""
        count = len(self.moments) if moment is None else bisect.bisect_left(self.moments, moment)
        return _Extract(self.text, self.lengths[count - 1] if count else 0)


class _Cache:
    """Each tenant's latest answers, in one text or two: the older is dropped when the newer is full."""

    def __init__(self, tokens_per_text: int, tenants: int, now: Callable[[], float]) -> None:
        self._tokens_per_text = tokens_per_text
        self._tenants = tenants
        self._now = now
        self._answers: OrderedDict[str, list[_Answers]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, answer: Sequence[int], tenant: str) -> None:
        kept = answer[-self._tokens_per_text + 1 :]  # and one for its end
        with self._lock:
            texts = self._answers.setdefault(tenant, [_Answers()])
            self._answers.move_to_end(tenant)
            if len(texts[-1].text.tokens) + len(kept) >= self._tokens_per_text:
                texts[:] = [texts[-1], _Answers()]
            texts[-1].add(kept, self._now())
            while len(self._answers) > self._tenants:
                self._answers.popitem(last=False)

    def seen_by(self, origin: Origin) -> tuple[_Extract, ...]:
        """The tenant's texts, the newest first. What is dropped or added later stays as it is here."""
        with self._lock:
            texts = self._answers.get(origin.tenant, [])
            extracts = [answers.seen_at(origin.as_of) for answers in reversed(texts)]
        return tuple(extract for extract in extracts if extract.length)


@dataclass(frozen=True, slots=True)
class _Draft:
    """What may follow, and how much of it is expected to be accepted."""

    tokens: list[int]
    score: float


_Occurrence = tuple[list[int], int]
"""A text's tokens, and where in them the token stands that followed an occurrence of the context's end."""


class _SuffixSession:
    """The request's own text, beside the tenant's answers as they were when it was opened."""

    def __init__(self, profile: Profile, cached: tuple[_Extract, ...]) -> None:
        self._profile = profile
        self._text = _Text()
        self._cached = cached

    def propose(self, k: int) -> list[int]:
        best = _Draft([], 0)
        for extracts in ((_Extract(self._text, len(self._text.tokens)),), self._cached):
            best = self._better(best, extracts, k)
        return best.tokens

    def extend(self, tokens: Sequence[int]) -> None:
        self._text.extend(tokens)

    def close(self) -> None:
        """Nothing is held that others wait for."""

    def _better(self, best: _Draft, extracts: Sequence[_Extract], k: int) -> _Draft:
        """The best draft that `extracts` hold, or `best` if it is as good; a longer match goes first."""
        for n, longest in _searches(min(self._profile.max_tree_depth - 1, len(self._text.tokens))):
            if best.score >= self._most(longest, k):
                break  # not even a certain draft would be better
            for length, occurrences in _matches(self._text.tokens, extracts, n, longest):
                draft = _followed(occurrences, self._most(length, k), self._profile.min_token_prob)
                if draft.score > best.score:
                    best = draft
        return best

    def _most(self, length: int, k: int) -> int:
        """How many tokens a match of `length` tokens may draft."""
        return min(k, int(length * self._profile.max_spec_factor))


def _searches(longest: int) -> Iterator[tuple[int, int]]:
    """The n-grams to look up, the longest first, each with the longest match to look for there."""
    for n, next_n in reversed([*itertools.pairwise((*GRAMS, longest + 1))]):
        if n <= longest:
            yield n, min(next_n - 1, longest)


def _matches(
    context: list[int], extracts: Sequence[_Extract], n: int, longest: int
) -> Iterator[tuple[int, list[_Occurrence]]]:
    """Lengths from `longest` to `n` at which the context's end occurred, with the latest occurrences of each.

    A length that occurred nowhere else than a longer one is left out.
    """
    gram, tail = tuple(context[-n:]), context[-longest:]
    occurrences = itertools.chain.from_iterable(
        ((extract.text.tokens, place) for place in extract.text.places(gram, extract.length))
        for extract in extracts
    )
    found = [(_agreeing(tail, o), o) for o in itertools.islice(occurrences, MOST_OCCURRENCES)]
    for length in sorted({agreeing for agreeing, _ in found}, reverse=True):
        yield length, [occurrence for agreeing, occurrence in found if agreeing >= length]


def _agreeing(tail: list[int], occurrence: _Occurrence) -> int:
    """How many of the last tokens of `tail` stand before `occurrence`."""
    tokens, place = occurrence
    before = tokens[max(place - len(tail), 0) : place]
    if before == tail:
        return len(tail)
    pairs = zip(reversed(before), reversed(tail), strict=False)
    return next((length for length, (theirs, ours) in enumerate(pairs) if theirs != ours), len(before))


def _followed(occurrences: list[_Occurrence], most: int, min_token_prob: float) -> _Draft:
    """Follow what followed most often, among equals what followed latest."""
    tokens: list[int] = []
    score, prob = 0.0, 1.0
    while len(tokens) < most:
        following = [_following(occurrence, len(tokens)) for occurrence in occurrences]
        counts = Counter(token for token in following if token != _END)
        if not counts:
            break
        ((likeliest, count),) = counts.most_common(1)
        prob *= count / counts.total()
        if prob < min_token_prob:
            break
        tokens.append(likeliest)
        score += prob
        occurrences = [o for o, token in zip(occurrences, following, strict=True) if token == likeliest]
    return _Draft(tokens, score)


def _following(occurrence: _Occurrence, offset: int) -> int:
    tokens, place = occurrence
    return tokens[place + offset] if place + offset < len(tokens) else _END
