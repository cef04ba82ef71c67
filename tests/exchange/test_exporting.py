"""Exports: what other programs load is bit for bit what was saved, and a folder is there whole or not at all."""

from __future__ import annotations

import json
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import mementum
from mementum.exchange import to_torch
from mementum.exchange.exporting import export
from mementum.exchange.trees import optimizer_state, why_not_plain
from mementum.storage.disk import PosixDisk


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(*pair) for pair in zip(left, right, strict=True))
    return bool(left == right)


def test_safetensors_is_the_file_as_it_lies(trained: Any, ask: Any, tmp_path: Path) -> None:
    root, made = trained
    answer = ask("export", root, "--to", tmp_path / "out", "--as", "safetensors", "--json")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    assert (told["step"], told["files"], told["left_out"]) == (5, ["context.json", "model.safetensors"], [])
    (original,) = root.glob("*/*/step_*/model.safetensors")
    assert (tmp_path / "out/model.safetensors").read_bytes() == original.read_bytes()
    state = made.model.state_dict()
    del state["tied.weight"]
    assert same(dict(load_file(tmp_path / "out/model.safetensors")), dict(state))
    page = json.loads((tmp_path / "out/context.json").read_text())
    assert (page["step"], page["components"]["scheduler"]["state"]["last_epoch"]) == (5, 5)
    assert page["components"]["optimizer"]["state"]["groups"][1]["weight_decay"] == 0.0


def test_torch_loads_it_and_trains_on(trained: Any, parts: Any, ask: Any, tmp_path: Path) -> None:
    root, made = trained
    assert ask("restore", root, "net", "--to", tmp_path / "out", "--as", "torch").code == 0
    held = torch.load(tmp_path / "out/checkpoint.pt", weights_only=True)
    assert (held["step"], held["epoch"]) == (5, 0)
    assert same(held["optimizer"], made.optimizer.state_dict())
    assert same(dict(held["model"]), dict(made.model.state_dict()))
    assert held["model"]._metadata["norm"] == {"version": 2}
    assert held["model"]["tied.weight"].data_ptr() == held["model"]["inner.weight"].data_ptr()
    ours, reference = parts(seed=8), parts()
    ours.model.load_state_dict(held["model"])
    ours.optimizer.load_state_dict(held["optimizer"])
    ours.scheduler.load_state_dict(held["scheduler"])
    for _ in range(5):
        reference.train(1)
    assert ours.train(4, seed=9) == reference.train(4, seed=9)
    assert same(ours.optimizer.state_dict(), reference.optimizer.state_dict())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp_loads_it(trained: Any, parts: Any, ask: Any, tmp_path: Path) -> None:
    root, made = trained
    assert ask("export", root, "@5", "--to", tmp_path / "out", "--as", "dcp").code == 0
    other = parts(seed=8)
    other.train(1)
    model, optimizer = get_state_dict(other.model, other.optimizer)
    into: dict[str, Any] = {"model": model, "optimizer": optimizer, "step": 0}
    dcp.load(into, checkpoint_id=tmp_path / "out", no_dist=True)
    set_state_dict(other.model, other.optimizer, model_state_dict=into["model"], optim_state_dict=into["optimizer"])
    assert into["step"] == 5
    assert same(dict(other.model.state_dict()), dict(made.model.state_dict()))
    assert same(other.optimizer.state_dict(), made.optimizer.state_dict())


def test_one_model_of_several(ask: Any, tmp_path: Path) -> None:
    models = {"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(3, 3)}
    mementum.save(tmp_path / "root", models)
    assert ask("export", tmp_path / "root", "--to", tmp_path / "all", "--as", "safetensors").code == 0
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == [
        "a.safetensors",
        "b.safetensors",
        "context.json",
    ]
    words = ("export", tmp_path / "root", "--to", tmp_path / "one", "--as", "torch", "--model", "b")
    assert ask(*words).code == 0
    assert torch.load(tmp_path / "one/checkpoint.pt", weights_only=True).keys() == {"b", "step", "epoch"}
    answer = ask("export", tmp_path / "root", "--to", tmp_path / "none", "--as", "hf")
    assert (answer.code, "choose one: --model NAME" in answer.err) == (2, True)
    answer = ask("export", tmp_path / "root", "--to", tmp_path / "none", "--as", "dcp", "--model", "c")
    assert (answer.code, "has no model 'c'; it has: a, b" in answer.err) == (2, True)
    assert not (tmp_path / "none").exists()


def test_what_other_programs_could_not_read_is_left_out(ask: Any, tmp_path: Path) -> None:
    state = {"model": torch.nn.Linear(2, 2), "seen": {"a", "b"}, "flags": [True, None, (1, 2.5)], "note": "text"}
    mementum.save(tmp_path / "root", state)
    for form in ("torch", "dcp"):
        answer = ask("export", tmp_path / "root", "--to", tmp_path / form, "--as", form)
        assert answer.code == 0
        assert "left out: seen: seen is a builtins.set, which other programs could not read" in answer.out
    held = torch.load(tmp_path / "torch/checkpoint.pt", weights_only=True)
    assert (held["flags"], held["note"], "seen" in held) == ([True, None, (1, 2.5)], "text", False)
    assert json.loads((tmp_path / "torch/context.json").read_text())["components"]["seen"]["kind"] == "container"


def test_positions_follow_the_model_and_doubt_is_told() -> None:
    tree = {
        "class": "SGD",
        "groups": [{"lr": 0.1, "params": ["m.a", "m.b", "m.c"]}, {"lr": 0.2, "params": ["#1.0", "#1.2", "m.d"]}],
        "state": {"m.c": {"x": 3}, "#1.0": {"x": 4}, "m.d": {"x": 5}},
        "other": {},
        "extra": {},
    }
    made = optimizer_state(tree, ["m.d", "m.c", "m.b", "m.a"])
    assert made.order == (("m.c", "m.b", "m.a"), ("#1.0", "m.d", "#1.2"))
    assert made.packed["param_groups"] == [{"lr": 0.1, "params": [0, 1, 2]}, {"lr": 0.2, "params": [3, 4, 5]}]
    assert made.packed["state"] == {0: {"x": 3}, 3: {"x": 4}, 4: {"x": 5}}
    assert made.doubt is None
    assert optimizer_state({**tree, "state": OrderedDict({"m.d": {}, "m.c": {}})}, ["m.c", "m.d"]).doubt is not None


def test_leaves_that_are_not_plain_are_named() -> None:
    assert why_not_plain("s", {"a": [1, {"b": (torch.ones(2), None, 2.5, "x", {}, [])}]}) is None
    assert why_not_plain("s", {"a": [1, {"b": {3}}]}) == "s.a[1].b is a builtins.set"
    sparse = torch.eye(2).to_sparse()
    assert why_not_plain("s", {"a": sparse}) == "s.a is not a dense tensor"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--as", "zip"), 2, "there is no form 'zip'"),
        (("--as", "torch", "--config", "c"), 2, "a configuration is for the form hf"),
        (("--as", "hf"), 2, "no configuration for transformers"),
        (("--as", "hf", "--config", "missing"), 2, "there is no configuration missing"),
        (("@7", "--as", "torch"), 4, "no checkpoint at step 7"),
        (("other", "--as", "torch"), 4, "there is no task 'other'"),
        (("@@", "--as", "torch"), 2, "is not an address"),
        ((), 2, "Missing option '--as'"),
    ],
)
def test_wrong_words(trained: Any, ask: Any, tmp_path: Path, words: tuple[str, ...], code: int, told: str) -> None:
    answer = ask("export", trained[0], "--to", tmp_path / "out", *words)
    assert (answer.code, told in answer.err) == (code, True), answer.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", ["safetensors", "torch", "dcp"])
def test_nothing_is_overwritten(trained: Any, ask: Any, tmp_path: Path, form: str) -> None:
    root, _ = trained
    words = ("export", root, "--as", form, "--to")
    full, file, empty, link = (tmp_path / name for name in ("full", "file", "empty", "link"))
    for folder in (full, empty):
        folder.mkdir()
    (full / "mine").write_text("mine")
    file.write_text("mine")
    link.symlink_to(empty)
    for place in (full, file, link):
        answer = ask(*words, place)
        assert (answer.code, "nothing is ever overwritten" in answer.err) == (2, True)
    assert (full / "mine").read_text() == file.read_text() == "mine"
    assert ask(*words, empty).code == 0
    assert (empty / "context.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "full", "link"]


@pytest.mark.parametrize(("form", "name"), [("safetensors", "model.safetensors"), ("torch", "optimizer.blocks")])
def test_damage_is_found_on_the_way(trained: Any, ask: Any, tmp_path: Path, form: str, name: str) -> None:
    root = Path(shutil.copytree(trained[0], tmp_path / "root"))
    (file,) = root.glob(f"*/*/step_*/{name}")
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    answer = ask("export", root, "--to", tmp_path / "out", "--as", form, "--json")
    assert answer.code == 3
    assert json.loads(answer.out)["error"]["kind"] == "CheckpointDamaged"
    assert "nothing was exported" in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


class Killed(BaseException):
    """Stands for the death of the process."""


class MortalDisk(PosixDisk):
    """A disk whose process dies at a given call that changes something, and does nothing afterwards."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def _live(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def create(self, path: str) -> Any:
        self._live()
        return super().create(path)

    def rename_new(self, old: str, new: str) -> None:
        self._live()
        super().rename_new(old, new)

    def rmdir(self, folder: str) -> None:
        self._live()
        super().rmdir(folder)

    def unlink(self, path: str) -> None:
        self._live()
        super().unlink(path)

    def mkdir(self, folder: str) -> None:
        self._live()
        super().mkdir(folder)

    def fsync_dir(self, folder: str) -> None:
        self._live()
        super().fsync_dir(folder)


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_a_kill_leaves_nothing_half_under_the_final_name(trained: Any, tmp_path: Path, form: str) -> None:
    from mementum.cli.reading import address_in, find, look
    from mementum.storage.local import LocalStore

    contents = look(str(trained[0]))
    held = find(contents, address_in(contents, None))
    store = LocalStore(PosixDisk(), f"{trained[0]}/{held.home}")
    wholes = []
    for calls in range(100):
        out = tmp_path / str(calls) / "out"
        out.mkdir(parents=True)
        try:
            export(held.entry, store, to=str(out), form=form, disk=MortalDisk(calls))
        except Killed:
            pass
        else:
            wholes.append(calls)
        found = sorted(path.name for path in out.iterdir()) if out.exists() else []
        whole = ["context.json", "model.safetensors" if form == "safetensors" else to_torch.NAME]
        assert found in ([], sorted(whole)), calls
        if wholes:
            break
    assert wholes[0] > 5


def test_a_folder_without_tasks(ask: Any, tmp_path: Path) -> None:
    answer = ask("export", tmp_path, "--to", tmp_path / "out", "--as", "torch")
    assert (answer.code, "holds no tasks" in answer.err) == (4, True)
    answer = ask("export", tmp_path / "gone", "--to", tmp_path / "out", "--as", "torch")
    assert (answer.code, "there is no folder" in answer.err) == (2, True)
    mementum.save(tmp_path / "root", {"x": 1})
    answer = ask("export", tmp_path / "root", "--to", tmp_path / "out", "--as", "safetensors")
    assert (answer.code, "holds no model; it holds: x" in answer.err) == (2, True)
