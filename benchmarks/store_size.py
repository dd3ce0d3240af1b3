"""What stage records take up in the store, and how fast they are written, for a database of your choice.

python benchmarks/store_size.py sqlite:////tmp/size.db
python benchmarks/store_size.py postgresql://USER:PASSWORD@HOST/EMPTY_DATABASE
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import text

from gateway.store.database import Database
from gateway.store.stages import StageRows, row_of
from gateway.telemetry.record import StageRecord

BATCH = 200
SIZES = {
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
    "postgresql": "SELECT pg_total_relation_size('stage_records')",
}


def main() -> None:
    """Write records into an empty database and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--records", type=int, default=50_000)
    asked = parser.parse_args()
    asyncio.run(measure(asked.url, asked.records))


async def measure(url: str, records: int) -> None:
    """Measure prod records first, which have no curve, then shadow records, which have eight points."""
    database = Database(url)
    await database.migrate()
    stages = StageRows(database)
    if await stages.newest():
        sys.exit(f"{database.label} has stage records already; give an empty database.")
    for name, curve in (("without a K curve", None), ("with a K curve", k_curve())):
        before = await size_of(database)
        begun = time.perf_counter()
        for first in range(0, records, BATCH):
            await stages.add([row_of(record(first + number, curve)) for number in range(BATCH)])
        took = time.perf_counter() - begun
        taken = await size_of(database) - before
        sys.stdout.write(f"{name}: {taken / records:.0f} bytes per record, {records / took:.0f} records/s\n")
    await database.close()


async def size_of(database: Database) -> int:
    """Bytes of the stage records with their indexes."""
    kind = "sqlite" if database.is_file else "postgresql"
    async with database.reading(long=True) as connection:
        return int(await connection.scalar(text(SIZES[kind])) or 0)


def record(number: int, curve: Mapping[str, Any] | None) -> StageRecord:
    """A record as an answer of 200 tokens leaves it."""
    return StageRecord(
        request_id=f"req-{number:032x}",
        at=1_700_000_000.0 + number / 100,
        mode="shadow" if curve else "prod",
        action="would_speculate" if curve else "speculate",
        model="meta-llama/Llama-3.1-8B-Instruct",
        backend=f"gpu-{number % 8}",
        rule="interactive-chat",
        tenant="search",
        drafter="ngram",
        executor=None if curve else "in_engine",
        source="replay" if curve else "engine",
        profile="vllm",
        k=5,
        passes=131,
        steps=58,
        draft_tokens=290,
        accepted_tokens=69,
        accepted_by_position=(31, 18, 11, 6, 3),
        acceptance_rate=0.2379,
        mean_acceptance_length=2.19,
        prompt_tokens=412,
        completion_tokens=200,
        decode_tokens=199,
        decode_seconds=3.98,
        tokens_per_second=50.0,
        policy_revision="8f14e45fceea167a",
        k_curve=curve,
    )


def k_curve() -> Mapping[str, Any]:
    """What a replay says of every K."""
    return {
        str(k): {
            "passes": 150 - k,
            "steps": 58,
            "draft_tokens": 58 * k,
            "accepted_tokens": 31 + 9 * k,
            "tokens_per_pass": 1.3 + k / 30,
            "acceptance_rate": (31 + 9 * k) / (58 * k),
            "accepted_by_position": [31 - 3 * place for place in range(k)],
            "passes_by_drafts": {"0": 92, str(k): 58},
        }
        for k in range(1, 9)
    }


if __name__ == "__main__":
    main()
