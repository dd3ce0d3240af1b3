from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.control import ControlPlane, control_plane
from tests.fakes.stores import opened_store

POLICY = """\
version: 1
rules:
  - name: rag
    match: {workload: rag}
    mode: shadow
    draft: ngram
  - name: code
    match: {workload: code}
    mode: prod
    experimental: true
"""


@pytest.fixture
async def control(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    policy_file = tmp_path / "policy.yaml"
    policy_file.write_text(POLICY)
    async with opened_store(tmp_path) as store, control_plane(store, policy_file) as opened:
        yield opened
