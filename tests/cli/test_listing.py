"""`mementum ls`: what is listed, in which order, and that no name can spoil the table."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mementum.catalog.sql import open_sqlite
from mementum.cli.listing import draw, id_width
from mementum.errors import StoreError
from mementum.format import generations
from mementum.format import manifest as manifests
from mementum.records import Granularity

HOSTILE = "a[red]b[/red]@x :smile: \\[dim]"
REASON = "bad \x1b[31m\u202e[bold]reason\n"


def folder(root: Path, step: int) -> Path:
    (found,) = root.glob(f"*/*/step_{step:010d}")
    return found


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_plain_table(ask: Any, root: Path) -> None:
    answer = ask("ls", root)
    assert (answer.code, answer.err) == (0, "")
    head, *rows, total = answer.lines
    assert head.split() == ["task", "step", "id", "when", "(UTC)", "size", "state", "proof", "reason"]
    assert [row.split()[:2] for row in rows] == [["byte-gpt", "6"], ["byte-gpt", "4"], ["byte-gpt", "2"]]
    form = (
        r"byte-gpt +6  c[0-9a-z]{9,}  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d  +[\d.]+ KiB  not exact  -      2 steps since .*"
    )
    assert re.fullmatch(form, rows[0])
    assert re.fullmatch(r"3 checkpoints of 1 task, [\d.]+ KiB", total)
    assert "\x1b" not in answer.out


def test_json(ask: Any, root: Path) -> None:
    listed = json.loads(ask("ls", root, "--json").out)
    assert [one["step"] for one in listed] == [6, 4, 2]
    manifest = json.loads((folder(root, 4) / "meta.json").read_bytes())
    one = listed[1]
    assert {name: one[name] for name in ("id", "time", "reason", "parent", "seq", "attempt", "epoch", "task")} == {
        name: manifest[name] for name in ("id", "time", "reason", "parent", "seq", "attempt", "epoch", "task")
    }
    assert one["path"] == str(folder(root, 4))
    assert one["size"] == sum(file["size"] for file in manifest["files"])
    assert one["metrics"] == {"loss": 0.2, "acc": 0.75, "nothing": {"$float": "7ff8000000000000"}}
    assert (one["granularity"], one["health"], one["exactness"]) == ("full", "clean", manifest["exactness"])
    assert (one["damaged"], one["verified"]) == (None, None)


@pytest.mark.parametrize(
    ("levels", "said"),
    [("0", "essentials"), ("1, 2", "optimizer only"), ("2", "context only")],
)
def test_of_what_has_aged_it_says_what_is_left(ask: Any, root: Path, levels: str, said: str) -> None:
    left = tuple(map(int, levels.split(", ")))
    for path in (*root.glob("catalog.db*"), *root.glob("*/*/*/meta.json")):
        if path.name == "meta.json":
            manifest = generations.parse(path.read_bytes(), path.name)
            aged = replace(manifest, granularity=Granularity.ESSENTIALS, levels=left)
            path.write_bytes(manifests.render(aged))
        else:
            path.unlink()
    assert ask("ls", root).lines[1].split("KiB")[1].split("  ")[1].strip() == said
    assert json.loads(ask("ls", root, "--json").out)[0]["granularity"] == said.removesuffix(" only")
    assert len(json.loads(ask("ls", root, "--json", "--filter", f"granularity=={said.removesuffix(' only')}").out)) == 3


def test_tasks(ask: Any, root: Path, make: Any) -> None:
    make(root, "second", losses=(0.1,))
    answer = ask("ls", root)
    assert [row.split()[0] for row in answer.lines[1:-1]] == ["second", "byte-gpt", "byte-gpt", "byte-gpt"]
    assert answer.lines[-1].startswith("4 checkpoints of 2 tasks, ")
    assert len(ask("ls", root, "--task", "second").lines) == 3
    missing = ask("ls", root, "--task", "third")
    assert missing.code == 4
    assert "there is no task 'third'; there are: 'byte-gpt', 'second'" in missing.err


def test_hostile_names_are_printed_as_they_are(ask: Any, tmp_path: Path, make: Any) -> None:
    make(tmp_path / "root", HOSTILE, losses=(0.1,), reason=REASON)
    answer = ask("ls", tmp_path / "root")
    row = answer.lines[1]
    assert row.startswith(f"{HOSTILE}  ")
    assert row.endswith("  bad \\x1b[31m\\u202e[bold]reason\\n")
    listed = json.loads(ask("ls", tmp_path / "root", "--json").out)[0]
    assert (listed["task"], listed["reason"]) == (HOSTILE, REASON)
    shown = ask("show", tmp_path / "root", HOSTILE)
    assert f"  task    {HOSTILE} (attempt 1, save 2)" in shown.lines
    assert "  reason  bad \\x1b[31m\\u202e[bold]reason\\n" in shown.lines
    assert ask("verify", tmp_path / "root", f"{HOSTILE}@2").code == 0


def test_a_task_without_checkpoints(ask: Any, root: Path) -> None:
    for meta in root.glob("*/*/*/meta.json"):
        meta.unlink()
    answer = ask("ls", root)
    assert answer.code == 4
    assert answer.err == f"{root} has 1 task and no checkpoint yet\n"
    assert json.loads(ask("ls", root, "--json").out) == []
    assert ask("show", root).code == 4
    assert ask("verify", root).code == 4


@pytest.mark.parametrize("known", [True, False], ids=["in the catalog", "new"])
def test_a_manifest_that_cannot_be_read_is_a_warning(ask: Any, root: Path, known: bool) -> None:
    meta = folder(root, 4) / "meta.json"
    meta.write_bytes(b"garbage \x1b[31m")
    if not known:
        (root / "catalog.db").unlink()
    answer = ask("ls", root)
    assert answer.code == 0
    assert answer.err.startswith(f"warning: {meta.relative_to(root)}: ")
    assert "is not JSON" in answer.err
    assert [row.split()[1] for row in answer.lines[1:-1]] == (["6", "4", "2"] if known else ["6", "2"])
    assert ("1 damaged" in answer.lines[-1]) is known


def test_nothing_but_manifests_that_cannot_be_read(ask: Any, root: Path) -> None:
    for meta in root.glob("*/*/*/meta.json"):
        meta.write_bytes(b"")
    (root / "catalog.db").unlink()
    answer = ask("ls", root)
    assert (answer.code, answer.out) == (3, "")
    assert len(answer.err.splitlines()) == 3


@pytest.mark.parametrize("damage", [b"", b"no database", None], ids=["empty", "garbage", "a folder"])
def test_a_catalog_that_is_damaged_or_absent(ask: Any, root: Path, damage: bytes | None) -> None:
    for file in root.glob("catalog.db*"):
        file.unlink()
    if damage is None:
        (root / "catalog.db").mkdir()
    else:
        (root / "catalog.db").write_bytes(damage)
    answer = ask("ls", root)
    assert (answer.code, len(answer.lines), answer.err) == (0, 5, "")


def test_a_catalog_of_a_newer_version_is_left_as_it_is(ask: Any, root: Path) -> None:
    for file in root.glob("catalog.db*"):
        file.unlink()
    with contextlib.closing(sqlite3.connect(root / "catalog.db")) as newer:
        newer.executescript("create table schema (version integer primary key); insert into schema values (999);")
        newer.executescript("create table wonders (name text); insert into wonders values ('of the future');")
    answer = ask("ls", root)
    assert (answer.code, len(answer.lines), answer.err) == (0, 5, "")
    with contextlib.closing(sqlite3.connect(root / "catalog.db")) as newer:
        assert newer.execute("select name from wonders").fetchall() == [("of the future",)]
        assert newer.execute("select version from schema").fetchall() == [(999,)]


def test_filters_choose(ask: Any, root: Path) -> None:
    def steps(*texts: str) -> list[int]:
        words = [word for text in texts for word in ("--filter", text)]
        return [one["step"] for one in json.loads(ask("ls", root, *words, "--json").out)]

    assert steps("loss<0.6") == [6, 4]
    assert steps("loss<0.6", "step<6") == [4]
    assert steps("acc") == [4]
    assert steps("size>1KiB and not exact and health==clean") == [6, 4, 2]
    none = ask("ls", root, "--filter", "pinned")
    assert (none.code, none.err) == (4, "none of 3 checkpoints is what the filter asks for\n")
    assert json.loads(ask("ls", root, "--filter", "pinned", "--json").out) == []


def test_a_filter_that_is_wrong_is_shown(ask: Any, root: Path) -> None:
    answer = ask("ls", root, "--filter", "step>1", "--filter", "los<2")
    assert answer.code == 2
    assert answer.err.splitlines()[:3] == [
        "filter: no checkpoint here has 'los'; did you mean 'loss'? (metrics are acc, loss), at character 1",
        "  los<2",
        "  ^",
    ]
    told = json.loads(ask("ls", root, "--filter", "step>", "--json").out)["error"]
    assert (told["kind"], told["exit_code"]) == ("UsageError", 2)
    assert ask("ls", root / "nowhere", "--filter", "step>").err.startswith("filter: a value was expected")


def test_a_catalog_that_cannot_be_written(ask: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a root on a read-only mount: the file opens, and the first write is refused."""

    def refuse(*_: object, **__: object) -> None:
        raise StoreError("catalog.db", "attempt to write a readonly database")

    opened = open_sqlite(root / "catalog.db")
    monkeypatch.setattr(opened, "read_sizes", refuse)
    monkeypatch.setattr("mementum.cli.reading.open_catalog", lambda *_, **__: opened)
    assert len(ask("ls", root).lines) == 5


def test_listing_leaves_only_the_catalog(ask: Any, root: Path) -> None:
    for file in root.glob("catalog.db*"):
        file.unlink()
    before = files(root)
    assert ask("ls", root).code == 0
    assert {name for name in files(root).keys() - before.keys() if not name.startswith("catalog.db")} == set()


def test_two_homes_of_one_task(ask: Any, root: Path) -> None:
    (home,) = root.glob("*/*_*")
    shutil.copytree(home, root / "20200101" / home.name)
    listed = json.loads(ask("ls", root, "--json").out)
    assert len(listed) == 6
    assert {Path(one["path"]).parts[-3] for one in listed} == {"20200101", home.parent.name}


def test_wide_characters_are_counted_in_cells() -> None:
    file = io.StringIO()
    task = "訓練" * 15
    draw(Console(file=file, width=130, color_system=None), [(task, *ROW[1:])])
    assert task in file.getvalue()
    assert "…" not in file.getvalue()


ROW = (
    "a[red]b",
    "12400",
    "c1m8njm1s7",
    "2026-11-30 06:35:04",
    "21.6 KiB",
    "exact",
    "damaged",
    "a long [bold] reason " * 4,
)


def drawn(width: int, *, colour: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=colour, color_system="standard" if colour else None)
    draw(console, [ROW])
    return file.getvalue()


@pytest.mark.parametrize("width", [20, 60, 80, 100, 120, 250])
def test_no_width_cuts_a_cell(width: int) -> None:
    text = drawn(width)
    for cell in ROW[:-1]:
        assert cell in text
    assert "…" not in text
    assert text.count("[bold]") == 4


def test_a_wide_terminal_has_a_table_with_colours() -> None:
    text = drawn(160, colour=True)
    assert "\x1b[31mdamaged\x1b[0m" in text
    assert all(len(line) <= 160 for line in drawn(160).splitlines())
    assert drawn(160).splitlines()[1].split()[:3] == ["task", "step", "id"]


def test_ids_are_as_long_as_they_need_to_be() -> None:
    assert id_width(["c1m8njm1s7pbrq4xe", "c1m8njm1rj4g7zkdy"]) == 10
    assert id_width(["c1m8njm1s7pbrq4xe", "c1m8njm1s7pbzzzzz"]) == 13
    assert id_width(["c1m8njm1s7pbrq4xe", "c1m8njm1s7pbrq4xe"]) == 10
