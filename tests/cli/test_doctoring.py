"""`mementum doctor`: each thing that keeps a run from coming back is named, and nothing in the root is touched."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mementum import plugins
from mementum.errors import NotReadableHere
from mementum.execute import origin
from mementum.format import codec as codecs
from mementum.format.fields import FORMAT
from mementum.format.manifest import ZEROS, digest

ROUNDS = 30  # of garbage; each asks for all that doctor can say


def of_kind(findings: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [one for one in findings if one["kind"] == kind]
    return found


def kinds(findings: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["severity"], one["kind"]) for one in findings]


def home(root: Path) -> Path:
    (found,) = root.glob("*/*_??????")
    return found


def folder(root: Path, step: int) -> Path:
    return home(root) / f"step_{step:010d}"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def rewrite(path: Path, old: str, new: str) -> None:
    """Change a manifest so that it still proves itself."""
    blank = re.sub(r'"digest": "\w+"', f'"digest": "{ZEROS}"', path.read_text().replace(old, new)).encode()
    path.write_bytes(blank.replace(ZEROS.encode(), digest(blank).encode()))


WELL = [("ok", "free"), ("ok", "resumes"), ("ok", "catalog")]


@pytest.mark.parametrize("words", [(), ("byte-gpt",), ("--deep",)])
def test_a_root_that_is_well(diagnosed: Any, root: Path, words: tuple[str, ...]) -> None:
    code, findings = diagnosed(root, *words)
    assert (code, kinds(findings)) == (0, WELL)
    assert findings[1]["what"].startswith("a start resumes from step 6 (checkpoint c")


def test_the_newest_is_damaged(diagnosed: Any, root: Path) -> None:
    (folder(root, 6) / "optimizer.blocks").unlink()
    code, findings = diagnosed(root)
    assert (code, kinds(findings)[1:3]) == (3, [("ok", "resumes"), ("problem", "damaged")])
    assert findings[1]["what"].startswith("a start resumes from step 4 ")
    assert "step_0000000006/optimizer.blocks: it is missing; a start passes it over" in findings[2]["what"]
    assert re.fullmatch(r"mementum verify \S+/root byte-gpt@c\w{16} --deep", findings[2]["next"])


def test_a_flipped_bit_is_seen_deep_only(diagnosed: Any, root: Path) -> None:
    flip(folder(root, 6) / "model.safetensors")
    assert diagnosed(root)[0] == 0
    code, findings = diagnosed(root, "--deep")
    assert code == 3
    assert "does not match its digest" in of_kind(findings, "damaged")["what"]


def test_nothing_is_whole(diagnosed: Any, root: Path) -> None:
    for step in (2, 4, 6):
        (folder(root, step) / "index-00000.json").write_bytes(b"{}")
    code, findings = diagnosed(root)
    assert code == 3  # before 4: the damage is why there is nothing
    nothing = of_kind(findings, "nothing")
    assert nothing["what"] == "none of its 3 full checkpoints is whole, and a start refuses to begin anew"
    assert 'resume="never"' in nothing["next"]


def test_a_task_without_a_checkpoint(diagnosed: Any, root: Path) -> None:
    for path in home(root).glob("step_*"):
        shutil.rmtree(path)
    code, findings = diagnosed(root)
    assert (code, of_kind(findings, "nothing")["task"]) == (4, "byte-gpt")
    assert of_kind(findings, "catalog")["severity"] == "note"
    assert "has 3 that are gone" in of_kind(findings, "catalog")["what"]


def test_a_folder_that_is_no_root(diagnosed: Any, root: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert kinds(diagnosed(tmp_path / "empty")[1]) == [("problem", "nothing")]
    code, findings = diagnosed(home(root))
    assert (code, findings[0]["next"]) == (4, f"mementum doctor {root}")


def test_words_that_are_wrong(ask: Any, root: Path) -> None:
    assert ask("doctor", root / "none").code == 2
    assert ask("doctor", home(root) / "attempts" / "0001.json").code == 2
    answer = ask("doctor", root, "other")
    assert answer.code == 4
    assert "there is no task 'other'; there are: 'byte-gpt'" in answer.err


def test_an_unreadable_manifest(diagnosed: Any, root: Path) -> None:
    flip(folder(root, 6) / "meta.json")
    code, findings = diagnosed(root)
    assert code == 3
    found = of_kind(findings, "unreadable")
    assert "step_0000000006/meta.json" in found["what"]
    assert found["next"].startswith("move ")
    assert "step 4 " in of_kind(findings, "resumes")["what"]


def test_a_newer_format_stops_every_start(diagnosed: Any, root: Path) -> None:
    rewrite(folder(root, 6) / "meta.json", '"format": 1,', f'"format": {FORMAT + 1},')
    code, findings = diagnosed(root)
    found = of_kind(findings, "newer")
    assert (code, found["next"]) == (1, "pip install --upgrade mementum")
    assert "every start stops there" in found["what"]


def test_a_codec_that_is_not_here(diagnosed: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {"raw": "mementum.format.codec:Raw"}
    codecs.parse.cache_clear()
    monkeypatch.setattr(plugins, "OURS", {"mementum.codecs": ours})
    code, findings = diagnosed(root)
    monkeypatch.undo()
    codecs.parse.cache_clear()
    assert code == 1
    first = findings[1]
    assert (first["severity"], first["kind"]) == ("problem", "codec")
    assert first["what"].startswith("a start stops at step 6 ")
    assert "which is not here" in first["what"]
    assert kinds(findings)[2:4] == [("warning", "codec")] * 2


def test_a_class_of_the_program(diagnosed: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise NotReadableHere("$.a: train:Stage is not among the imported modules", next_command="import train")

    monkeypatch.setattr("mementum.cli.examining.examine", gone)
    code, findings = diagnosed(root)
    assert code == 0
    assert kinds(findings)[1:4] == [("warning", "class")] * 3
    assert "if the program has its classes: $.a: train:Stage" in findings[1]["what"]


@pytest.mark.parametrize("deep", [False, True])
def test_damage_that_was_recorded(diagnosed: Any, ask: Any, root: Path, deep: bool) -> None:
    path = folder(root, 6) / "model.safetensors"
    flip(path)
    assert ask("verify", root, "--deep").code == 3
    flip(path)
    code, findings = diagnosed(root, *["--deep"] * deep)
    assert "step 4 " in of_kind(findings, "resumes")["what"]
    found = of_kind(findings, "recorded" if deep else "damaged")
    assert (code, found["severity"]) == ((0, "note") if deep else (3, "problem"))
    assert "does not match its digest" in found["what"]


def test_newer_ones_that_no_start_takes(diagnosed: Any, root: Path) -> None:
    rewrite(folder(root, 6) / "meta.json", '"granularity": 0', '"granularity": 1')
    rewrite(folder(root, 4) / "meta.json", '"health": "clean"', '"health": "suspect"')
    code, findings = diagnosed(root)
    assert code == 0
    assert "step 2 " in of_kind(findings, "resumes")["what"]
    said = [one["what"] for one in findings if one["kind"] == "newer-unused"]
    assert "it holds weights only" in said[0]
    assert "its state is suspect" in said[1]


def test_other_versions(diagnosed: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = origin.versions()
    monkeypatch.setattr(origin, "versions", lambda: {**there, "numpy": "0.1"})
    code, findings = diagnosed(root)
    assert (code, of_kind(findings, "versions")["severity"]) == (0, "note")
    assert "numpy was " in of_kind(findings, "versions")["what"]


HOSTILE = (
    b'{"kind":"\\ud800","time":"x"}\n',
    b'{"kind":"metrics","time":"x","step":1000000000000000000000000,"values":{"a":1}}\n',
    b'{"kind":"damaged","time":"x","checkpoint":"c","values":[1]}\n',
    b'{"task":"\\ud800\\u0000","host":7,"pid":-1}',
    b"[" * 50_000,
    b"",
)


def spoil(root: Path, rng: random.Random) -> None:
    """Do something to a root that no program of ours does."""
    paths = sorted(root.rglob("*")) or [root]
    path = rng.choice(paths)
    kind = rng.randrange(7)
    if path.is_dir() and not path.is_symlink():
        if kind < 2 and path != root:
            shutil.rmtree(path)
        else:
            (path / f"new_{rng.randrange(99)}.json").write_bytes(rng.randbytes(20))
        return
    if kind == 0 or path.is_symlink() or not path.is_file():  # a pipe would wait for somebody to read what we write
        path.unlink()
    elif kind == 1:
        path.write_bytes(rng.randbytes(rng.randrange(3000)))
    elif kind == 2:
        path.write_bytes(rng.choice(HOSTILE))
    elif kind == 3:
        data = bytearray(path.read_bytes() or b"\0")
        for _ in range(rng.randrange(1, 20)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
    elif kind == 4:
        path.unlink()
        path.mkdir()
    elif kind == 5:
        path.unlink()
        path.symlink_to(rng.choice([path, root, rng.choice(paths), Path("/nowhere")]))
    else:
        path.unlink()
        os.mkfifo(path)


def damaged_roots(trained: Path, folder: Path, rng: random.Random) -> Iterator[Path]:
    for number in range(ROUNDS):
        root = Path(shutil.copytree(trained, folder / str(number)))
        for _ in range(rng.randrange(1, 6)):
            spoil(root, rng)
        yield root
        shutil.rmtree(root)


def test_no_garbage_is_too_much(ask: Any, listing: Any, trained: Path, tmp_path: Path, rng: random.Random) -> None:
    codes = set()
    for root in damaged_roots(trained, tmp_path, rng):
        before = listing(root)
        answer = ask("doctor", root, "--deep")
        assert (listing(root), answer.err) == (before, "")
        assert answer.code in (0, 1, 3, 4)
        codes.add(answer.code)
    assert codes >= {0, 3, 4}
