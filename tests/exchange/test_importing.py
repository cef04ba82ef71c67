"""Imports: recognised by content, bit for bit what the file had, and nothing in it is run."""

from __future__ import annotations

import json
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import mementum
from mementum.exchange.from_torch import whole_number
from mementum.exchange.trees import optimizer_class
from mementum.live.tree import same


class Planted:
    """Makes a file when it is unpickled by a reader that runs what it reads."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def equal(left: torch.nn.Module, right: torch.nn.Module) -> bool:
    pairs = zip(left.state_dict().items(), right.state_dict().items(), strict=True)
    return all(mine[0] == theirs[0] and same(mine[1], theirs[1]) for mine, theirs in pairs)


def took(ask: Any, source: Path, root: Path, *more: str) -> dict[str, Any]:
    answer = ask("import", source, "--to", root, "--task", "t", "--json", *more)
    assert answer.code == 0, answer.err
    told: dict[str, Any] = json.loads(answer.out)
    return told


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_a_state_dict(parts: Any, ask: Any, tmp_path: Path, prefix: str) -> None:
    made, other = parts(), parts(seed=4)
    made.train(3)
    state = made.model.state_dict()
    wrapped = OrderedDict((prefix + key, value) for key, value in state.items())
    wrapped._metadata = {prefix + key: value for key, value in state._metadata.items()}  # type: ignore[attr-defined]
    torch.save(wrapped, tmp_path / "weights.pth")
    told = took(ask, tmp_path / "weights.pth", tmp_path / "root")
    assert (told["what"], told["step"], told["granularity"]) == ("a state dict of torch", None, "weights")
    assert told["components"] == [{"name": "model", "kind": "module"}]
    assert [prefix in note for note in told["notes"]] == [True] * bool(prefix)
    mementum.load(tmp_path / "root", {"model": other.model})
    assert equal(other.model, made.model)


def test_our_own_export_comes_back(trained: Any, parts: Any, ask: Any, tmp_path: Path) -> None:
    root, made = trained
    assert ask("export", root, "--to", tmp_path / "out", "--as", "torch").code == 0
    told = took(ask, tmp_path / "out/checkpoint.pt", tmp_path / "root")
    assert [part["kind"] for part in told["components"]] == ["module", "optimizer", "stateful"]
    assert (told["step"], told["epoch"], told["left_out"]) == (5, 0, [])
    other = parts(seed=4)
    names = {"scheduler": other.scheduler, "model": other.model}
    mementum.load(tmp_path / "root", names)
    mementum.load(tmp_path / "root", {"optimizer": other.optimizer})
    assert equal(other.model, made.model)
    assert other.scheduler.state_dict() == made.scheduler.state_dict()
    assert ask("export", tmp_path / "root", "--to", tmp_path / "again", "--as", "torch").code == 0
    first, second = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("out", "again"))
    assert first["optimizer"]["param_groups"] == second["optimizer"]["param_groups"]
    assert all(
        same(first["optimizer"]["state"][number][key], value)
        for number, values in second["optimizer"]["state"].items()
        for key, value in values.items()
    )


def test_places_become_names_by_renaming(trained: Any, parts: Any, ask: Any, tmp_path: Path) -> None:
    root, made = trained
    assert ask("export", root, "--to", tmp_path / "out", "--as", "torch").code == 0
    took(ask, tmp_path / "out/checkpoint.pt", tmp_path / "root")
    other = parts(seed=4)
    of = {id(parameter): name for name, parameter in other.model.named_parameters()}
    rename = {
        f"#{number}.{place}": f"model.{of[id(parameter)]}"
        for number, group in enumerate(other.optimizer.param_groups)
        for place, parameter in enumerate(group["params"])
    }
    names = {"model": other.model, "optimizer": other.optimizer, "scheduler": other.scheduler}
    mementum.load(tmp_path / "root", names, rename=rename)
    reference = parts()
    for _ in range(5):
        reference.train(1)
    assert equal(other.model, made.model)
    assert other.train(3, seed=9) == reference.train(3, seed=9)


def test_names_of_parameters_where_the_file_has_them(ask: Any, tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.save({"net": model.state_dict(), "opt": optimizer.state_dict(), "iteration": 9}, tmp_path / "a.pt")
    told = took(ask, tmp_path / "a.pt", tmp_path / "root")
    assert (told["step"], told["notes"]) == (9, [])
    other = torch.nn.Linear(3, 2)
    fresh = torch.optim.SGD([other.bias, other.weight], lr=1.0, momentum=0.9)
    mementum.load(tmp_path / "root", {"net": other, "opt": fresh})
    assert torch.equal(fresh.state[other.weight]["momentum_buffer"], optimizer.state[model.weight]["momentum_buffer"])
    assert fresh.param_groups[0]["lr"] == 0.1


def test_a_checkpoint_of_lightning(parts: Any, ask: Any, tmp_path: Path) -> None:
    made, other = parts(), parts(seed=4)
    made.train(4)
    content = {
        "pytorch-lightning_version": "2.5.0",
        "epoch": 3,
        "global_step": 40,
        "state_dict": {f"model.{key}": value for key, value in made.model.state_dict().items()},
        "optimizer_states": [made.optimizer.state_dict()],
        "lr_schedulers": [made.scheduler.state_dict()],
        "callbacks": {"ModelCheckpoint": {"best": 0.1}},
        "loops": {},
    }
    torch.save(content, tmp_path / "last.ckpt")
    told = took(ask, tmp_path / "last.ckpt", tmp_path / "root")
    assert (told["what"], told["step"], told["epoch"]) == ("a checkpoint of Lightning", 40, 3)
    assert told["left_out"] == ["callbacks: it is Lightning's own", "loops: it is Lightning's own"]
    mementum.load(tmp_path / "root", {"model": other.model, "scheduler": other.scheduler})
    mementum.load(tmp_path / "root", {"optimizer": other.optimizer})
    assert equal(other.model, made.model)
    assert other.train(3, seed=9) == made.train(3, seed=9)


def test_a_safetensors_file(ask: Any, tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 2, dtype=torch.bfloat16), "b": torch.arange(4), "none": torch.empty(0, 2)}
    save_file(tensors, tmp_path / "any.name")
    told = took(ask, tmp_path / "any.name", tmp_path / "root")
    assert told["what"] == "a safetensors file"
    assert ask("export", tmp_path / "root", "--to", tmp_path / "out", "--as", "torch").code == 0
    back = torch.load(tmp_path / "out/checkpoint.pt", weights_only=True)["model"]
    assert back.keys() == tensors.keys()
    assert all(same(back[name], tensor) for name, tensor in tensors.items())


def test_parts_that_no_checkpoint_can_hold_are_left_out(ask: Any, tmp_path: Path) -> None:
    content = {
        "model_state_dict": {"w": torch.ones(2)},
        "optimizer_state_dict": {"state": {}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        "step": torch.tensor(12),
        "epoch": -1,
        "best loss": 0.5,
        7: "x",
        "loss": 0.25,
    }
    torch.save(content, tmp_path / "a.pt")
    told = took(ask, tmp_path / "a.pt", tmp_path / "root")
    assert told["step"] == 12
    assert [part["name"] for part in told["components"]] == ["model", "optimizer", "epoch", "loss"]
    assert told["left_out"] == ["'best loss': it can be no component's name", "7: its name is no text"]
    assert "say it with --optimizer CLASS" in told["notes"][0]
    took(ask, tmp_path / "a.pt", tmp_path / "root", "--optimizer", "Lion")
    shown = json.loads(ask("show", tmp_path / "root", "--json").out)
    assert shown["user"]["imported"] == {"from": "a.pt", "what": "a file of torch.save"}


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("where", ["a.pt", "checkpoint-1/pytorch_model.bin", "checkpoint-1/optimizer.pt"])
def test_code_in_a_file_does_not_run(ask: Any, tmp_path: Path, where: str, legacy: bool) -> None:
    planted = tmp_path / "it-ran"
    content = {"w": torch.ones(2), "x": Planted(planted)}
    path = tmp_path / where
    path.parent.mkdir(exist_ok=True)
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    if where.endswith("optimizer.pt"):
        save_file({"w": torch.ones(2)}, path.with_name("model.safetensors"))
        told = took(ask, path.parent, tmp_path / "root")
        assert [part["name"] for part in told["components"]] == ["model"]
        assert "optimizer.pt" in told["left_out"][0]
        assert "mkdir" in told["left_out"][0]
    else:
        source = path if where == "a.pt" else path.parent
        answer = ask("import", source, "--to", tmp_path / "root", "--task", "t", "--json")
        assert answer.code == 3
        error = json.loads(answer.out)["error"]
        assert (error["kind"], error["kept"]) == ("UnknownFormat", "the file; nothing of it was run")
        assert "was refused: " in error["message"]
        assert "posix.mkdir" in error["message"]
        assert "weights_only" not in answer.err
        assert not (tmp_path / "root").exists()
    assert not planted.exists()
    with pytest.raises(pickle.UnpicklingError, match="mkdir"):
        torch.load(path, weights_only=True)
    torch.load(path, weights_only=False)  # the plant bites where it is let
    assert planted.is_dir()


def test_a_bare_pickle_is_refused(ask: Any, tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"x": Planted(tmp_path / "it-ran")}))
    answer = ask("import", tmp_path / "a.pkl", "--to", tmp_path / "root", "--task", "t")
    assert answer.code == 3
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("keep", [4, 100, 0.5, 0.99])
@pytest.mark.parametrize("kind", ["torch", "legacy", "safetensors"])
def test_files_that_are_cut_short(ask: Any, tmp_path: Path, kind: str, keep: float) -> None:
    path = tmp_path / "a"
    tensors = {"w": torch.arange(300.0), "b": torch.ones(3)}
    if kind == "safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path, _use_new_zipfile_serialization=kind == "torch")
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if keep < 1 else int(keep)])
    answer = ask("import", path, "--to", tmp_path / "root", "--task", "t")
    assert answer.code == (2 if kind == "safetensors" and keep == 4 else 3), answer.err
    assert not (tmp_path / "root").exists()


def test_bytes_that_are_flipped_end_in_one_error(ask: Any, tmp_path: Path, rng: Any) -> None:
    path = tmp_path / "a.pt"
    torch.save({"w": torch.arange(30.0), "o": {"state": {}, "param_groups": []}}, path)
    data = path.read_bytes()
    for _ in range(60):
        broken = bytearray(data)
        for _ in range(rng.randint(1, 8)):
            broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        answer = ask("import", path, "--to", tmp_path / "root", "--task", "t")
        assert answer.code in (0, 2, 3)


def test_wrong_sources(trained: Any, ask: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("hello, this is no checkpoint")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp/.metadata").touch()
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"step": 1, "names": {"a": 1}}, tmp_path / "no-model.pt")
    expected = {
        tmp_path / "gone": "there is no file or folder",
        tmp_path / "empty": "is no file that can be imported",
        tmp_path / "text": "is no file that can be imported",
        tmp_path / "folder": "is no folder that can be imported",
        tmp_path / "dcp": "the metadata of torch.distributed.checkpoint is a pickle",
        trained[0]: "it is a root of mementum already",
        tmp_path / "list.pt": "the file holds a list, no state dict",
        tmp_path / "no-model.pt": "a file of torch.save has no model",
        "s3://bucket/a.pt": "is no path",
    }
    for source, told in expected.items():
        answer = ask("import", source, "--to", tmp_path / "root", "--task", "t")
        assert (answer.code, told in answer.err, "next:" in answer.err) == (2, True, True), answer.err
    torch.save({"w": torch.ones(1)}, tmp_path / "good.pt")
    for words in (("--to", tmp_path / "root"), ("--to", tmp_path / "root", "--task", ""), ("--task", "t")):
        assert ask("import", tmp_path / "good.pt", *words).code == 2
    assert ask("import", tmp_path / "good.pt", "--to", tmp_path / "text", "--task", "t").code == 1
    assert not (tmp_path / "root").exists()


def test_an_import_takes_nothing_away(ask: Any, tmp_path: Path) -> None:
    for number in range(4):
        torch.save({"model": {"w": torch.full((2,), float(number))}, "step": number}, tmp_path / f"{number}.pt")
        took(ask, tmp_path / f"{number}.pt", tmp_path / "root")
    listed = json.loads(ask("ls", tmp_path / "root", "--json").out)
    assert [one["step"] for one in listed] == [3, 2, 1, 0]
    assert [one["reason"] for one in listed] == [f"imported from {number}.pt" for number in (3, 2, 1, 0)]


def test_steps_and_classes() -> None:
    assert [whole_number(value) for value in (3, 1.75, torch.tensor(4), -1, True, 1 << 62, "3", None)] == [
        3,
        1,
        4,
        None,
        None,
        None,
        None,
        None,
    ]
    parameter = torch.nn.Parameter(torch.ones(2))
    for cls in (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad):
        assert optimizer_class(cls([parameter], lr=0.1).state_dict()["param_groups"]) == cls.__name__
    for cls in (torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax, torch.optim.Adadelta):
        assert optimizer_class(cls([parameter], lr=0.1).state_dict()["param_groups"]) == "unknown"
    old = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False, "params": [0]}
    assert optimizer_class([old]) == "unknown"  # Adam and AdamW of old versions have the same settings
