"""What an engine makes of blocks, from looks at its counter."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.evidence.engine_blocks import BlockTally, EngineBlock, Look
from gateway.fleet.model import Backend
from gateway.policy.blocks import Block
from probes.load_gauge import EngineLoad

MINUTE = frozenset({60.0})


def look(at: float, generated: float | None, running: float | None = 1.0) -> Look:
    return Look(at=at, load=EngineLoad(running=running, generated=generated))


def at_instance(name: str) -> Backend:
    return Backend(name=name, url=f"http://{name}")


def seen(*looks: Look, lengths: frozenset[float] = MINUTE) -> list[EngineBlock]:
    tally = BlockTally()
    return [block for one in looks for block in tally.see(at_instance("b"), one, lengths)]


def test_a_block_is_told_of_when_it_has_ended() -> None:
    assert seen(look(58, 100), look(59, 140), look(60, 180)) == [
        EngineBlock(backend="b", block=Block(0, 60), tokens=80, busy_seconds=2, running_seconds=2)
    ]


def test_what_lies_in_two_blocks_belongs_to_neither() -> None:
    first, second = seen(look(58, 0), look(59, 10), look(61, 30), look(62, 70), look(120, 70))
    assert (first.tokens, first.busy_seconds) == (10, 1)
    assert (second.tokens, second.busy_seconds) == (40, 1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (look(1, 10, running=0), look(2, 30)),
        (look(1, 10), look(2, 30, running=0)),
        (look(1, 10, running=None), look(2, 30)),
        (look(1, None), look(2, 30)),
        (look(1, 30), look(2, 10)),
        (look(1, 10), look(20, 30)),
    ],
    ids=["was idle", "is idle", "no gauge", "no counter", "another process", "a gap"],
)
def test_between_two_looks_that_say_too_little_nothing_is_counted(before: Look, after: Look) -> None:
    assert seen(before, after, look(60, 30)) == []


def test_running_requests_are_integrated() -> None:
    (block,) = seen(look(57, 0, running=2), look(59, 10, running=4), look(61, 10, running=4))
    assert block.running_seconds == 6


def test_instances_of_one_backend_are_engines_of_their_own() -> None:
    tally = BlockTally()
    one, two = (Backend(name="b", url="http://b", instance=at) for at in ("10.0.0.1", "10.0.0.2"))
    looks = [(one, look(1, 0)), (two, look(1, 900)), (one, look(2, 10)), (two, look(2, 930))]
    for instance, seen_there in looks:
        assert tally.see(instance, seen_there, MINUTE) == []
    ended = [block for instance in (one, two) for block in tally.see(instance, look(61, 1000), MINUTE)]
    assert [(block.backend, block.tokens) for block in ended] == [("b", 10), ("b", 30)]


def test_every_length_has_blocks_of_its_own() -> None:
    blocks = seen(look(1, 0), look(2, 10), look(60, 10), lengths=frozenset({5.0, 60.0}))
    assert {(found.block, found.tokens) for found in blocks} == {(Block(0, 5), 10), (Block(0, 60), 10)}


def test_engines_are_kept_apart_and_forgotten() -> None:
    tally = BlockTally()
    tally.see(at_instance("a"), look(1, 0), MINUTE)
    tally.see(at_instance("b"), look(1, 1000), MINUTE)
    tally.see(at_instance("a"), look(2, 10), MINUTE)
    tally.forget_others({"b"})
    assert tally.see(at_instance("a"), look(61, 20), MINUTE) == []


@given(st.lists(st.tuples(st.floats(0.1, 9), st.integers(0, 100)), min_size=2, max_size=60))
def test_no_token_is_counted_twice_and_none_is_made_up(steps: list[tuple[float, int]]) -> None:
    at, made, looks = 0.0, 0.0, [look(0.0, 0.0)]
    for seconds, tokens in steps:
        at, made = at + seconds, made + tokens
        looks.append(look(at, made))
    blocks = seen(*looks, look(at + 60, made))
    whole = sum(
        (later.load.generated or 0) - (earlier.load.generated or 0)
        for earlier, later in pairwise(looks)
        if later.at <= earlier.at // 60 * 60 + 60
    )
    assert sum(found.tokens for found in blocks) == pytest.approx(whole)
    assert all(0 < found.busy_seconds <= 60 + 1e-6 for found in blocks)
