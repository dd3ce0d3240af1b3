"""YAML to Policy. Every complaint has file, line and what is allowed, and all are found at once."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from pydantic import ValidationError

from gateway import settled
from gateway.errors import PolicyError
from gateway.policy.model import Defaults, Policy
from gateway.policy.refusals import MAX_SHOWN, Refusal, refusals, shown
from gateway.policy.yaml_tree import Block, Complaint, Items, in_lines, line_of, read_yaml

MAX_POLICY_BYTES = settled.MAX_BYTES

PolicySource = Literal["file", "store", "default"]
"""Where policies come from; `default` is nowhere, so that DEFAULT_POLICY holds."""

DEFAULT_POLICY = Policy(version=1)
"""What holds without a policy file: everything off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPolicy:
    """A policy in force.

    Attributes:
        revision: First 12 hex digits of the text's SHA-256; `default` for DEFAULT_POLICY.
        source: The file's path as it was given; `default` for DEFAULT_POLICY.
        loaded_at: Unix time.
        text: As it was written, comments included; None for DEFAULT_POLICY, which nobody wrote.
    """

    policy: Policy
    revision: str
    source: str
    loaded_at: float
    text: str | None = field(default=None, repr=False)


class PolicyInForce(Protocol):
    """Holds the policy in force."""

    @property
    def current(self) -> LoadedPolicy:
        """The last good one."""


def default_policy(at: float) -> LoadedPolicy:
    """DEFAULT_POLICY as loaded at a time."""
    return LoadedPolicy(policy=DEFAULT_POLICY, revision="default", source="default", loaded_at=at)


def load_policy(path: Path, *, clock: Callable[[], float] = time.time) -> LoadedPolicy:
    """Read a policy file.

    Raises:
        PolicyError: The file cannot be read, or is no valid policy.
    """
    return policy_from(read_content(path), str(path), at=clock())


def read_content(path: Path) -> bytes:
    """A policy file's bytes; of a file that is too large only enough to tell.

    Raises:
        PolicyError: The file cannot be read.
    """
    return settled.read_content(path, PolicyError)


def policy_from(content: bytes, source: str, *, at: float) -> LoadedPolicy:
    """The policy that a file's bytes hold.

    Raises:
        PolicyError: They are no valid policy.
    """
    text = _text(content, source)
    policy = parse_policy(text.removeprefix("\ufeff"), source)
    return LoadedPolicy(policy=policy, revision=revision_of(content), source=source, loaded_at=at, text=text)


def revision_of(content: bytes) -> str:
    """The name of this exact text."""
    return hashlib.sha256(content).hexdigest()[:12]


def parse_policy(text: str, source: str) -> Policy:
    """The policy that a text describes.

    Raises:
        PolicyError: With one line for each complaint, `source:line: ...`, in the order of the lines.
    """
    tree, complaints = read_yaml(text)
    policy: Policy | None = None
    if isinstance(tree, Block):
        policy, more = _validated(tree)
        complaints += more
    elif not complaints:
        complaints = [Complaint(1, _not_a_mapping(tree))]
    if policy is None or complaints:
        raise PolicyError(in_lines(complaints, source))
    return policy


def _text(content: bytes, source: str) -> str:
    return settled.decoded(content, source, "policy", PolicyError)


def _not_a_mapping(tree: object) -> str:
    if tree is None:
        return "the file is empty. The smallest policy is `version: 1`, which leaves everything off."
    return "a policy is a mapping with the keys version, defaults and rules."


def _validated(tree: Block) -> tuple[Policy | None, list[Complaint]]:
    policy_block = _with_defaults(tree.selected(key for key in tree if not key.startswith("x-")))
    complaints = _repeated_names(policy_block.get("rules"))
    try:
        return Policy.model_validate(policy_block), complaints
    except ValidationError as error:
        found = refusals(error, Policy, policy_block)
        return None, complaints + [_complaint(refusal, policy_block) for refusal in found]


def _with_defaults(policy_block: Block) -> Block:
    """The policy with each rule saying everything: its own words first, then those of `defaults`."""
    defaults, rules = policy_block.get("defaults"), policy_block.get("rules")
    if not isinstance(defaults, Block) or not isinstance(rules, Items):
        return policy_block
    defaults = _valid_part(defaults)
    merged = Items(rules.line)
    for rule, line in zip(rules, rules.lines, strict=True):
        merged.put(_under(defaults, rule) if isinstance(rule, Block) else rule, line)
    completed = policy_block.selected(policy_block)
    completed.put("rules", merged, policy_block.lines["rules"])
    return completed


def _valid_part(defaults: Block) -> Block:
    """`defaults` without what is refused there, lest it be refused again in every rule."""
    try:
        Defaults.model_validate(defaults)
    except ValidationError as error:
        refused = {refusal.path[0] for refusal in refusals(error, Defaults, defaults)}
        return defaults.selected(key for key in defaults if key not in refused)
    return defaults


def _under(base: Block, block: Block) -> Block:
    """`block`, completed from `base` at every depth. A lookahead range is one value and replaced whole."""
    completed = block.selected(block)
    for key, value in base.items():
        own = block.get(key)
        if key not in block:
            completed.put(key, value, base.lines[key])
        elif isinstance(own, Block) and isinstance(value, Block) and key != "lookahead":
            completed.put(key, _under(value, own), block.lines[key])
    return completed


def _repeated_names(rules: object) -> list[Complaint]:
    first_lines: dict[object, int] = {}
    complaints = []
    for rule in rules if isinstance(rules, Items) else []:
        if not isinstance(rule, Block) or not isinstance(name := rule.get("name"), str):
            continue
        line = rule.lines["name"]
        if name in first_lines:
            text = f"rule {shown(name)}: the name is already taken by the rule on line {first_lines[name]}."
            complaints.append(Complaint(line, text))
        first_lines.setdefault(name, line)
    return complaints


def _complaint(refusal: Refusal, policy_block: Block) -> Complaint:
    who, inner = _whose(refusal.path, policy_block)
    name = ".".join(step for step in inner if isinstance(step, str)) or "the value"
    if not name.isprintable() or len(name) > MAX_SHOWN:
        name = shown(name)
    return Complaint(line_of(refusal.path, policy_block), f"{who}{name} {refusal.text}")


def _whose(path: tuple[str | int, ...], policy_block: Block) -> tuple[str, tuple[str | int, ...]]:
    """The part of the policy that a path leads into, in words, and the rest of the path."""
    match path:
        case ("rules", int(index), *inner):
            rules = policy_block["rules"]
            rule = rules[index] if isinstance(rules, Items) else None
            name = rule.get("name") if isinstance(rule, Block) else None
            return f"rule {shown(name)}: " if isinstance(name, str) else f"rule number {index + 1}: ", tuple(
                inner
            )
        case ("defaults", *inner) if inner:
            return "defaults: ", tuple(inner)
    return "", path
