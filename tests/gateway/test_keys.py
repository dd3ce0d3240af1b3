"""Keys: hashed at rest, shown once, good until revoked, everywhere."""

import asyncio
import re
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.errors import InvalidKey, MalformedRequest, NotFound, SettingsError, StoreError
from gateway.keys import ANONYMOUS, KeyRing, RunnerGate, open_runner_token
from gateway.store.store import Store
from tests.fakes.clock import FakeClock
from tests.fakes.stores import opened_store, store_url
from tests.fakes.waiting import until


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with opened_store(tmp_path) as opened:
        yield opened


def ring(store: Store, *, anonymous_allowed: bool = False) -> KeyRing:
    return KeyRing(store=store, clock=FakeClock(), anonymous_allowed=anonymous_allowed)


def bearer(secret: str) -> bytes:
    return f"Bearer {secret}".encode()


async def test_a_new_key_speaks_for_its_tenant_at_once(store: Store) -> None:
    keys = ring(store)
    issued = await keys.issue(name="laptop", tenant="search")
    assert re.fullmatch(r"ace-[A-Za-z0-9_-]{43}", issued.secret)
    assert keys.identify(bearer(issued.secret)) == "search"
    assert keys.identify(b"bearer  " + issued.secret.encode() + b" ") == "search"


async def test_the_key_is_nowhere_in_the_files_and_its_prefix_is(store: Store, tmp_path: Path) -> None:
    issued = await ring(store).issue(name="laptop", tenant="search")
    await store.close()
    held = b"".join(file.read_bytes() for file in (tmp_path / "data").iterdir())
    assert issued.stored.prefix.encode() in held
    assert issued.secret.encode() not in held
    assert issued.secret.removeprefix(issued.stored.prefix).encode() not in held


async def test_the_key_is_not_in_its_repr(store: Store) -> None:
    issued = await ring(store).issue(name="laptop", tenant="search")
    assert issued.secret not in repr(issued)
    assert issued.secret.startswith(issued.stored.prefix)


async def test_two_keys_are_never_the_same(store: Store) -> None:
    keys = ring(store)
    issued = [await keys.issue(name="same", tenant="same") for _ in range(3)]
    assert len({key.secret for key in issued}) == len({key.stored.id for key in issued}) == 3


@pytest.mark.parametrize(
    "authorization",
    [
        bearer("ace-unknown"),
        bearer("ace-ünknown"),
        b"Bearer",
        b"Bearer ",
        b"",
        b"Basic YTpi",
        b"\xff\xfe",
    ],
)
@pytest.mark.parametrize("anonymous_allowed", [True, False])
async def test_a_wrong_key_is_refused_even_where_none_is_needed(
    store: Store, authorization: bytes, anonymous_allowed: bool
) -> None:
    keys = ring(store, anonymous_allowed=anonymous_allowed)
    await keys.sync_once()
    with pytest.raises(InvalidKey) as refused:
        keys.identify(authorization)
    assert refused.value.status == 401


async def test_no_key_is_anonymous_only_where_that_is_allowed(store: Store) -> None:
    assert ring(store, anonymous_allowed=True).identify(None) == ANONYMOUS
    with pytest.raises(InvalidKey, match="A key is needed"):
        ring(store).identify(None)


async def test_the_admin_token_and_a_hash_are_no_api_keys(store: Store) -> None:
    keys = ring(store)
    token = await keys.open_admin(None)
    issued = await keys.issue(name="laptop", tenant="search")
    for secret in (token, issued.stored.sha256, issued.stored.prefix, issued.stored.id):
        with pytest.raises(InvalidKey):
            keys.identify(bearer(str(secret)))


async def test_a_revoked_key_is_refused_at_once_and_still_listed(store: Store) -> None:
    keys = ring(store)
    issued = await keys.issue(name="laptop", tenant="search")
    other = await keys.issue(name="other", tenant="search")
    await keys.revoke(issued.stored.id)
    with pytest.raises(InvalidKey):
        keys.identify(bearer(issued.secret))
    assert keys.identify(bearer(other.secret)) == "search"
    listed = {key.id: key.revoked_at for key in await keys.all()}
    assert listed == {issued.stored.id: FakeClock().now, other.stored.id: None}


async def test_a_revocation_reaches_other_processes_with_their_sync(tmp_path: Path) -> None:
    async with opened_store(tmp_path) as one, opened_store(tmp_path) as other:
        here, there = ring(one), ring(other)
        issued = await here.issue(name="laptop", tenant="search")
        await there.sync_once()
        assert there.identify(bearer(issued.secret)) == "search"
        await here.revoke(issued.stored.id)
        await there.sync_once()
        with pytest.raises(InvalidKey):
            there.identify(bearer(issued.secret))


async def test_running_keeps_up_with_other_processes(tmp_path: Path) -> None:
    async with opened_store(tmp_path) as one, opened_store(tmp_path) as other:
        keys = ring(other)
        task = asyncio.create_task(keys.run(interval_s=0.001))
        issued = await ring(one).issue(name="laptop", tenant="search")

        def known() -> bool:
            with suppress(InvalidKey, StoreError):
                return keys.identify(bearer(issued.secret)) == "search"
            return False

        await until(known)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_an_unknown_id_cannot_be_revoked(store: Store) -> None:
    with pytest.raises(NotFound, match="ace keys list"):
        await ring(store).revoke("nobody")


@pytest.mark.parametrize(
    ("name", "tenant"), [("", "t"), ("n", ""), ("a b", "t"), ("n", "t\n"), ("n", "x" * 65)]
)
async def test_names_that_are_not_allowed_make_no_key(store: Store, name: str, tenant: str) -> None:
    keys = ring(store)
    with pytest.raises(MalformedRequest, match="1 to 64"):
        await keys.issue(name=name, tenant=tenant)
    assert await keys.all() == ()


async def test_keys_stay_good_while_the_store_is_gone(tmp_path: Path) -> None:
    async with opened_store(tmp_path) as store:
        issued = await ring(store).issue(name="laptop", tenant="search")
    reopened = Store(store_url(tmp_path))
    keys = ring(reopened)
    await keys.sync_once()
    await reopened.close()
    (tmp_path / "data").rename(tmp_path / "gone")
    await keys.sync_once()
    assert keys.identify(bearer(issued.secret)) == "search"
    with pytest.raises(StoreError):
        await keys.issue(name="n", tenant="t")
    await reopened.close()


async def test_a_key_that_cannot_be_judged_is_not_called_wrong(tmp_path: Path) -> None:
    store = Store(store_url(tmp_path))
    keys = ring(store)
    await keys.sync_once()
    assert not keys.loaded
    with pytest.raises(StoreError) as unknown:
        keys.identify(bearer("ace-some"))
    assert unknown.value.status == 503
    await store.close()


# The admin token


async def test_the_first_start_makes_an_admin_token_and_the_second_does_not(store: Store) -> None:
    first = await ring(store).open_admin(None)
    assert first is not None
    assert re.fullmatch(r"ace-admin-[A-Za-z0-9_-]{43}", first)
    again = ring(store)
    assert await again.open_admin(None) is None
    again.check_admin(bearer(first))


async def test_of_processes_that_start_at_once_one_prints_the_token(tmp_path: Path) -> None:
    async with opened_store(tmp_path) as one, opened_store(tmp_path) as other:
        rings = [ring(one), ring(other)]
        tokens = await asyncio.gather(*(keys.open_admin(None) for keys in rings))
        (token,) = [token for token in tokens if token is not None]
        for keys in rings:
            await keys.sync_once()
            keys.check_admin(bearer(token))


async def test_a_configured_token_replaces_the_one_in_force(store: Store) -> None:
    keys = ring(store)
    first = await keys.open_admin(None)
    assert await keys.open_admin("operators-own-choice") is None
    keys.check_admin(bearer("operators-own-choice"))
    with pytest.raises(InvalidKey, match="ACE_ADMIN_TOKEN"):
        keys.check_admin(bearer(str(first)))


async def test_the_same_configured_token_again_changes_nothing(store: Store) -> None:
    await ring(store).open_admin("operators-own-choice")
    before = await store.meta.changes()
    await ring(store).open_admin("operators-own-choice")
    assert await store.meta.changes() == before


async def test_the_admin_token_is_nowhere_in_the_files(store: Store, tmp_path: Path) -> None:
    token = await ring(store).open_admin(None)
    await store.close()
    held = b"".join(file.read_bytes() for file in (tmp_path / "data").iterdir())
    assert str(token).encode() not in held


async def test_nobody_is_admin_before_the_token_is_known(store: Store) -> None:
    with pytest.raises(InvalidKey):
        ring(store).check_admin(bearer("anything"))
    with pytest.raises(InvalidKey):
        ring(store).check_admin(None)


async def test_an_api_key_is_no_admin_token(store: Store) -> None:
    keys = ring(store)
    await keys.open_admin(None)
    issued = await keys.issue(name="laptop", tenant="search")
    with pytest.raises(InvalidKey):
        keys.check_admin(bearer(issued.secret))


# The runner token


def test_a_configured_runner_token_makes_no_file(tmp_path: Path) -> None:
    assert open_runner_token("chosen", tmp_path / "runner.token") == "chosen"
    assert list(tmp_path.iterdir()) == []


def test_a_runner_token_is_made_once_for_the_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "data" / "runner.token"
    token = open_runner_token(None, file)
    assert re.fullmatch(r"ace-runner-[A-Za-z0-9_-]{43}", token)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert open_runner_token(None, file) == token
    assert [entry.name for entry in file.parent.iterdir()] == ["runner.token"]


def test_processes_that_start_at_once_agree_on_the_runner_token(tmp_path: Path) -> None:
    file = tmp_path / "runner.token"
    with ThreadPoolExecutor(8) as starting:
        tokens = set(starting.map(lambda _: open_runner_token(None, file), range(8)))
    assert len(tokens) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["runner.token"]


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff"])
def test_a_runner_token_file_without_a_token_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "runner.token").write_bytes(content)
    with pytest.raises(SettingsError, match="ACE_RUNNER_TOKEN"):
        open_runner_token(None, tmp_path / "runner.token")


def test_a_runner_token_file_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    with pytest.raises(SettingsError, match="ACE_RUNNER_TOKEN"):
        open_runner_token(None, tmp_path / "data" / "runner.token")


def test_runners_are_let_in_by_their_token_alone() -> None:
    gate = RunnerGate("the-token")
    gate.check(bearer("the-token"))
    for wrong in (None, bearer("the-toke"), bearer("the-token2"), b"the-token"):
        with pytest.raises(InvalidKey):
            gate.check(wrong)
