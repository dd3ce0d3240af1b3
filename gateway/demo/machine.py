"""Where a demo ran."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from gateway import __version__


def describe_machine() -> dict[str, str | int]:
    """Processor, cores and versions of this machine."""
    return {
        "cpu": _processor(),
        "cores": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "ace": __version__,
    }


def _processor() -> str:
    """The processor's name; Linux has it in a file, other systems tell Python."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
