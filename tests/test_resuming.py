"""Resuming: which checkpoint a run comes back from, in which order objects are put back, and what of it is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from mementum import resuming
from mementum.errors import NothingToResume, StateMismatch
from mementum.events import PassedOver
from mementum.records import Damage, Manifest
from mementum.recover.load import Loaded
from mementum.recover.verify import read_manifest
from mementum.resuming import versions_that_differ
from trips import Box, Told, bits


def save(root: Path, count: int, **wishes: Any) -> list[Path]:
    """Checkpoints of `count` steps, whose weight is the step; their folders, oldest first."""
    model = torch.nn.Linear(1, 1)
    with mementum.open_run(root, task="t", model=model, every_steps=1, **wishes) as run:
        for _ in range(count):
            with torch.no_grad():
                model.weight.fill_(run.step + 1)
            run.record()
            run.wait()
    return sorted(path.parent for path in root.rglob("meta.json"))


def flip(path: Path, place: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("file", ["model.safetensors", "index-00000.json", "context-00000.json", "meta.json"])
@pytest.mark.parametrize("fate", ["flipped", "gone", "short"])
def test_damage_is_passed_over_and_told(tmp_path: Path, file: str, fate: str) -> None:
    folders = save(tmp_path, 3)
    for folder in folders[1:]:
        if fate == "flipped":
            flip(folder / file, -1 if file == "model.safetensors" else 40)
        elif fate == "short":
            (folder / file).write_bytes((folder / file).read_bytes()[:-1])
        else:
            (folder / file).unlink()
    told, model = Told(), torch.nn.Linear(1, 1)
    with mementum.open_run(tmp_path, task="t", model=model, on_event=told, resume="must") as run:
        assert (run.resumed.step, model.weight.item()) == (1, 1.0)
        if (file, fate) != ("meta.json", "gone"):  # without a manifest it is no checkpoint
            assert len(told.of(PassedOver)) >= 2
        run.record()
        run.save()
        run.wait()
        assert run._opened.catalog.entries(run._opened.home)[-1].manifest.step == 2
    with mementum.open_run(tmp_path, task="t", model=model) as run:
        assert run.step == 2  # what was saved after the damage, not what is damaged


def test_nothing_whole_is_not_begun_anew_silently(tmp_path: Path) -> None:
    for folder in save(tmp_path, 2):
        flip(folder / "model.safetensors")
    model = torch.nn.Linear(1, 1)
    before = bits(model.state_dict())
    for _ in range(2):
        with pytest.raises(NothingToResume, match="there are 2 checkpoints and none is whole"):
            mementum.open_run(tmp_path, task="t", model=model)
    assert bits(model.state_dict()) == before
    with mementum.open_run(tmp_path, task="t", model=model, resume="never") as run:
        run.record()
    with mementum.open_run(tmp_path, task="t", model=model) as run:
        assert (run.step, run.resumed.passed_over) == (1, ())


def test_a_disk_that_came_back_resumes_after_all(tmp_path: Path) -> None:
    folders = save(tmp_path, 2)
    away = [folder / "model.safetensors" for folder in folders]
    for path in away:
        path.rename(path.with_suffix(".away"))
    with pytest.raises(NothingToResume):
        mementum.open_run(tmp_path, task="t", model=torch.nn.Linear(1, 1))
    for path in away:
        path.with_suffix(".away").rename(path)
    with mementum.open_run(tmp_path, task="t", model=torch.nn.Linear(1, 1)) as run:
        assert run.step == 2


def test_what_may_refuse_is_put_back_first(tmp_path: Path) -> None:
    order: list[str] = []

    class Noting(Box):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            order.append("object")
            super().load_state_dict(state)

    class Adam(torch.optim.Adam):
        def load_state_dict(self, state_dict: Any) -> None:
            order.append("optimizer")
            super().load_state_dict(state_dict)

    class Linear(torch.nn.Linear):
        def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
            order.append("model")
            return super().load_state_dict(*args, **kwargs)

    model = Linear(1, 1)
    things = {"model": model, "optimizer": Adam(model.parameters()), "state": {"x": Noting(a=1)}}
    with mementum.open_run(tmp_path, task="t", **things) as run:
        run.record()
    order.clear()
    with mementum.open_run(tmp_path, task="t", **things):
        assert order == ["object", "optimizer", "model"]


def test_objects_that_came_or_went_are_named(tmp_path: Path) -> None:
    with mementum.open_run(tmp_path, task="t", state={"a": {}, "b": Box(), "c": []}) as run:
        run.record()
    with pytest.raises(StateMismatch) as refused:
        mementum.open_run(tmp_path, task="t", state={"b": {}, "c": [], "d": {}, "e": torch.nn.Linear(1, 1)})
    assert sorted(refused.value.differences) == [
        "a was stored and is not given",
        "b was stored as stateful and is container",
        "d is given and was not stored",
        "e is given and was not stored",
    ]
    assert "nothing was loaded" in str(refused.value)


def test_the_generators_are_put_back_even_without_a_loop(tmp_path: Path) -> None:
    torch.manual_seed(4)
    with mementum.open_run(tmp_path, task="t", state={"s": {}}) as run:
        run.record()
    expected = torch.rand(4)
    torch.manual_seed(5)
    with mementum.open_run(tmp_path, task="t", state={"s": {}}):
        assert torch.equal(torch.rand(4), expected)


def test_versions_that_differ_are_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions_that_differ(
        {"torch": "1", "numpy": "2", "gone": "3"}, {"torch": "1", "numpy": "4", "new": "5"}
    ) == (
        "gone was 3, is absent",
        "new was absent, is 5",
        "numpy was 2, is 4",
    )
    with mementum.open_run(tmp_path, task="t", state={"s": {}}) as run:
        run.record()
    with mementum.open_run(tmp_path, task="t", state={"s": {}}) as run:
        assert run.resumed.differs == ()
    monkeypatch.setattr("mementum.execute.origin.versions", lambda: {"torch": "0.1"})
    with mementum.open_run(tmp_path, task="t", state={"s": {}}) as run:
        assert any(line.startswith("torch was ") and line.endswith(", is 0.1") for line in run.resumed.differs)


def test_what_was_read_is_not_held_by_the_live_objects(tmp_path: Path) -> None:
    """Each tensor has memory of its own size: one does not keep the whole file in memory."""
    held: dict[str, Any] = {"large": torch.ones(100_000), "small": torch.ones(3)}
    with mementum.open_run(tmp_path, task="t", state={"held": held}) as run:
        run.record()
    fresh: dict[str, Any] = {}
    with mementum.open_run(tmp_path, task="t", state={"held": fresh}):
        pass
    assert fresh["small"].untyped_storage().nbytes() == 12
    fresh["large"].add_(1)  # ours to write to
    with mementum.open_run(tmp_path, task="t", state={"held": fresh}):
        assert fresh["large"].sum().item() == 100_000


def test_a_checkpoint_that_is_compressed_while_it_is_read_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = resuming.load
    seen: list[int] = []

    def settled_meanwhile(store: Any, folder: str, manifest: Any) -> Any:
        seen.append(manifest.generation)
        if manifest.generation == 1:
            return (Damage(key=folder, what="optimizer.blocks is missing"),)
        return real(store, folder, replace(manifest, generation=1))

    with mementum.open_run(tmp_path, task="t", state={"s": {"a": 1}}) as run:
        run.save()
        run.wait()
        entry = run._opened.catalog.entries(run._opened.home)[0]
        store = run._opened.store
        first = read_manifest(store, entry.folder)
        assert isinstance(first, Manifest)
        told = iter([first, replace(first, generation=2)])
        monkeypatch.setattr(resuming, "load", settled_meanwhile)
        monkeypatch.setattr(resuming, "read_manifest", lambda store, folder: next(told))
        assert isinstance(resuming.read_entry(entry, store), Loaded)
    assert seen == [1, 2]
