"""The tree of errors: drawn as it is, each class on the page, each raise with what is kept or what to do next."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mementum import errors
from mementum.errors import CheckpointDamaged, KeyMissing, MementumError, NewerFormat, UnknownFormat, UsageError

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / errors.PAGE
CLASSES = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, MementumError)
}
SECTION = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SECTIONS = dict(SECTION.findall(PAGE.read_text(encoding="utf-8")))
LINES = range(3, 9)
# These say what is kept or what is next in their own constructors.
TELLING = {"UnsupportedState", "KeyTaken", "TaskInUse", "Superseded", "TrainingDiverged"}


def drawn() -> dict[str, str | None]:
    """Each class of the docstring's tree, with the one that it hangs from."""
    assert errors.__doc__ is not None
    above: list[str] = []
    found: dict[str, str | None] = {}
    for line in errors.__doc__.splitlines():
        match = re.match(r"((?:[│ ]   )*(?:[├└]── )?)([A-Z]\w+)(?: {2,}.*)?$", line)
        if match is not None:
            depth = len(match[1]) // 4
            above[depth:] = [match[2]]
            found[match[2]] = above[depth - 1] if depth else None
    return found


def test_the_tree_is_drawn_as_it_is() -> None:
    real = {name: kind.__base__.__name__ if kind is not MementumError else None for name, kind in CLASSES.items()}
    assert drawn() == {name: "UsageError" if parent == "ValueError" else parent for name, parent in real.items()}


def test_every_class_has_a_section_and_every_section_a_class() -> None:
    assert set(SECTIONS) == set(CLASSES)
    assert list(SECTIONS) == list(drawn())  # in the order of the tree


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_section_is_short_and_says_what_to_do(name: str) -> None:
    text = SECTIONS[name].strip()
    assert len([line for line in text.splitlines() if line]) in LINES
    assert "*Safe:*" in text
    assert "*Do:*" in text


@pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES)
def test_the_page_is_known_to_the_error(kind: type[MementumError]) -> None:
    error = kind.__new__(kind)
    file, _, anchor = error.page.partition("#")
    assert (ROOT / file).is_file()
    assert anchor in [heading.lower() for heading in SECTIONS]
    assert (kind.__doc__ or "").strip()


def test_what_holds_for_a_class_is_told_where_nobody_says_more() -> None:
    assert str(UnknownFormat("x")) == "x\nnext: mementum doctor ROOT"
    assert UnknownFormat("x", kept="a", next_command="b").next_command == "b"
    assert UsageError("x").kept == "everything: nothing was changed"
    assert KeyMissing("a").next_command == "mementum doctor ROOT"
    assert NewerFormat("x").next_command == "pip install --upgrade mementum"
    damaged = CheckpointDamaged("c1", [("a", "it is missing")])
    assert (damaged.kept, damaged.next_command) == (CheckpointDamaged.default_kept, "mementum verify ROOT --deep")
    assert MementumError("x").page == "docs/errors.md#mementumerror"


def raised() -> Iterator[tuple[str, str, ast.Call]]:
    """Every place of the product that makes an error of ours: where, which class, and the call."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and name in CLASSES:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", name, node


def tells(name: str, call: ast.Call) -> bool:
    """Whether the call, or its class, says what is kept or what to do next."""
    kind = CLASSES[name]
    said = {keyword.arg for keyword in call.keywords} & {"kept", "next_command", None}
    return bool(said) or name in TELLING or (kind.default_kept or kind.default_next) is not None


def test_every_error_says_what_is_kept_or_what_to_do_next() -> None:
    places = list(raised())
    assert len(places) > 100
    silent = [f"{where}: {name}" for where, name, call in places if not tells(name, call)]
    assert not silent, "\n".join(silent)


def test_a_silent_error_is_found() -> None:
    (call,) = [node for node in ast.walk(ast.parse("StoreError(key, 'no')")) if isinstance(node, ast.Call)]
    assert not tells("StoreError", call)
