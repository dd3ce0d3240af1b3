"""The stage records that the run left behind, matched by request id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What the report reads from a stage record.

    Attributes:
        passes_by_drafts: K to {drafts in a pass: passes}; empty where the record has no K curve.
    """

    action: str
    reason: str | None
    steps: int
    draft_tokens: int
    accepted_tokens: int
    decode_tokens: int
    passes_by_drafts: Mapping[int, Mapping[int, int]]

    @property
    def counts(self) -> tuple[int, int, int]:
        """(steps, drafted, accepted)."""
        return self.steps, self.draft_tokens, self.accepted_tokens


def read_stage(record: Mapping[str, Any]) -> Stage:
    """Read a stage record as the REST API shows it; counts that it does not have are 0."""
    return Stage(
        action=record["action"],
        reason=record["reason"],
        steps=record["steps"] or 0,
        draft_tokens=record["draft_tokens"] or 0,
        accepted_tokens=record["accepted_tokens"] or 0,
        decode_tokens=record["decode_tokens"] or 0,
        passes_by_drafts={
            int(k): {int(drafts): passes for drafts, passes in point["passes_by_drafts"].items()}
            for k, point in (record["k_curve"] or {}).items()
        },
    )


def collect(
    request_ids: Iterable[str],
    find: Callable[[str], Mapping[str, Any] | None],
    *,
    time_limit_s: float,
    clock: Callable[[], float],
    pause: Callable[[float], None],
) -> dict[str, Stage]:
    """The records of these requests; they are written a little after their answers, so they are waited for.

    Args:
        request_ids: Requests that may have left a record.
        find: The record of a request, if there is one by now.
        time_limit_s: How long to wait for all of them; those still absent then are left out.
        clock: Seconds, for the time limit.
        pause: Waits that many seconds.
    """
    give_up_at = clock() + time_limit_s
    found: dict[str, Stage] = {}
    for request_id in request_ids:
        while (record := find(request_id)) is None and clock() < give_up_at:
            pause(0.2)
        if record is not None:
            found[request_id] = read_stage(record)
    return found
