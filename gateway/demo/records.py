"""The stage records that the run left behind, matched by request id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PassesByDrafts = Mapping[int, int]
"""Drafts in a pass to how many such passes an answer takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What one drafter would have done with an answer.

    Attributes:
        passes_by_drafts: For each K.
    """

    steps: int
    draft_tokens: int
    accepted_tokens: int
    passes_by_drafts: Mapping[int, PassesByDrafts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What the report reads from a stage record.

    Attributes:
        accepted_by_position: i-th entry = steps that accepted at least i+1 drafts.
        decode_seconds: From the first token to the last.
        replays: What each drafter would have done, by its name; empty where nothing was replayed.
        not_replayed: Why a further drafter's replay is missing, by its name.
    """

    action: str
    reason: str | None
    steps: int
    draft_tokens: int
    accepted_tokens: int
    accepted_by_position: tuple[int, ...]
    decode_tokens: int
    decode_seconds: float
    replays: Mapping[str, Replay]
    not_replayed: Mapping[str, str]

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
        accepted_by_position=tuple(record["accepted_by_position"] or ()),
        decode_tokens=record["decode_tokens"] or 0,
        decode_seconds=record["decode_seconds"] or 0.0,
        replays=_replays(record),
        not_replayed={
            drafter: found["reason"]
            for drafter, found in (record["compared"] or {}).items()
            if "reason" in found
        },
    )


def _replays(record: Mapping[str, Any]) -> dict[str, Replay]:
    if not record["k_curve"]:
        return {}
    own = {record["drafter"]: _replay(record, record["k_curve"])}
    compared = record["compared"] or {}
    return own | {
        drafter: _replay(found, found["curve"]) for drafter, found in compared.items() if "curve" in found
    }


def _replay(found: Mapping[str, Any], curve: Mapping[str, Any]) -> Replay:
    return Replay(
        steps=found["steps"],
        draft_tokens=found["draft_tokens"],
        accepted_tokens=found["accepted_tokens"],
        passes_by_drafts={
            int(k): {int(drafts): passes for drafts, passes in point["passes_by_drafts"].items()}
            for k, point in curve.items()
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
