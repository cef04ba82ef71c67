"""`mementum place`: a copy on a tier is a checkpoint there, and comes back into a root that has lost it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import mementum
from mementum.errors import StoreError
from mementum.storage.local import LocalStore


def steps(ask: Any, root: object) -> list[int]:
    answer = ask("ls", root, "--json")
    return [one["step"] for one in json.loads(answer.out)]


def test_a_copy_is_a_checkpoint_of_a_root(ask: Any, root: Path, tmp_path: Path) -> None:
    nas = tmp_path / "nas"
    answer = json.loads(ask("place", root, "@4", "--to", nas, "--json").out)
    assert (answer["step"], answer["tier"], answer["url"], answer["sent"]) == (4, str(nas), str(nas), answer["size"])
    assert Path(answer["path"]).is_relative_to(nas)
    assert steps(ask, nas) == [4]
    assert ask("verify", nas, "--deep").code == 0
    assert [len(one["tiers"]) for one in json.loads(ask("ls", root, "--json").out)] == [0, 1, 0]
    table = ask("ls", root).lines
    assert table[0].split()[-2:] == ["tiers", "reason"]
    assert f"  {nas}  " in table[2]
    assert any(line.split()[:2] == ["tier", str(nas)] for line in ask("show", root, "@4").lines)
    assert steps(ask, root) == [6, 4, 2]
    again = ask("place", root, "@4", "--to", nas)
    assert (again.code, again.out.endswith(": it was there already\n")) == (0, True)
    assert [row.split()[1] for row in ask("ls", root, "--filter", f"tier=={nas}").lines[1:-1]] == ["4"]


def test_a_root_that_was_lost_comes_back(ask: Any, root: Path, tmp_path: Path) -> None:
    nas, new = tmp_path / "nas", tmp_path / "new"
    assert ask("pin", root, "@4", "--why", "x", "--by", "me").code == 0
    assert ask("place", root, "@4", "--to", nas).code == 0
    shutil.rmtree(root)
    new.mkdir()
    answer = ask("place", new, "@4", "--from", nas)
    assert (answer.code, answer.err) == (0, "")
    (one,) = json.loads(ask("ls", new, "--json").out)
    assert (one["step"], one["metrics"]["loss"], one["pinned_by"]) == (4, 0.2, ["me"])
    assert ask("verify", new, "--deep").code == 0
    assert ask("place", new, "@4", "--from", nas).out.endswith(": it was there already\n")


def test_an_s3_and_back(
    ask: Any, root: Path, s3_url: str, s3_options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"endpoint": "AWS_ENDPOINT_URL", "allow_http": "AWS_ALLOW_HTTP"}
    for name, value in s3_options.items():
        monkeypatch.setenv(names.get(name, f"AWS_{name.upper()}"), value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert ask("place", root, "@6", "--to", s3_url).code == 0
    assert steps(ask, s3_url) == [6]
    (tmp_path / "new").mkdir()
    assert ask("place", tmp_path / "new", "--from", s3_url).code == 0
    assert ask("verify", tmp_path / "new", "--deep").code == 0


def test_a_training_that_lives_is_not_disturbed(ask: Any, root: Path, tmp_path: Path) -> None:
    import torch

    assert ask("place", root, "@4", "--to", tmp_path / "nas").code == 0
    with mementum.open_run(root, task="byte-gpt", model=torch.nn.Linear(30, 40), resume="never"):
        answer = ask("place", root, "@4", "--from", tmp_path / "nas")
        assert (answer.code, "is being trained" in answer.err) == (1, True)
        assert ask("place", root, "@2", "--to", tmp_path / "nas").code == 0  # it only reads here
    assert steps(ask, tmp_path / "nas") == [4, 2]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "one of the two"),
        (["@4", "--to", "a", "--from", "b"], 2, "one of the two"),
        (["@5", "--to", "a"], 4, "has no checkpoint at step 5"),
        (["@4", "--to", "gopher://x"], 2, "is no place for checkpoints"),
        (["@4", "--to", "redis://:secret@127.0.0.1:1/0"], 1, "127.0.0.1"),
        (["@4", "--from", "nowhere"], 2, "there is no folder"),
    ],
)
def test_bad_words(
    ask: Any, root: Path, words: list[str], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = ask("place", root, *words)
    assert (answer.code, said in answer.err) == (code, True), answer.err
    assert "secret" not in answer.err
    assert steps(ask, root) == [6, 4, 2]


def test_a_tier_in_the_root_is_refused(ask: Any, root: Path) -> None:
    answer = ask("place", root, "@4", "--to", root / "copies")
    assert (answer.code, "is lost with it" in answer.err) == (2, True)


def test_a_damaged_one_is_not_placed(ask: Any, root: Path, tmp_path: Path) -> None:
    (path,) = root.glob("*/*/step_*4/model.safetensors")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    answer = ask("place", root, "@4", "--to", tmp_path / "nas")
    assert (answer.code, "model.safetensors" in answer.err) == (3, True)
    assert not list((tmp_path / "nas").rglob("meta*.json"))


def saves(root: Path, count: int, resume: str = "auto") -> None:
    with mementum.open_run(root, task="t", state={"s": {}}, every_steps=1, resume=resume) as run:
        for _ in range(count):
            run.record()
            run.wait()


def test_a_place_that_another_root_uses_is_refused(ask: Any, tmp_path: Path) -> None:
    ours, theirs, nas = tmp_path / "ours", tmp_path / "theirs", tmp_path / "nas"
    saves(ours, 2)
    saves(theirs, 4)
    assert ask("place", ours, "--to", nas).code == 0
    answer = ask("place", theirs, "--to", nas)
    assert (answer.code, "attempt 1 of task 't'" in answer.err, "is not of this root" in answer.err) == (2, True, True)
    answer = ask("place", theirs, "@2", "--from", nas)
    assert (answer.code, "is not of this root" in answer.err) == (2, True)
    assert steps(ask, nas) == [2]
    assert steps(ask, theirs) == [4, 3, 2, 1]
    saves(ours, 1)
    assert ask("place", ours, "--to", nas).code == 0  # a later attempt of the same root
    shutil.copytree(ours, tmp_path / "old")
    saves(ours, 1)
    assert ask("place", ours, "--to", nas).code == 0
    answer = ask("place", tmp_path / "old", "--to", nas)  # which does not know who has the place by now
    assert (answer.code, "attempt 3 of task 't'" in answer.err) == (2, True)


def test_a_fetch_takes_no_task_from_anybody(ask: Any, tmp_path: Path) -> None:
    ours, laptop, nas = tmp_path / "ours", tmp_path / "laptop", tmp_path / "nas"
    saves(ours, 1)
    assert ask("place", ours, "--to", nas).code == 0
    laptop.mkdir()
    assert ask("place", laptop, "--from", nas).code == 0
    (home,) = laptop.glob("*/t_*")
    assert sorted(path.name for path in (home / "attempts").iterdir()) == ["0001.json"]
    claim = json.loads((home / "attempts" / "0001.json").read_text())
    killed = {**claim, "attempt": 2, "purpose": "fetch"}  # what a fetch leaves that was killed
    (home / "attempts" / "0002.json").write_text(json.dumps(killed))
    assert ask("place", laptop, "--to", nas).code == 0
    (there,) = nas.glob("*/t_*")
    assert sorted(path.name for path in (there / "attempts").iterdir()) == ["0001.json"]


@pytest.mark.parametrize("words", [["--to", ""], ["--from", ""]])
def test_an_empty_place_is_none(
    ask: Any, root: Path, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    answer = ask("place", root, "@4", *words)
    assert (answer.code, "the place is empty" in answer.err) == (2, True)
    assert list((tmp_path / "here").iterdir()) == []


def test_a_root_that_is_read_only_by_now_can_be_copied(
    ask: Any, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nas, new = tmp_path / "nas", tmp_path / "new"
    new.mkdir()
    real = LocalStore.put

    def put(store: LocalStore, key: str, chunks: Any) -> Any:
        if Path(store.folder).is_relative_to(root):
            raise StoreError(key, f"{key}: the file system is read-only")
        return real(store, key, chunks)

    monkeypatch.setattr(LocalStore, "put", put)
    answer = ask("place", root, "@4", "--to", nas)
    assert (answer.code, answer.out.count(" sent\n")) == (0, 1)
    assert answer.err.startswith("that it is there is not recorded: facts/")
    assert answer.err.endswith(".json: the file system is read-only\n")
    assert list(root.glob("*/*/facts/*")) == []
    assert (steps(ask, nas), steps(ask, root)) == ([4], [6, 4, 2])
    answer = ask("place", root, "@4", "--to", nas)
    assert (answer.code, answer.out.endswith(": it was there already\n")) == (0, True)
    assert ask("place", new, "@4", "--from", nas).code == 0
    assert (steps(ask, new), ask("verify", new, "--deep").code) == ([4], 0)


def test_a_copy_that_broke_off_can_be_found_already(
    ask: Any, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempts go there first: without them nobody finds the task."""
    nas = tmp_path / "nas"

    def refuse(*_: object, **__: object) -> None:
        raise StoreError("x", "it broke off")

    with monkeypatch.context() as broken:
        broken.setattr("mementum.cli.moving.from_outside", lambda *_: None)
        broken.setattr("mementum.cli.moving.copy", refuse)
        assert ask("place", root, "@4", "--to", nas).code == 1
    assert [path.name for path in nas.glob("*/*/attempts/*")] == ["0001.json"]
    assert ask("place", root, "@4", "--to", nas).code == 0
    assert steps(ask, nas) == [4]
