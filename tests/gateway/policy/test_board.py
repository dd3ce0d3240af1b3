"""Overlays in force: shared through the store, kept while it is down, missed by nobody who has to stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.errors import KillNotStored, MalformedRequest, NotFound, StoreError
from gateway.policy.board import OverlayBoard
from gateway.policy.kill_switch import KillSwitch
from gateway.policy.model import Mode
from gateway.policy.overlays import KILLED, UNREAD, Overlay, OverlayKind, Scope, Subject
from gateway.store.store import Store
from tests.fakes.clock import FakeClock
from tests.fakes.stores import opened_store, store_url
from tests.fakes.waiting import until

SUBJECT = Subject(tenant="t", model="m", backend="b", rule="r")


class Bench:
    """Processes that share a store, each with its board; and the folder of their kill file."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.store = folder, store
        self.clock = FakeClock()

    def board(self, store: Store | None = None) -> OverlayBoard:
        switch = KillSwitch(self.folder / "kill", None, self.clock)
        return OverlayBoard(store=store or self.store, switch=switch, clock=self.clock)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened_store(tmp_path) as store:
        yield Bench(tmp_path, store)


async def killed(board: OverlayBoard, scope: Scope | None = None, lasts_s: float | None = None) -> Overlay:
    return await board.add(OverlayKind.KILL, scope or Scope(), author="ann", reason="slow", lasts_s=lasts_s)


def reason(board: OverlayBoard) -> str | None:
    stop = board.stop(SUBJECT)
    return stop.reason if stop else None


async def test_before_the_store_has_been_read_everything_stops(bench: Bench) -> None:
    board = bench.board()
    assert reason(board) == UNREAD
    await board.sync_once()
    assert reason(board) is None


async def test_a_kill_holds_here_at_once_and_elsewhere_after_a_look(bench: Bench) -> None:
    here, there = bench.board(), bench.board()
    await there.sync_once()
    kill = await killed(here)
    assert (reason(here), reason(there)) == (KILLED, None)
    await there.sync_once()
    assert reason(there) == KILLED
    await there.lift(kill.id, by="bob")
    assert (reason(here), reason(there)) == (KILLED, None)
    await here.sync_once()
    assert reason(here) is None


async def test_a_kill_survives_a_restart_also_of_a_store_that_is_down(bench: Bench, tmp_path: Path) -> None:
    await killed(bench.board())
    restarted = bench.board()
    await restarted.sync_once()
    assert reason(restarted) == KILLED
    down = Store(store_url(tmp_path / "none"))
    without_store = bench.board(down)
    await without_store.sync_once()
    assert reason(without_store) == UNREAD
    await down.close()


async def test_while_the_store_is_down_the_last_known_stay(bench: Bench) -> None:
    board = bench.board()
    await killed(board)
    await bench.store.close()
    await asyncio.to_thread((bench.folder / "data").rename, bench.folder / "gone")
    await board.sync_once()
    assert reason(board) == KILLED
    (bench.folder / "kill").write_text("tenant other")
    await board.look_once()
    assert [kill.scope for kill in board.current.kills(bench.clock())] == [Scope(tenant="other"), Scope()]


async def test_a_kill_that_cannot_be_stored_says_which_file_to_touch(bench: Bench, tmp_path: Path) -> None:
    down = Store(store_url(tmp_path / "none"))
    board = bench.board(down)
    with pytest.raises(KillNotStored, match=f"NOTHING WAS KILLED.*touch {bench.folder / 'kill'}"):
        await killed(board)
    with pytest.raises(StoreError):
        await board.add(
            OverlayKind.DEMOTE, Scope(rule="r"), value=Mode.OFF, author="a", reason="b", lasts_s=None
        )
    await down.close()


async def test_an_expired_overlay_holds_no_more_and_stays_in_the_history(bench: Bench) -> None:
    board = bench.board()
    kill = await killed(board, lasts_s=60.0)
    bench.clock.advance(59.0)
    assert reason(board) == KILLED
    bench.clock.advance(1.0)
    assert reason(board) is None
    assert [old.id for old in await board.newest(10)] == [kill.id]


async def test_lifting_keeps_who_and_when_of_the_first_time(bench: Bench) -> None:
    board = bench.board()
    kill = await killed(board)
    await board.lift(kill.id, by="bob")
    lifted_at = bench.clock()
    bench.clock.advance(5.0)
    await board.lift(kill.id, by="eve")
    (old,) = await board.newest(10)
    assert (old.lifted_by, old.lifted_at, old.author) == ("bob", lifted_at, "ann")
    with pytest.raises(NotFound, match="ace overlays list --all"):
        await board.lift("nothing", by="bob")


async def test_lifting_all_kills_leaves_other_overlays(bench: Bench) -> None:
    board = bench.board()
    await killed(board)
    await killed(board, Scope(tenant="t"))
    demotion = await board.add(
        OverlayKind.DEMOTE, Scope(rule="r"), value=Mode.SHADOW, author="a", reason="b", lasts_s=None
    )
    await board.lift_kills(by="bob")
    assert reason(board) is None
    assert board.current.known == (demotion,)


async def test_every_kind_comes_back_from_the_store_as_it_was(bench: Bench) -> None:
    board = bench.board()
    scope = Scope(rule="r", tenant="t", model="m", backend="b")
    for kind, value in ((OverlayKind.DEMOTE, Mode.OFF), (OverlayKind.LOOKAHEAD, 3)):
        made = await board.add(kind, scope, value=value, author="a", reason="b", lasts_s=5.0)
        other = bench.board()
        await other.sync_once()
        assert made in other.current.known


async def test_what_does_not_go_together_is_a_bad_request(bench: Bench) -> None:
    with pytest.raises(MalformedRequest, match="names the rule"):
        await bench.board().add(
            OverlayKind.DEMOTE, Scope(), value=Mode.OFF, author="a", reason="b", lasts_s=None
        )


async def test_listeners_hear_of_changes_and_of_nothing_else(bench: Bench) -> None:
    board, heard = bench.board(), []
    board.on_change(lambda: heard.append(reason(board)))
    await board.sync_once()
    await bench.store.meta.set_admin_token_sha256("a" * 64)
    await board.sync_once()
    await board.look_once()
    (bench.folder / "kill").touch()
    await board.look_once()
    await board.look_once()
    assert heard == [None, KILLED]


async def test_run_sees_the_file_while_the_store_hangs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    board = bench.board()
    await board.sync_once()
    hanging = asyncio.Event()
    monkeypatch.setattr(bench.store.meta, "changes", hanging.wait)
    running = asyncio.create_task(board.run(0.001))
    (bench.folder / "kill").touch()
    await until(lambda: reason(board) == KILLED)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
