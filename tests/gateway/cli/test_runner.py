import os
import sys

import pytest

from tests.gateway.cli.conftest import Ace


@pytest.mark.parametrize("part", ["draft-runner", "embedded-backend"])
@pytest.mark.parametrize("args", [(), ("--help",), ("--port", "8090", "--gateway", "http://g", "-x")])
def test_the_process_becomes_the_other_part_with_all_arguments(
    ace: Ace, monkeypatch: pytest.MonkeyPatch, part: str, args: tuple[str, ...]
) -> None:
    became: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda path, argv: became.append((path, argv)))
    assert ace(part, *args).exit_code == 0
    assert became == [(sys.executable, [sys.executable, "-m", "draftrunner", part, *args])]
