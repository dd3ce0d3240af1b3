"""YAML text to plain values that know their lines. Finds all that is wrong, not only the first thing.

Differs from PyYAML's own loader where that one surprises people who write policies:

- only `true` and `false` are booleans, so `off`, `on`, `yes`, `no` and `y` are words;
- a key given twice in a mapping is a complaint; a merge (`<<: *base`) may still be overridden;
- dates, octal and base-60 numbers are words; tags other than YAML's core ones are complaints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from yaml import MappingNode, Node, ScalarNode, SequenceNode, YAMLError
from yaml.composer import Composer
from yaml.error import MarkedYAMLError
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

_CORE = "tag:yaml.org,2002:"
_MERGE = _CORE + "merge"

_SCALARS = {
    _CORE + "null": (re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""]),
    _CORE + "bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF")),
    _CORE + "int": (re.compile(r"[-+]?[0-9]{1,18}"), list("-+0123456789")),
    _CORE + "float": (
        re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"),
        list("-+.0123456789"),
    ),
    _MERGE: (re.compile(r"<<"), ["<"]),
}

_BOOLEANS_OF_YAML_1_1 = {
    **dict.fromkeys(("true", "yes", "on", "y"), "true"),
    **dict.fromkeys(("false", "no", "off", "n"), "false"),
}


@dataclass(frozen=True, slots=True, order=True)
class Complaint:
    """One thing that is wrong with a file, and where."""

    line: int
    text: str


class Block(dict[str, object]):
    """A mapping.

    Attributes:
        line: Where it starts.
        lines: The line of each key.
    """

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}

    def put(self, key: str, value: object, line: int) -> None:
        """Set `key`, which stands on `line`."""
        self[key] = value
        self.lines[key] = line

    def selected(self, keys: Iterable[str]) -> Block:
        """A copy with only `keys`."""
        copy = Block(self.line)
        for key in keys:
            copy.put(key, self[key], self.lines[key])
        return copy


class Items(list[object]):
    """A list.

    Attributes:
        line: Where it starts.
        lines: The line of each item.
    """

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: list[int] = []

    def put(self, value: object, line: int) -> None:
        """Append `value`, which starts on `line`."""
        self.append(value)
        self.lines.append(line)


def read_yaml(text: str) -> tuple[object, list[Complaint]]:
    """The value of a YAML text, and every complaint about its form.

    Mappings come as Block and lists as Items; an empty text is None. Never raises.
    """
    try:
        node = _Nodes(text).get_single_node()
        if node is None:
            return None, []
        builder = _Builder()
        return builder.value(node), builder.complaints
    except RecursionError:
        return None, [Complaint(1, "nested too deeply.")]
    except (YAMLError, ValueError, OverflowError) as error:
        return None, [_syntax_complaint(error, text)]


def line_of(path: Iterable[str | int], block: Block) -> int:
    """The line of the last step of a path that stands in the file."""
    line = block.line
    value: object = block
    for step in path:
        if isinstance(value, Block) and step in value:
            line, value = value.lines[str(step)], value[str(step)]
        elif isinstance(value, Items) and isinstance(step, int):
            line, value = value.lines[step], value[step]
    return line


class _Nodes(Reader, Scanner, Parser, Composer, BaseResolver):
    """PyYAML up to its tree of nodes, with our own idea of which plain words are not text."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)


for _tag, (_pattern, _first_characters) in _SCALARS.items():
    _Nodes.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern.pattern})\Z"), _first_characters)


class _Builder:
    """Nodes to values. A node that aliases share is built once, so nested aliases cost no more."""

    def __init__(self) -> None:
        self.complaints: list[Complaint] = []
        self._built: dict[Node, object] = {}
        self._open: set[Node] = set()

    def value(self, node: Node) -> object:
        if node in self._open:
            self._complain(node, "an anchor may not contain itself.")
            return None
        if node not in self._built:
            self._open.add(node)
            self._built[node] = self._build(node)
            self._open.remove(node)
        return self._built[node]

    def _build(self, node: Node) -> object:
        match node:
            case MappingNode():
                self._check_tag(node, "map")
                return self._block(node)
            case SequenceNode():
                self._check_tag(node, "seq")
                return self._items(node)
            case ScalarNode():
                return self._scalar(node)
        raise AssertionError(node)  # PyYAML has three kinds of node

    def _check_tag(self, node: Node, expected: str) -> None:
        if node.tag != _CORE + expected:
            self._complain(node, f"the tag {node.tag!r} has no meaning here; leave it out.")

    def _items(self, node: SequenceNode) -> Items:
        items = Items(_line(node))
        for item in node.value:
            items.put(self.value(item), _line(item))
        return items

    def _block(self, node: MappingNode) -> Block:
        block = Block(_line(node))
        merged: list[Block] = []
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self._complain(key_node, "a key must be a word, not a list or a mapping.")
                continue
            key, line = key_node.value, _line(key_node)
            identity = _key_identity(key)
            if identity in first_lines:
                self._complain(
                    key_node, f"key {key[:80]!r} is already given on line {first_lines[identity]}."
                )
                continue
            first_lines[identity] = line
            if key_node.tag == _MERGE:
                merged += self._merge_sources(value_node)
            else:
                block.put(key, self.value(value_node), line)
        for source in merged:
            for key in [key for key in source if key not in block]:
                block.put(key, source[key], source.lines[key])
        return block

    def _merge_sources(self, node: Node) -> list[Block]:
        sources = self.value(node)
        listed = sources if isinstance(sources, Items) else [sources]
        blocks = [source for source in listed if isinstance(source, Block)]
        if len(blocks) < len(listed):
            self._complain(node, "`<<` merges a mapping or a list of mappings, usually `<<: *anchor`.")
        return blocks

    def _scalar(self, node: ScalarNode) -> object:
        text: str = node.value
        if node.tag in (_CORE + "str", _MERGE):
            return text
        if node.tag not in _SCALARS:
            self._complain(node, f"the tag {node.tag!r} has no meaning here; leave it out.")
        elif not _SCALARS[node.tag][0].fullmatch(text):
            self._complain(node, f"{text!r} is not a YAML {node.tag.removeprefix(_CORE)}.")
        else:
            return _CONVERT[node.tag](text)
        return text

    def _complain(self, node: Node, text: str) -> None:
        self.complaints.append(Complaint(_line(node), text))


_CONVERT: Mapping[str, Callable[[str], object]] = {
    _CORE + "null": lambda _: None,
    _CORE + "bool": lambda text: text.casefold() == "true",
    _CORE + "int": int,
    _CORE + "float": float,
}


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _key_identity(text: str) -> str:
    """Keys with one identity would be one key to some YAML reader, so they may not stand side by side."""
    word = text.casefold()
    if _SCALARS[_CORE + "float"][0].fullmatch(word):
        return str(float(word))
    if _SCALARS[_CORE + "null"][0].fullmatch(word):
        return "null"
    return _BOOLEANS_OF_YAML_1_1.get(word, text)


def _syntax_complaint(error: Exception, text: str) -> Complaint:
    if isinstance(error, ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return Complaint(line, f"the character {chr(error.character)!r} is not allowed in YAML.")
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        line = error.problem_mark.line + 1
        if "'\\t'" in str(error.problem):
            return Complaint(line, "a tab cannot indent YAML; use spaces.")
        return Complaint(line, f"not valid YAML: {error.problem}{_context(error)}.")
    return Complaint(1, f"not valid YAML: {error}.")


def _context(error: MarkedYAMLError) -> str:
    if not error.context:
        return ""
    place = f" on line {error.context_mark.line + 1}" if error.context_mark else ""
    return f" ({error.context}{place})"


def in_lines(complaints: Iterable[Complaint], source: str) -> str:
    """One line for each different complaint, `source:line: ...`, in the order of the lines."""
    return "\n".join(f"{source}:{complaint.line}: {complaint.text}" for complaint in sorted(set(complaints)))
