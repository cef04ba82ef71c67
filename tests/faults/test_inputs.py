"""Roots, files and names of somebody else's making: what is not ours stays, and what is wrong is said."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_runs import FILES, TASK, damage_of, folders_of, home_of, live, things, tiny_run
from typer.testing import CliRunner

import mementum
from mementum.catalog.tasks import SLUG_MAX, folder_name
from mementum.cli.main import app
from mementum.errors import NothingToResume, StoreError, UsageError
from mementum.events import Committed, PassedOver, Swept
from mementum.opening import TASK_MAX
from trips import Told, files

NAMES_MAX = 1000  # more than any two names with the same slug and hash take to be found by chance


def ask(*words: object) -> int:
    result = CliRunner().invoke(app, [str(word) for word in words], prog_name="mementum")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code


# Roots.


def test_a_missing_root_is_no_run_to_resume_and_nothing_is_made_by_looking(tmp_path: Path) -> None:
    for words in (["ls"], ["show"], ["verify"]):
        assert ask(*words, tmp_path / "none") == 2
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NothingToResume):
        mementum.open_run(tmp_path / "none", task=TASK, resume="must", **things(1))
    tiny_run(tmp_path / "none")
    assert len(folders_of(tmp_path / "none")) == 1


FOREIGN = ("20261130/model/weights.bin", "catalog.sqlite", "step_0000000001/meta.json", "20261130/x_abcdef/step_1/meta")


def test_what_lies_in_a_foreign_root_stays_as_it_is(tmp_path: Path) -> None:
    for name in FOREIGN:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert ask("ls", tmp_path) == 4
    assert files(tmp_path) == sorted(FOREIGN)
    tiny_run(tmp_path, 2, keep_last=1)
    assert ask("ls", tmp_path) == ask("verify", tmp_path, "--deep") == 0
    assert all((tmp_path / name).read_text() == name for name in FOREIGN)


@pytest.mark.parametrize("kind", ["file", "link to a file", "dangling link", "pipe"])
def test_a_root_that_is_no_folder_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "mine").write_text("mine")
    root = tmp_path / "root"
    match kind:
        case "file":
            root.write_text("mine")
        case "link to a file":
            root.symlink_to(tmp_path / "mine")
        case "dangling link":
            root.symlink_to(tmp_path / "mine" / "below")
        case "pipe":
            os.mkfifo(root)
    before = files(tmp_path)
    with pytest.raises(StoreError):
        mementum.open_run(root, task=TASK, **things(1))
    assert ask("ls", root) == 2
    assert files(tmp_path) == before


# Files of a checkpoint.


def link(path: Path, outside: Path) -> None:
    path.rename(outside / path.name)
    path.symlink_to(outside / path.name)


def dangle(path: Path, outside: Path) -> None:
    path.unlink()
    path.symlink_to(outside / "nothing")


def folder(path: Path, outside: Path) -> None:
    path.unlink()
    path.mkdir()


def full_folder(path: Path, outside: Path) -> None:
    data = path.read_bytes()
    folder(path, outside)
    (path / path.name).write_bytes(data)


def pipe(path: Path, outside: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def cut(path: Path, outside: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def swap(path: Path, outside: Path) -> None:
    other = path.parent.parent / "step_0000000001" / path.name
    data = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(data)


def of_another_task(path: Path, outside: Path) -> None:
    tiny_run(outside / "root", 2, seed=4, task="another")
    path.write_bytes((folders_of(outside / "root")[1] / path.name).read_bytes())


def of_another_run(path: Path, outside: Path) -> None:
    tiny_run(outside / "root", 2, seed=4)
    path.write_bytes((folders_of(outside / "root")[1] / path.name).read_bytes())


HARMS = (link, dangle, folder, full_folder, pipe, cut, swap, of_another_task, of_another_run)


def names(root: Path) -> set[str]:
    """All that has a name under a root, links and folders too, but for what every start writes."""
    found = {str(path.relative_to(root)) for path in root.rglob("*")}
    return {name for name in found if not any(word in name for word in ("/attempts", "/journal", "catalog.db"))}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_a_file_that_became_something_else_is_not_used_and_nothing_of_it_is_swept(
    fast_path: Path, name: str, harm: Callable[[Path, Path], None]
) -> None:
    root, outside = fast_path / "root", fast_path / "outside"
    outside.mkdir()
    tiny_run(root, 2)
    harm(folders_of(root)[1] / name, outside)
    before, beside = names(root), names(outside)
    expected = 0 if harm is swap else 1
    told, given = Told(), things(8)
    fresh = live(given)
    try:
        run = mementum.open_run(root, task=TASK, on_event=told, **given)
    except NothingToResume:
        assert harm is swap
        assert live(given) == fresh
    else:
        assert (run.resumed.step if run.resumed else 0) == expected
        run.close()
    passed = [f"{event.id} {event.what}" for event in told.of(PassedOver)]
    assert any(name in what for what in passed) or (name == "meta.json" and passed)  # a right one of other files
    assert told.of(Swept) == []
    assert before <= names(root)
    assert beside == names(outside)
    assert ask("verify", root, "--deep") == 3


@pytest.mark.parametrize("harm", [dangle, folder, pipe], ids=lambda harm: harm.__name__)
def test_parts_beside_a_manifest_that_is_no_file_are_never_orphans(
    fast_path: Path, harm: Callable[[Path, Path], None]
) -> None:
    """It is the only checkpoint: no start begins anew without a word, and none takes anything away."""
    tiny_run(fast_path / "root")
    (only,) = folders_of(fast_path / "root")
    harm(only / "meta.json", fast_path)
    for _ in range(2):
        with pytest.raises(NothingToResume, match=r"meta\.json: a link or a folder stands in its place"):
            mementum.open_run(fast_path / "root", task=TASK, **things(1))
    assert sorted(path.name for path in only.iterdir()) == sorted(FILES)
    told = tiny_run(fast_path / "root", resume="never")
    assert [event.step for event in told.of(Committed)] == [1]
    assert sorted(path.name for path in only.iterdir()) == sorted(FILES)
    assert damage_of(only.parent / f"{only.name}-2") == ()


def test_a_home_or_a_day_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    tiny_run(tmp_path / "theirs")
    home = home_of(tmp_path / "theirs")
    (tmp_path / "root" / home.parent.name).mkdir(parents=True)
    (tmp_path / "root" / home.parent.name / home.name).symlink_to(home)
    (tmp_path / "another").mkdir()
    (tmp_path / "another" / home.parent.name).symlink_to(home.parent)
    before = files(tmp_path / "theirs")
    for root in ("root", "another"):
        with pytest.raises(StoreError) as caught:
            mementum.open_run(tmp_path / root, task=TASK, **things(1))
        assert "links are not followed" in str(caught.value)
        assert ask("ls", tmp_path / root) == 4
    assert files(tmp_path / "theirs") == before


# Names of tasks.

HOSTILE = (
    *(
        "..",
        ".",
        "../../x",
        "/etc/passwd",
        "a/../../b",
        "-rf",
        "--help",
        "~",
        "~root",
        "$HOME",
        "a\\..\\b",
        "CON",
        "nul",
    ),
    *("größe", unicodedata.normalize("NFD", "größe"), "模型", "🙂", "a b", "a-b", "a/b", "A-B", " ", "é" * 400),
    *("x" * TASK_MAX, "x" * (TASK_MAX - 1), "%s{0}`id`;", "a:b@c", "step_0000000001", "20261130", "*", "?"),
)


def test_tasks_of_any_name_have_each_their_own_folder_inside_the_root(fast_path: Path) -> None:
    root = fast_path / "root"
    for number, task in enumerate(HOSTILE, start=1):
        with mementum.open_run(root, task=task, state={"s": {}}) as run:
            assert run.resumed is None, task
            run.record(step=number)
    homes = [path for path in root.glob("*/*") if path.is_dir()]
    assert len(homes) == len(HOSTILE)
    assert {path.name for path in fast_path.iterdir()} == {"root"}
    assert all(len(home.name) <= SLUG_MAX + 7 and home.name.isascii() for home in homes)
    for number, task in enumerate(HOSTILE, start=1):
        with mementum.open_run(root, task=task, state={"s": {}}, resume="must") as run:
            assert run.step == number
    assert ask("ls", root) == ask("verify", root, "--deep") == 0


@pytest.mark.parametrize("task", ["", "x" * (TASK_MAX + 1), "a\0b", "a\nb", "\x1b[2J", "\u202egpj", "\ud800", 3, None])
def test_names_that_no_task_can_have_are_refused(tmp_path: Path, task: str) -> None:
    with pytest.raises(UsageError):
        mementum.open_run(tmp_path / "root", task=task, state={"s": {}})
    assert list(tmp_path.iterdir()) == []


def test_slugs_that_collide_have_different_folders() -> None:
    assert len({folder_name(f"a{mark}b") for mark in "-/ :_@+*"}) == len("-/ :_@+*")
    long = "x" * SLUG_MAX
    assert len({folder_name(f"{long}{number}") for number in range(NAMES_MAX)}) == NAMES_MAX
