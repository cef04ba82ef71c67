"""Each shortcut that would look right in every other test is planted in a copy of the product, then caught.

A shortcut is a few words of a source file and what stands in their place. The words must be there exactly once, so
that a change of the product makes its shortcut fail loudly here: say it anew in the words of today.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from planting import Planting

from mementum.records import record

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"
TIMEOUT_S = 300  # of one run of the check on a machine that does much else


@record
class Shortcut:
    """`changes` are pairs of (words, their replacement) in `file`; `seen` stands in what one of `checks` then says."""

    name: str
    file: str
    changes: tuple[tuple[str, str], ...]
    seen: str
    checks: tuple[str, ...]


LOCAL, REMOVE = "storage/local.py", "execute/remove.py"
SAVING, REWRITING = "saving.py", "rewriting.py"
SHORTCUTS = (
    Shortcut(
        name="no fsync",
        file=LOCAL,
        changes=(("file.fsync()\n            try:", "try:"),),
        seen="listed and damaged",
        checks=("one_save:at_rest:journaled",),
    ),
    Shortcut(
        name="an error of fsync is passed over",
        file=LOCAL,
        changes=(
            (
                "file.fsync()\n            try:",
                "with contextlib.suppress(OSError):\n                file.fsync()\n            try:",
            ),
        ),
        seen="listed and damaged",
        checks=("save_again:failing:posix",),
    ),
    Shortcut(
        name="folder not synced",
        file=LOCAL,
        changes=(("self._disk.fsync_dir(parent)", "pass"),),
        seen="acknowledged and lost",
        checks=("two_saves:journaled",),
    ),
    Shortcut(
        name="the name of a new folder not synced",
        file=LOCAL,
        changes=(
            (
                "        self._disk.fsync_dir(above)\n        self._durable.add(folder)",
                "        self._durable.add(folder)",
            ),
        ),
        seen="acknowledged and lost",
        checks=("two_saves:journaled",),
    ),
    Shortcut(
        name="manifest before data",
        file=SAVING,
        changes=(
            (
                "files = write_parts(snapshot, store, folder, stills=stills, pace=pace)",
                "from mementum.storage.local import LocalStore\n"
                "        from mementum.testing.simdisk import SimDisk\n"
                "        files = write_parts(snapshot, LocalStore(SimDisk(), 'elsewhere'), folder)",
            ),
            ("  # from here on it exists", "\n        write_parts(snapshot, store, folder)"),
        ),
        seen="listed and damaged",
        checks=("two_saves:posix",),
    ),
    Shortcut(
        name="data removed before the manifest",
        file="pruning.py",
        changes=(
            (
                "            return unlist(entry.manifest",
                "            drop(self._store, entry.folder, tuple(file.name for file in entry.manifest.files), ())\n"
                "            return unlist(entry.manifest",
            ),
        ),
        seen="listed and damaged",
        checks=("two_saves_keep_one:posix",),
    ),
    Shortcut(
        name="overwrite in place",
        file=LOCAL,
        changes=(
            ('temp = f"{path}.{os.urandom(4).hex()}{TEMP_SUFFIX}"', "temp = path"),
            ("self._disk.rename_new(temp, path)\n", "pass\n"),
        ),
        seen="listed and damaged",
        checks=("two_saves:posix",),
    ),
    Shortcut(
        name="digest of data not checked",
        file="format/blocks.py",
        changes=(("if digest(stored) != block.digest:", "if False:"),),
        seen="damage not noticed: step_0000000010/",
        checks=("rot",),
    ),
    Shortcut(
        name="digest of index and context not checked",
        file="recover/verify.py",
        changes=(("if manifests.digest(data) != file.digest:", "if False:"),),
        seen="damage not noticed: step_0000000010/context",
        checks=("rot",),
    ),
    Shortcut(
        name="the manifest's own digest not checked",
        file="format/manifest.py",
        changes=((" or digest(head + ZEROS.encode() + tail) != claimed", ""),),
        seen="damage not noticed: step_0000000010/meta.json",
        checks=("rot",),
    ),
    Shortcut(
        name="size not checked",
        file="recover/verify.py",
        changes=(("elif size != file.size:", "elif False:"),),
        seen="damage not noticed: step_0000000010/",
        checks=("shallow",),
    ),
    Shortcut(
        name="an unfinished file swept while in use",
        file=LOCAL,
        changes=(
            (
                "self._disk.unlink_unused(self._prefix + inside + name)",
                "self._disk.unlink(self._prefix + inside + name) is None",
            ),
        ),
        seen="a sweep took a file in use",
        checks=("a_sweep_beside_a_put",),
    ),
    Shortcut(
        name="a second writer overwrites",
        file=LOCAL,
        changes=(
            (
                "raise KeyTaken(key) from error",
                "self._disk.unlink(path)\n                self._disk.rename_new(temp, path)",
            ),
        ),
        seen="a second writer has overwritten",
        checks=("two_writers",),
    ),
    Shortcut(
        name="parts swept though a manifest names them",
        file=REMOVE,
        changes=(
            ("if any(_looks_like_a_manifest(name) or name.startswith(MARK) for name in names):", "if False:"),
            ("if any(_taken(store,", "if False and any(_taken(store,"),
        ),
        seen="acknowledged and lost",
        checks=("two_saves:posix",),
    ),
    Shortcut(
        name="parts swept before the removal of their manifest is durable",
        file=REMOVE,
        changes=(
            (
                "        for name in generations.possible(names):\n"
                '            store.delete(f"{folder}/{name}")\n'
                "    for key in keys:",
                "        pass\n    for key in keys:",
            ),
        ),
        seen="listed and damaged",
        checks=("keep_one:killed:sweep_and_save:posix",),
    ),
    Shortcut(
        name="removal not synced",
        file=LOCAL,
        changes=(
            (
                "self._disk.fsync_dir(folder)\n                self._remove_if_empty(folder)",
                "pass\n                self._remove_if_empty(folder)",
            ),
        ),
        seen="listed and damaged",
        checks=("two_saves_keep_one:posix",),
    ),
    Shortcut(
        name="retention keeps the oldest",
        file="decide/retain.py",
        changes=(
            ("key=lambda entry: entry.order, reverse=True", "key=lambda entry: entry.order"),
            (", **newest_of_their_kind(whole)}", "}"),
        ),
        seen="the newest checkpoint was removed",
        checks=("two_saves_keep_one:posix",),
    ),
    Shortcut(
        name="journal not synced",
        file=LOCAL,
        changes=(("file.fsync()\n            if path", "pass\n            if path"),),
        seen="acknowledged and lost: fact",
        checks=("a_journal:posix",),
    ),
    Shortcut(
        name="the name of a new journal not synced",
        file=LOCAL,
        changes=(("self._disk.fsync_dir(folder_of(path))\n", "pass\n"),),
        seen="acknowledged and lost: fact",
        checks=("a_journal:posix",),
    ),
    Shortcut(
        name="a failed save leaves its parts",
        file=SAVING,
        changes=(("        _discard(store, folder, require_newest)\n", ""),),
        seen="left after an error",
        checks=("an_error_leaves_nothing",),
    ),
    Shortcut(
        name="parts of a failed save removed before its manifest is durably gone",
        file=REMOVE,
        changes=(('    store.delete(f"{folder}/{manifests.NAME}")\n    for stat in', "    for stat in"),),
        seen="listed and damaged",
        checks=("save_again:failing:posix",),
    ),
    Shortcut(
        name="a catalog is believed by its folders",
        file="catalog/rebuild.py",
        changes=((" and _is_known(store, present[folder], known[folder])", ""),),
        seen="a catalog that was refreshed differs",
        checks=("a_rebuild_is_cut",),
    ),
    Shortcut(
        name="uncompressed parts removed before the compressed ones are named",
        file=REWRITING,
        changes=(
            (
                "                _commit(work, after, still)  # from here on the next generation holds\n",
                "                _remove_old(work, after, doing, emit=emit)\n"
                "                _commit(work, after, still)\n",
            ),
        ),
        seen="acknowledged and lost",
        checks=("one_settled:posix",),
    ),
    Shortcut(
        name="a generation is named before its index is there",
        file=REWRITING,
        changes=(
            ('        self.store.put(f"{self.folder}/{name}", [data])\n', ""),
            ("                _require_whole(work, after)\n", ""),
        ),
        seen="listed and damaged",
        checks=("one_settled:posix",),
    ),
    Shortcut(
        name="a sweep trusts a generation that is not durable",
        file=REMOVE,
        changes=(('        store.delete(f"{folder}/{generations.manifest_name(highest + 1)}")\n', ""),),
        seen="acknowledged and lost",
        checks=("settle_it:killed:sweep_and_save:posix",),
    ),
    Shortcut(
        name="a sweep takes the higher generation",
        file=REMOVE,
        changes=(("yield from standing[:-1]", "yield from standing[1:]"),),
        seen="left after a sweep",
        checks=("settle_it:killed:sweep_and_save:posix",),
    ),
    Shortcut(
        name="a sweep leaves what a settling left",
        file="pruning.py",
        changes=(("    clear_outdated(store, old)\n", ""),),
        seen="left after a sweep",
        checks=("settle_it:killed:sweep_and_save:posix",),
    ),
    Shortcut(
        name="a failed settling leaves its parts",
        file=REWRITING,
        changes=(("    except (GaveUp, MementumError):\n        _take_back(work)\n", "    except GaveUp:\n"),),
        seen="left after a settling that failed",
        checks=("a_failed_settling_leaves_nothing",),
    ),
    Shortcut(
        name="the catalog keeps an old generation",
        file="catalog/rebuild.py",
        changes=(
            (
                '    if key.rpartition("/")[2] != generations.manifest_name(known.generation):\n        return False\n',
                "",
            ),
        ),
        seen="a catalog that was refreshed differs",
        checks=("one_settled:posix",),
    ),
)


@pytest.fixture(scope="module")
def planting() -> Iterator[Planting]:
    with Planting() as server:
        yield server


def copied(folder: Path) -> Path:
    """The product with what Python has compiled of it: a copy keeps the times by which that is known to be up to
    date."""
    shutil.copytree(SOURCE, folder / "src")
    return folder / "src"


def planted(shortcut: Shortcut, source: Path) -> None:
    path = source / "mementum" / shortcut.file
    text = path.read_text(encoding="utf-8")
    for words, replacement in shortcut.changes:
        assert text.count(words) == 1, f"{shortcut.name}: {words!r} is {text.count(words)} times in {shortcut.file}"
        text = text.replace(words, replacement)
    compile(text, str(path), "exec")
    shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)  # by chance, time and size may be the same
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("shortcut", SHORTCUTS, ids=lambda shortcut: shortcut.name.replace(" ", "_"))
def test_a_shortcut_is_caught(shortcut: Shortcut, planting: Planting, tmp_path: Path) -> None:
    source = copied(tmp_path)
    planted(shortcut, source)
    code, said = planting.run(source, *shortcut.checks)
    assert code == 1, said
    assert "BROKEN" in said
    assert shortcut.seen in said


def test_the_copy_without_a_shortcut_passes(planting: Planting, tmp_path: Path) -> None:
    names = {name for shortcut in SHORTCUTS for name in shortcut.checks}
    code, said = planting.run(copied(tmp_path), *sorted(names))
    assert code == 0, said
    assert "every promise holds" in said


def test_another_source_is_refused(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, str(HERE / "crash_check.py"), "--source", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
