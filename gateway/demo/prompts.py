"""The demo's prompts: one YAML file for each workload, shipped inside the package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from itertools import zip_longest

import yaml

WORKLOADS = ("code", "rag", "summarise", "chat", "creative")
_CALIBRATION = "calibration"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message, and the workload that it stands for."""

    workload: str
    name: str
    text: str


def load_prompts(per_workload: int | None = None) -> tuple[Prompt, ...]:
    """The prompts of every workload, workloads taking turns; only the first `per_workload` of each if given.

    A machine that slows down or speeds up during a run then does so for all workloads alike.
    """
    turns = zip_longest(*(_read(workload)[:per_workload] for workload in WORKLOADS))
    return tuple(prompt for turn in turns for prompt in turn if prompt is not None)


def calibration_prompt() -> Prompt:
    """The prompt that pass times are measured on; it is not among those that are predicted."""
    (prompt,) = _read(_CALIBRATION)
    return prompt


def _read(workload: str) -> list[Prompt]:
    text = files("gateway.demo").joinpath("prompts", f"{workload}.yaml").read_text(encoding="utf-8")
    return [Prompt(workload, entry["name"], entry["user"]) for entry in yaml.safe_load(text)]
