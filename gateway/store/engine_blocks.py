"""What engines made of blocks of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import insert, select

from gateway.evidence.engine_blocks import EngineBlock
from gateway.policy.blocks import Block
from gateway.store.database import Database, delete_picked, unbroken
from gateway.store.tables import engine_blocks


class EngineBlockRows:
    """The engine_blocks table; several engines behind one backend have a row each."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @unbroken
    async def add(self, blocks: Sequence[EngineBlock]) -> None:
        """Keep some."""
        async with self._database.writing() as connection:
            await connection.execute(insert(engine_blocks), [_columns(block) for block in blocks])

    @unbroken
    async def of(self, backend: str, *, since: float) -> tuple[EngineBlock, ...]:
        """Those of one backend that began at or after a Unix time."""
        table = engine_blocks.c
        wanted = select(engine_blocks).where(table.backend == backend, table.block_at >= since)
        async with self._database.reading() as connection:
            rows = await connection.execute(wanted.order_by(table.block_at, table.id))
            return tuple(
                EngineBlock(
                    backend=row.backend,
                    block=Block(row.block_at, row.block_seconds),
                    tokens=row.tokens,
                    busy_seconds=row.busy_seconds,
                    running_seconds=row.running_seconds,
                )
                for row in rows
            )

    @unbroken
    async def delete_before(self, at: float, *, most: int) -> int:
        """Delete up to `most` of those that began before a Unix time; how many went."""
        table = engine_blocks.c
        old = select(table.id).where(table.block_at < at).order_by(table.id).limit(most)
        async with self._database.writing(long=True) as connection:
            return await delete_picked(connection, engine_blocks, old)


def _columns(block: EngineBlock) -> dict[str, object]:
    values = asdict(block)
    del values["block"]
    return {**values, "block_at": block.block.at, "block_seconds": block.block.seconds}
