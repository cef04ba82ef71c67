"""The house rules, kept: each is a function from a file's path and source to what is wrong in it."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from house_lists import BROAD_EXCEPT, CLOCK, DISK, FLOORS, NUMPY_AT_TOP, PRINTING, SQLALCHEMY, TORCH

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = "src/mementum"
TREES = ("src", "tests", "demo", "bench")

FLOOR = {room: height for height, rooms in enumerate(FLOORS, start=1) for room in rooms}
TESTING_REACH = 6  # `testing` is for authors of stores, codecs and policies: it sees the stages, not the tellers
STRANGERS = {"perceive", "decide", "execute", "catalog", "recover"}  # they meet in the tellers only
PACKAGE = ("__init__.py", "__main__.py")  # the front door, above all floors

LINES_MAX = 400  # what can be read in one sitting
FUNCTION_LINES_MAX = 60  # what fits on a screen; a docstring, which speaks to the caller, is not counted
BANNED = re.compile(r"(^|_)(utils?|helpers?|managers?|base|common|core|misc)(_|$)", re.IGNORECASE)
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")

BROAD = {"Exception", "BaseException"}
TORCH_NAMES = ("torch", "torchdata", "safetensors.torch")
NO_CODE_IN_DATA = ("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve")
TORCH_WRITES = {"torch.save", "torch.serialization.save"}
TORCH_READS = {"torch.load", "torch.serialization.load"}
UNPICKLER_SAID_NO = "pickle.UnpicklingError"  # the name of an error; it runs nothing
PICKLE_FOR_OTHERS = ("exchange/to_torch.py",)  # an export into torch's own format; no checkpoint of ours has any
PICKLE_OF_OTHERS = ("exchange/reading.py",)  # imports, through torch's restricted reader only
DURABLE = {f"os.{name}" for name in ("fsync", "fdatasync", "replace", "rename", "renames", "link", "symlink")}
DURABLE |= {"shutil.move", "shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree"}
PATH_WRITES = {"write_text", "write_bytes", "touch", "hardlink_to", "symlink_to"}
WRITE_MODE = re.compile(r"[rbtU]*[wax+][rwaxbt+]*")
WRITE_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC", "O_TMPFILE"}
TIME = {f"time.{name}{unit}" for name in ("time", "monotonic", "perf_counter") for unit in ("", "_ns")} | {"time.sleep"}
TIME |= {f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")} | {"datetime.date.today"}

Rule = Callable[[str, str], list[str]]

parse = cache(ast.parse)


# What a source says.


def room(path: str) -> str:
    return path.partition("/")[0].removesuffix(".py")


def allowed(path: str, places: tuple[str, ...]) -> bool:
    return any(path == place or (place.endswith("/") and path.startswith(place)) for place in places)


def at(path: str, node: ast.AST, what: str) -> str:
    return f"{path}:{getattr(node, 'lineno', 1)}: {what}"


def imported_by(node: ast.AST) -> Iterator[str]:
    """Dotted names: `from a import b` is a.b. A module imported by a literal name counts too."""
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=str(module), names=names):
            yield from (f"{module}.{alias.name}" for alias in names)
        case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__")):
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def imports(source: str) -> Iterator[tuple[ast.AST, str]]:
    return ((node, name) for node in ast.walk(parse(source)) for name in imported_by(node))


def is_one_of(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def executed_on_import(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the module is imported: not those in functions or under TYPE_CHECKING."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield from executed_on_import(child)


@cache
def references(source: str) -> tuple[tuple[ast.AST, str], ...]:
    """Every name and attribute that is used, called or not, by its full name: after `from os import link as l`, l is
    os.link. An attribute of a value keeps the value's text: make().open."""
    aliases: dict[str, str] = {}
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname: alias.name for alias in node.names if alias.asname}
        if isinstance(node, ast.ImportFrom):
            aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    nodes = (node for node in ast.walk(parse(source)) if isinstance(node, ast.Name | ast.Attribute))
    split = ((node, *ast.unparse(node).partition(".")) for node in nodes)
    return tuple((node, f"{aliases.get(base, base)}{dot}{rest}") for node, base, dot, rest in split)


def calls(source: str) -> Iterator[tuple[ast.Call, str]]:
    """Every call with the full name of what is called."""
    names = {id(node): name for node, name in references(source)}
    nodes = (node for node in ast.walk(parse(source)) if isinstance(node, ast.Call))
    return ((node, names.get(id(node.func), "")) for node in nodes)


def used(path: str, source: str, names: set[str], places: tuple[str, ...], where: str) -> list[str]:
    if allowed(path, places):
        return []
    return [at(path, node, f"{name} belongs {where}") for node, name in references(source) if name in names]


# Rules for every Python file; `path` is relative to the repository.


def short_files(path: str, source: str) -> list[str]:
    lines = len(source.splitlines())
    return [f"{path}: {lines} lines, at most {LINES_MAX}"] if lines > LINES_MAX else []


def docstring_first(path: str, source: str) -> list[str]:
    if not source.strip() or ast.get_docstring(parse(source)):
        return []
    return [f"{path}: no docstring that says what the file is"]


def names_with_a_meaning(path: str, source: str) -> list[str]:
    return [f"{path}: {part} says nothing" for part in path.split("/") if BANNED.search(part.removesuffix(".py"))]


# Rules for the product; `path` is relative to src/mementum.


def imports_go_down(path: str, source: str) -> list[str]:
    here = room(path)
    if path in PACKAGE:
        return []
    if here != "testing" and here not in FLOOR:
        return [f"{path}: {here} stands on no floor"]
    highest = TESTING_REACH if here == "testing" else FLOOR[here] - 1
    wrong = []
    for node, name in imports(source):
        top, _, rest = name.partition(".")
        there = rest.partition(".")[0]
        if top != "mementum" or there == here:
            continue
        if there not in FLOOR:
            wrong.append(at(path, node, f"imports {name}, which is not for the product"))
        elif FLOOR[there] > highest:
            wrong.append(at(path, node, f"imports {name} from floor {FLOOR[there]}, may reach up to {highest}"))
        elif {here, there} <= STRANGERS:
            wrong.append(at(path, node, f"imports {name}: {here} does not know {there}"))
    return wrong


def imports_are_absolute(path: str, source: str) -> list[str]:
    nodes = (node for node in ast.walk(parse(source)) if isinstance(node, ast.ImportFrom) and node.level > 0)
    return [at(path, node, "a relative import hides its floor") for node in nodes]


def short_functions(path: str, source: str) -> list[str]:
    functions = (n for n in ast.walk(parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    lengths = ((node, lines_of(node) - sum(map(lines_of, node.body[:1])) * has_docstring(node)) for node in functions)
    return [at(path, node, f"{node.name}: {lines} lines") for node, lines in lengths if lines > FUNCTION_LINES_MAX]


def lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def has_docstring(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return ast.get_docstring(node) is not None


def torch_where_tensors_are(path: str, source: str) -> list[str]:
    if allowed(path, TORCH):
        return []
    return [at(path, node, f"imports {name}") for node, name in imports(source) if is_one_of(name, TORCH_NAMES)]


def numpy_late(path: str, source: str) -> list[str]:
    if allowed(path, NUMPY_AT_TOP):
        return []
    nodes = executed_on_import(parse(source))
    names = ((node, name) for node in nodes for name in imported_by(node))
    return [at(path, node, "imports numpy at the top") for node, name in names if is_one_of(name, ("numpy",))]


def sqlalchemy_in_one_file(path: str, source: str) -> list[str]:
    if allowed(path, SQLALCHEMY):
        return []
    return [at(path, node, f"imports {name}") for node, name in imports(source) if is_one_of(name, ("sqlalchemy",))]


def writes(call: ast.Call, name: str) -> bool:
    """Whether a call opens a file for writing, or changes one through a Path; a mode that is no literal counts."""
    attribute = name.rpartition(".")[2]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if name in ("open", "io.open"):
        mode = call.args[1] if len(call.args) > 1 else keywords.get("mode", ast.Constant("r"))
        return not isinstance(mode, ast.Constant) or bool(WRITE_MODE.fullmatch(str(mode.value)))
    if name == "os.open":
        flags = call.args[1] if len(call.args) > 1 else keywords.get("flags", call)
        seen = {node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in ast.walk(flags)}
        return "O_RDONLY" not in seen or bool(seen & WRITE_FLAGS)
    if "." not in name:
        return False
    if attribute == "open":
        modes = [*call.args[:2], keywords.get("mode")]
        return any(isinstance(mode, ast.Constant) and WRITE_MODE.fullmatch(str(mode.value)) for mode in modes)
    if attribute in ("replace", "rename"):  # of a Path: one argument, where str.replace has two
        return len(call.args) == 1 and not call.keywords
    return attribute in PATH_WRITES


def disk_through_one_door(path: str, source: str) -> list[str]:
    if allowed(path, DISK):
        return []
    others = ((call, name) for call, name in calls(source) if name not in DURABLE)
    opened = [at(path, call, f"{name} writes") for call, name in others if writes(call, name)]
    return opened + used(path, source, DURABLE, DISK, "in storage/disk.py")


def time_through_the_clock(path: str, source: str) -> list[str]:
    return used(path, source, TIME, CLOCK, "in clock.py")


def no_code_in_data(path: str, source: str) -> list[str]:
    names = ((node, name) for node, name in imports(source) if name != UNPICKLER_SAID_NO)
    found = [at(path, node, f"imports {name}") for node, name in names if is_one_of(name, NO_CODE_IN_DATA)]
    found += used(path, source, TORCH_WRITES, PICKLE_FOR_OTHERS, "nowhere: it is pickle")
    found += used(path, source, TORCH_READS, PICKLE_OF_OTHERS, "nowhere: it is pickle")
    reads = (call for call, name in calls(source) if name in TORCH_READS and allowed(path, PICKLE_OF_OTHERS))
    open_to_all = (call for call in reads if "weights_only=True" not in map(ast.unparse, call.keywords))
    return found + [at(path, call, "it may run code") for call in open_to_all]


def faults_are_named(path: str, source: str) -> list[str]:
    """`except Exception` stands at borders only; a bare one or BaseException may clean up if it raises again."""
    if allowed(path, BROAD_EXCEPT):
        return []
    wrong = []
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = {getattr(kind, "id", "") if kind is not None else "bare" for kind in kinds}
            raises = isinstance(node.body[-1], ast.Raise)
            if "Exception" in names or (names & {"bare", "BaseException"} and not raises):
                wrong.append(at(path, node, "catches everything"))
    for call, name in calls(source):
        if name == "contextlib.suppress" and BROAD & {getattr(arg, "id", "") for arg in call.args}:
            wrong.append(at(path, call, "suppresses everything"))
    return wrong


def no_print(path: str, source: str) -> list[str]:
    return used(path, source, {"print"}, PRINTING, "in cli")


def nothing_unfinished(path: str, source: str) -> list[str]:
    lines = enumerate(source.splitlines(), start=1)
    return [f"{path}:{number}: {line.strip()}" for number, line in lines if UNFINISHED.search(line)]


EVERYWHERE: tuple[Rule, ...] = (short_files, docstring_first, names_with_a_meaning)
IN_PRODUCT: tuple[Rule, ...] = (
    imports_go_down,
    imports_are_absolute,
    short_functions,
    torch_where_tensors_are,
    numpy_late,
    sqlalchemy_in_one_file,
    disk_through_one_door,
    time_through_the_clock,
    no_code_in_data,
    faults_are_named,
    no_print,
    nothing_unfinished,
)


# The tests.


def python_files(folder: str, below: Path) -> list[tuple[str, str]]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    return [(path.relative_to(below).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


def rule_name(rule: Rule) -> str:
    return rule.__name__


@pytest.mark.parametrize("rule", EVERYWHERE, ids=rule_name)
def test_every_file_keeps(rule: Rule) -> None:
    files = [file for tree in TREES for file in python_files(tree, ROOT)]
    wrong = [what for path, source in files for what in rule(path, source)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("rule", IN_PRODUCT, ids=rule_name)
def test_the_product_keeps(rule: Rule) -> None:
    wrong = [what for path, source in python_files(PRODUCT, ROOT / PRODUCT) for what in rule(path, source)]
    assert not wrong, "\n".join(wrong)


def plants(kind: str) -> list[object]:
    """The planted sources in house_plants.toml, each with its rule and its path."""
    planted = tomllib.loads((ROOT / "tests/house_plants.toml").read_text(encoding="utf-8"))[kind]
    return [
        pytest.param(rule, plant["path"], plant["source"] + "    x = 1\n" * plant.get("filler", 0), id=rule.__name__)
        for rule in EVERYWHERE + IN_PRODUCT
        for plant in planted[rule.__name__]  # a rule without a plant is a KeyError
    ]


@pytest.mark.parametrize(("rule", "path", "source"), plants("bites"))
def test_a_rule_bites(rule: Rule, path: str, source: str) -> None:
    assert len(rule(path, source)) == 1


@pytest.mark.parametrize(("rule", "path", "source"), plants("passes"))
def test_a_rule_lets_pass(rule: Rule, path: str, source: str) -> None:
    assert rule(path, source) == []
