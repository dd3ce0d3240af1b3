import sqlite3
from contextlib import closing
from pathlib import Path

from gateway.store.store import Store


async def test_a_store_that_works_says_its_revision_and_room(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'ace.db'}")
    await store.migrate()
    look = await store.look()
    await store.close()
    assert look.error is None
    assert look.revision == look.newest
    assert look.bytes_used
    assert look.bytes_free
    assert look.label == f"sqlite:///{tmp_path / 'ace.db'}"


async def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "ace.db"
    store = Store(f"sqlite:///{file}")
    look = await store.look()
    await store.close()
    assert look.error
    assert "does not exist" in look.error
    assert look.revision is None
    assert look.bytes_free, "of the disk that it would be on"
    assert not file.parent.exists()


async def test_a_file_that_is_no_database_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "ace.db").write_bytes(b"no database" * 1000)
    store = Store(f"sqlite:///{tmp_path / 'ace.db'}")
    look = await store.look()
    await store.close()
    assert look.error
    assert "not a database" in look.error


async def test_a_store_that_another_holds_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "ace.db"
    store = Store(f"sqlite:///{file}")
    await store.migrate()
    with closing(sqlite3.connect(file)) as other:
        other.execute("CREATE TABLE theirs (x)")
        other.commit()
        before = other.total_changes
        await store.look()
        assert other.total_changes == before
        assert other.execute("SELECT count(*) FROM theirs").fetchone() == (0,)
    await store.close()
