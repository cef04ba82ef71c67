"""Checkpoints that were compressed after they had landed: every command sees one of each, also while it happens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import open_sqlite
from mementum.cli import examining, proving, reading
from mementum.clock import ManualClock
from mementum.records import Entry, Manifest
from mementum.recover.verify import read_manifest
from mementum.settling import settle
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

FIRST, SECOND = ("optimizer.blocks", "index-00000.json"), ("optimizer-2.blocks", "index-00000-2.json")


def objects() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(7)
    model = torch.nn.Linear(30, 40)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(root: Path, steps: int, **given: Any) -> dict[str, Any]:
    """A checkpoint every step; the optimizer's state at the end."""
    model, optimizer = objects()
    given = {"every_steps": 1, "codec": "raw", **given}
    with mementum.open_run(root, task="t", model=model, optimizer=optimizer, **given) as run:
        for _ in range(steps):
            model(torch.ones(1, 30)).pow(2).mean().backward()
            optimizer.step()
            run.record(loss=0.5)
            assert run.wait()
        return optimizer.state_dict()


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with two checkpoints that landed raw. Nobody changes it."""
    root = tmp_path_factory.mktemp("raw") / "root"
    train(root, 2)
    return root


@pytest.fixture
def root(raw: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(raw, tmp_path / "root"))


def home_of(root: Path) -> Path:
    (attempts,) = root.rglob("attempts")
    return attempts.parent


def settled(root: Path, step: int = 2) -> Manifest:
    """Compress one checkpoint, as a training does meanwhile."""
    store = LocalStore(PosixDisk(), str(home_of(root)))
    catalog = open_sqlite(None)
    folder = f"step_{step:010d}"
    manifest = read_manifest(store, folder)
    assert isinstance(manifest, Manifest)
    found = settle(
        Entry(manifest=manifest, folder=folder),
        home=str(home_of(root).relative_to(root)),
        store=store,
        catalog=catalog,
        codec="zstd:1",
        emit=lambda event: None,
        require_newest=lambda: None,
        clock=ManualClock(),
        pause=lambda: None,
    )
    assert isinstance(found, Manifest)
    catalog.close()
    return found


def test_every_command_sees_it_once_and_whole(root: Path, ask: Any) -> None:
    before = [one["id"] for one in json.loads(ask("ls", root, "--json").out)]
    after = settled(root)
    assert [one["id"] for one in json.loads(ask("ls", root, "--json").out)] == before
    shown = json.loads(ask("show", root, "t@2", "--json").out)
    assert (shown["generation"], shown["size"], shown["damage"]) == (2, after.size, [])
    assert {file["name"] for file in shown["files"]} >= set(SECOND)
    assert [part["name"] for part in shown["components"]] == ["model", "optimizer"]
    answer = ask("verify", root, "--deep", "--no-record")
    assert (answer.code, answer.lines[-1]) == (
        0,
        "2 checkpoints verified, 0 damaged (every byte was compared)",
    )
    assert ask("rebuild", root).code == 0
    assert [one["id"] for one in json.loads(ask("ls", root, "--json").out)] == before


def test_it_resumes_bit_for_bit(root: Path) -> None:
    settled(root)
    state = train(root, 0)
    anew = root.with_name("anew")
    expected = train(anew, 2)
    for name in ("step", "exp_avg", "exp_avg_sq"):
        for number in expected["state"]:
            assert torch.equal(state["state"][number][name], expected["state"][number][name])


def test_doctor_tells_what_a_settling_left(root: Path, diagnosed: Any) -> None:
    assert diagnosed(root)[0] == 0
    folder = home_of(root) / "step_0000000002"
    kept = {name: (folder / name).read_bytes() for name in (*FIRST, "meta.json")}
    settled(root)
    assert [one for one in diagnosed(root)[1] if one["kind"] == "leftovers"] == []
    for name, data in kept.items():
        (folder / name).write_bytes(data)
    (found,) = (one for one in diagnosed(root)[1] if one["kind"] == "leftovers")
    assert found["what"].startswith("3 files of saves or removals that did not end, in step_0000000002")
    train(root, 0)
    assert not {path.name for path in folder.iterdir()} & {*FIRST, "meta.json"}


@pytest.mark.parametrize("name", SECOND)
def test_damage_to_it_is_damage(root: Path, ask: Any, name: str) -> None:
    settled(root)
    path = home_of(root) / "step_0000000002" / name
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    answer = ask("verify", root, "--deep", "--no-record")
    assert answer.code != 0
    assert any(f"step_0000000002/{name}" in line for line in answer.lines)


def test_it_may_be_settled_while_it_is_verified(root: Path, ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its old files go away under the eyes of who reads them: that is no damage, and none is recorded."""
    real: Callable[..., Any] = proving.recover.verify
    calls: list[int] = []

    def verify(store: Any, folder: str, manifest: Manifest, *, deep: bool) -> Any:
        if folder == "step_0000000002":
            calls.append(manifest.generation)
            if len(calls) == 1:
                settled(root)
        return real(store, folder, manifest, deep=deep)

    monkeypatch.setattr(proving.recover, "verify", verify)
    answer = ask("verify", root, "--deep")
    assert (answer.code, calls) == (0, [1, 2])
    assert answer.lines[-1].startswith("2 checkpoints verified, 0 damaged")
    kinds = [json.loads(path.read_text())["kind"] for path in home_of(root).glob("facts/*.json")]
    assert kinds == ["verified", "verified"]


def test_it_may_be_settled_while_it_is_diagnosed(root: Path, ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = examining.examine

    def examine(store: Any, folder: str, manifest: Manifest) -> Any:
        if folder == "step_0000000002" and manifest.generation == 1:
            settled(root)
        return real(store, folder, manifest)

    monkeypatch.setattr(examining, "examine", examine)
    answer = ask("doctor", root, "--json")
    kinds = {one["kind"]: one["what"] for one in json.loads(answer.out)["findings"]}
    assert answer.code == 0
    assert "damaged" not in kinds
    assert kinds["resumes"].startswith("a start resumes from step 2")


def test_it_may_be_settled_while_the_root_is_read(root: Path, ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refreshed(catalog: Any, home: str, store: Any) -> Any:
        damage = refresh(catalog, home, store)
        settled(root)
        return damage

    monkeypatch.setattr(reading, "refresh", refreshed)
    shown = json.loads(ask("show", root, "t@2", "--json").out)
    assert (shown["generation"], shown["damage"], shown["damaged"]) == (2, [], None)
