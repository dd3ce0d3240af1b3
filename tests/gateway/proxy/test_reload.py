"""BR-C12: a policy that is saved again and again while clients send never lets through what it refuses."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gateway.policy.model import Mode
from gateway.policy.watch import PolicyHolder
from tests.fakes.raw_http import ask, post
from tests.fakes.upstream import PATIENCE_S, Upstream
from tests.gateway.proxy.harness import Gateway, backend_at

SAVES = 200

TEXT = """\
version: 1
defaults: {{mode: prod, experimental: true, prod: {{control: {{fraction: 0}}}}}}
rules:
  - {{name: refused, mode: off}}   # save number {number}
"""
"""Cut before its rules it is valid, and speculates everything."""


def save(file: Path, number: int, look: Callable[[], None]) -> None:
    """Truncate, write half, write the rest. One look falls in between; the next comes half a second later."""
    text = TEXT.format(number=number)
    half = text.index("rules:")
    pieces = ("", text[:half], text[half:])
    looked_at = random.Random(number).randrange(len(pieces))
    with file.open("w") as opened:
        for place, piece in enumerate(pieces):
            opened.write(piece)
            opened.flush()
            if place == looked_at:
                look()


def test_of_200_saves_none_lets_a_request_be_speculated(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(TEXT.format(number=0))
    holder = PolicyHolder(file, time.time)
    saved = threading.Event()

    def write() -> None:
        for number in range(SAVES):
            asked.wait(PATIENCE_S)
            asked.clear()
            save(file, number, holder.check_once)
        saved.set()

    asked = threading.Event()
    with Upstream() as upstream:
        gateway = Gateway([backend_at(upstream)])
        gateway.holder = holder  # type: ignore[assignment]
        writer = threading.Thread(target=write)
        statuses, modes = set(), set()
        with gateway:
            writer.start()
            while not saved.is_set():
                statuses.add(ask(gateway.port, post(b'{"model": "m1", "messages": []}')).status)
                modes.add(gateway.records.next_access().mode)
                asked.set()
            writer.join()
    assert statuses == {200}
    assert modes == {str(Mode.OFF)}
    assert gateway.records.stages == []
    holder.check_once()
    holder.check_once()
    assert holder.current.text == TEXT.format(number=SAVES - 1)
    assert holder.error is None
