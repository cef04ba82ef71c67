"""Reading: a YAML file as plain values, with the line of every key and all that is wrong with it as YAML."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from typing import Any, NoReturn

import yaml

from mementum.errors import UsageError
from mementum.records import record

FILE_MAX = 64 * 1024  # bytes; a configuration has a few thousand, and YAML is read slowly: a second for so many
DEPTH_MAX = 16  # levels of nesting; the settings have four
DIGITS_MAX = 300  # of a number; no amount has more, and Python refuses to read thousands of them
SHOWN_MAX = 60  # characters of a key or text of the file that a message repeats
NULLS = ("", "~", "null", "Null", "NULL")
INTEGER = re.compile(r"[-+]?[0-9]+(_[0-9]+)*", re.ASCII)
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", re.ASCII | re.IGNORECASE)
FOUND_MAX = 100  # findings of one file; who has more reads the wrong file

LOOK = "mementum config show pretrain"  # a configuration to look at

Path = tuple[str | int, ...]


@record
class Finding:
    """One thing that is wrong. `line` counts from 1; None where the values are not from a file."""

    key: str
    what: str
    line: int | None = None
    expected: str | None = None
    nearest: str | None = None

    def __str__(self) -> str:
        text = f"{self.key}: {self.what}" if self.key else self.what
        text += f"; the nearest is {self.nearest}" if self.nearest else ""
        return text + (f"; expected {self.expected}" if self.expected else "")


@record
class Tree:
    """Plain values, and the line on which each of them stands, by the path to it."""

    values: Mapping[str, Any]
    lines: Mapping[Path, int]
    findings: tuple[Finding, ...] = ()

    def line(self, path: Path) -> int | None:
        """That of the value at `path`, or else of the deepest one above it that stands in the file."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None


def spelled(path: Path) -> str:
    """A path as people write it: policy[2].window.base_interval."""
    text = ""
    for one in path:
        text += f"[{one}]" if isinstance(one, int) else f".{one}" if text else one
    return text


def read(file: str | os.PathLike[str]) -> Tree:
    """The values of a YAML file. What is wrong with it is in the findings; UsageError if there is no file to read."""
    name = os.fspath(file)
    try:
        regular = stat.S_ISREG(os.stat(name).st_mode)  # a pipe would be waited for
        data = b""
        if regular:
            with open(name, "rb") as opened:
                data = opened.read(FILE_MAX + 1)
    except (OSError, ValueError) as cause:  # ValueError: a zero byte in the name
        why = (cause.strerror if isinstance(cause, OSError) else None) or str(cause)
        raise UsageError(f"{name!r:.300} cannot be read: {why}", next_command=LOOK) from cause
    if not regular:
        raise UsageError(f"{name!r:.300} is no file", next_command=LOOK)
    if len(data) > FILE_MAX:
        return _broken(f"the file is larger than {FILE_MAX // 1024} KiB: that is no configuration", None)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        what = f"byte 0x{data[cause.start]:02x} is not UTF-8"
        return _broken(what, data.count(b"\n", 0, cause.start) + 1, "a text file in UTF-8")
    return parse(text)


def parse(text: str) -> Tree:
    """The values of a YAML text: mappings, lists, texts, numbers, true, false and null. Nothing is run."""
    strange = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if strange is not None:
        line = text.count("\n", 0, strange.start()) + 1
        return _broken("a character that no text has: this is a binary file", line, "a text file in UTF-8")
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as cause:
        return _broken(_why(cause, text), _line(cause))
    finally:
        loader.dispose()
    if node is None:
        return Tree(values={}, lines={})
    reader = _Reader()
    values = reader.value(node, ())
    if not isinstance(values, dict):
        if values is None and not reader.findings:
            return Tree(values={}, lines={})
        reader.find(node, (), "the file is no mapping", "`key: value` on each line")
        values = {}
    return Tree(values=values, lines=reader.lines, findings=tuple(reader.findings[:FOUND_MAX]))


def _broken(what: str, line: int | None, expected: str | None = None) -> Tree:
    return Tree(values={}, lines={}, findings=(Finding(key="", what=what, line=line, expected=expected),))


def _line(error: yaml.MarkedYAMLError) -> int | None:
    mark = error.problem_mark or error.context_mark
    return mark.line + 1 if mark is not None else None


def _why(error: yaml.MarkedYAMLError, text: str) -> str:
    line = _line(error)
    lines = text.splitlines()
    if line is not None and line <= len(lines) and re.match(r" *\t", lines[line - 1]):
        return "a tab stands where spaces are expected: YAML is indented with spaces only"
    return " ".join(part for part in (error.context, error.problem) if part)


class _Loader(yaml.SafeLoader):
    """Composes nodes, and refuses what could make much of little or something other than plain values."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            _refuse(event, "anchors and aliases (&, *) are not read: write the value out")
        if event.tag is not None:
            _refuse(event, "tags (!) are not read: only texts, numbers, true, false, null, lists and mappings are")
        if self.depth == DEPTH_MAX:  # the composer calls itself: a file of brackets would end the process
            _refuse(event, f"more than {DEPTH_MAX} levels of nesting")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _refuse(event: Any, why: str) -> NoReturn:
    raise yaml.MarkedYAMLError(problem=why, problem_mark=event.start_mark)


class _Reader:
    """Makes plain values of nodes, and keeps their lines and what is wrong with them."""

    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}
        self.findings: list[Finding] = []

    def find(self, node: yaml.Node, path: Path, what: str, expected: str | None = None) -> None:
        line = node.start_mark.line + 1
        self.findings.append(Finding(key=spelled(path), what=what, line=line, expected=expected))

    def value(self, node: yaml.Node, path: Path) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(one, (*path, number)) for number, one in enumerate(node.value)]
        bare = isinstance(node, yaml.ScalarNode) and node.style is None
        return plain(node.value) if bare else node.value

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, inner in node.value:
            if not isinstance(name, yaml.ScalarNode):
                self.find(name, path, "a list or a mapping stands where a key is expected", "a name")
                continue
            here = (*path, str(name.value)[:SHOWN_MAX])
            if name.value in values:
                first = self.lines[here]
                self.find(name, here, f"the key is given twice, on line {first} and on line {name.start_mark.line + 1}")
                continue
            self.lines[here] = name.start_mark.line + 1
            values[name.value] = self.value(inner, here)
        return values


def plain(text: str) -> Any:
    """What a text without quotes means, as in YAML 1.2: yes, on, 1:30 and dates, which YAML 1.1 takes for something
    else, stay texts."""
    if text in NULLS:
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if len(text) > DIGITS_MAX:
        return text
    if INTEGER.fullmatch(text):
        return int(text)
    if FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text
