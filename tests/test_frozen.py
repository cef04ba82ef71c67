"""Frozen weights are written once: adapters on a base, through PEFT, and what happens when the base does change."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peft
import pytest
import safetensors.torch
import torch
import transformers
from typer.testing import CliRunner

import mementum
from deaths import die, hold_disk, steps_left
from mementum.cli.main import app
from mementum.events import Committed, Cost, Failed, SaveSkipped
from mementum.execute import structure
from mementum.records import Manifest
from mementum.recover.verify import read_manifest, verify
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from trips import Told, bits

# PEFT asks for what transformers has given another name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

TASK = "lora"
BASE = "base_model.model.model.embed_tokens.weight"
CONFIG = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A base of 100 kB is worth a file of its own."""
    monkeypatch.setattr(structure, "FROZEN_MIN", 4096)


class Adapted:
    """A small language model with adapters of rank 8 on q and v; the same for the same seed."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        base = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))
        wish = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
        self.model: Any = peft.get_peft_model(base, wish)
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-2)
        self.losses: list[float] = []

    @property
    def base(self) -> torch.nn.Parameter:
        return self.model.get_parameter(BASE)

    def step(self) -> None:
        words = torch.randint(64, (2, 8))
        self.optimizer.zero_grad()
        loss = self.model(input_ids=words, labels=words).loss
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def state(self) -> dict[str, object]:
        return bits({"model": dict(self.model.state_dict()), "optimizer": self.optimizer.state_dict()})


def open_run(root: Path, made: Adapted, **wishes: Any) -> mementum.Run:
    wishes = {"every_steps": 1, "keep_last": None, **wishes}
    return mementum.open_run(root, task=TASK, model=made.model, optimizer=made.optimizer, **wishes)


def train(run: mementum.Run, made: Adapted, steps: int) -> None:
    for _ in range(steps):
        made.step()
        run.record()
        assert run.wait()


def folders(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.rglob("meta.json"))


def frozen_files(root: Path) -> list[Path]:
    return [folder / "model.frozen.safetensors" for folder in folders(root)]


def base_in(folder: Path) -> torch.Tensor:
    """The base weight as a checkpoint has it, in whichever of its files."""
    for file in folder.glob("*.safetensors"):
        held = safetensors.torch.load_file(file)
        if BASE in held:
            return held[BASE]
    raise AssertionError(f"no {BASE} in {folder}")


def written(told: Sequence[Any]) -> list[int]:
    return [event.written for event in told if isinstance(event, Cost)]


def export(root: Path, form: str, to: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(root), f"{TASK}@latest", "--as", form, "--to", str(to)])
    assert done.exit_code == 0, done.output


def test_from_the_second_save_on_the_base_is_linked(tmp_path: Path) -> None:
    made, told = Adapted(), Told()
    with open_run(tmp_path, made, on_event=told) as run:
        train(run, made, 4)
    files = frozen_files(tmp_path)
    assert len(files) == 4
    assert {file.stat().st_ino for file in files} == {files[0].stat().st_ino}
    sizes = [event.size for event in told.of(Committed)]
    whole, *others = written(told)
    assert whole == sizes[0]
    assert [size - part for size, part in zip(sizes[1:], others, strict=True)] == [files[0].stat().st_size] * 3
    assert files[0].stat().st_size > 4 * made.base.nbytes  # nearly all of the model is in it
    assert told.of(Failed) == told.of(SaveSkipped) == []


@pytest.mark.parametrize("through_data", [False, True])
def test_a_base_weight_changed_by_hand_is_noticed_and_written(tmp_path: Path, through_data: bool) -> None:
    made, told = Adapted(), Told()
    before = made.base.detach().clone()
    with open_run(tmp_path, made, on_event=told) as run:
        train(run, made, 2)
        with torch.no_grad():
            (made.base.data if through_data else made.base)[5, 7] += 1.0
        train(run, made, 2)
    first, second, third, fourth = folders(tmp_path)
    for folder in (first, second):
        assert torch.equal(base_in(folder), before)
    for folder in (third, fourth):
        assert torch.equal(base_in(folder), made.base)
    assert not torch.equal(made.base, before)
    files = frozen_files(tmp_path)
    assert files[0].stat().st_ino == files[1].stat().st_ino != files[2].stat().st_ino
    assert [event.step for event in told.of(Committed)] == [1, 2, 3, 4]
    fresh = Adapted()
    with open_run(tmp_path, fresh, resume="must") as run:
        assert fresh.state() == made.state()


def test_a_base_that_keeps_changing_is_copied_like_everything_else(tmp_path: Path) -> None:
    """By code that the capture cannot see; each checkpoint has the value of its own step."""
    made, told = Adapted(), Told()
    values: list[torch.Tensor] = []
    with open_run(tmp_path, made, on_event=told) as run:
        for _ in range(6):
            made.base.data[0] += 1.0
            train(run, made, 1)
            values.append(made.base.detach().clone())
    found = {json.loads((folder / "meta.json").read_text())["step"]: base_in(folder) for folder in folders(tmp_path)}
    assert [torch.equal(found[step], values[step - 1]) for step in sorted(found)] == [True] * len(found)
    assert sorted(found) == [event.step for event in told.of(Committed)] == [1, 2, 3, 4, 5, 6]
    inodes = {(folder / "model.frozen.safetensors").stat().st_ino for folder in folders(tmp_path)[1:]}
    assert len(inodes) == 1  # of the rest, which stands still


def test_a_change_while_it_is_written_is_skipped_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, told = Adapted(), Told()
    put, spoil = LocalStore.put, [True]

    def change_too(store: LocalStore, key: str, chunks: Any) -> Any:
        if "frozen" in key and spoil:
            spoil.clear()
            with torch.no_grad():
                made.base.add_(1.0)
        return put(store, key, chunks)

    monkeypatch.setattr(LocalStore, "put", change_too)
    with open_run(tmp_path, made, on_event=told) as run:
        train(run, made, 3)
    assert [event.step for event in told.of(SaveSkipped)] == [1]
    assert "seemed frozen, and was changed while it was saved" in told.of(SaveSkipped)[0].reason
    assert [event.step for event in told.of(Committed)] == [2, 3]
    assert all(torch.equal(base_in(folder), made.base) for folder in folders(tmp_path))


def test_retention_removes_the_checkpoint_that_wrote_the_base(tmp_path: Path) -> None:
    made = Adapted()
    with open_run(tmp_path, made, keep_last=1) as run:
        train(run, made, 5)
    (folder,) = folders(tmp_path)
    assert folder.name == "step_0000000005"
    assert os.stat(folder / "model.frozen.safetensors").st_nlink == 1
    fresh = Adapted()
    with open_run(tmp_path, fresh, resume="must") as run:
        assert run.resumed.step == 5
        assert fresh.state() == made.state()


def test_a_resume_goes_on_bit_for_bit_and_does_not_write_the_base_again(tmp_path: Path) -> None:
    straight = Adapted()
    with open_run(tmp_path / "straight", straight) as run:
        train(run, straight, 6)
    torch.manual_seed(99)
    cut = Adapted()
    with open_run(tmp_path / "cut", cut) as run:
        train(run, cut, 3)
    again, told = Adapted(), Told()
    torch.manual_seed(100)  # the generators come back too: dropout and the words are drawn from them
    with open_run(tmp_path / "cut", again, resume="must", on_event=told) as run:
        train(run, again, 3)
    assert straight.losses == cut.losses + again.losses
    assert again.state() == straight.state()
    inodes = [file.stat().st_ino for file in frozen_files(tmp_path / "cut")]
    assert len(set(inodes[:3])) == len(set(inodes[3:])) == 1


def test_on_a_disk_without_hard_links_the_first_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStore, "link", lambda store, old, new: False)
    made, told = Adapted(), Told()
    with open_run(tmp_path, made, on_event=told) as run:
        train(run, made, 3)
    first, *later = folders(tmp_path)
    (file,) = tmp_path.glob("*/*/*/model.frozen.safetensors")
    assert file.parent == first
    store = LocalStore(PosixDisk(), str(first.parent))
    for folder in (first, *later):
        manifest = read_manifest(store, folder.name)
        assert isinstance(manifest, Manifest)
        assert verify(store, folder.name, manifest, deep=True) == ()
        named = [one.folder for one in manifest.files if one.name == file.name]
        assert named == [None if folder == first else first.name]
    assert written(told) == [event.size for event in told.of(Committed)]


def test_a_link_that_fails_costs_no_checkpoint(tmp_path: Path) -> None:
    """The folder that had the base was taken away by hand."""
    made, told = Adapted(), Told()
    with open_run(tmp_path, made, on_event=told) as run:
        train(run, made, 1)
        frozen_files(tmp_path)[0].unlink()
        train(run, made, 1)
    assert [event.step for event in told.of(Committed)] == [1, 2]
    assert torch.equal(base_in(folders(tmp_path)[1]), made.base)


@pytest.mark.parametrize("form", ["safetensors", "hf", "torch"])
def test_an_export_has_all_weights(tmp_path: Path, form: str) -> None:
    made = Adapted()
    config = json.dumps(made.model.base_model.model.config.to_dict())
    with open_run(tmp_path / "root", made, user={"hf_config": config}) as run:
        train(run, made, 2)
    assert len(set(frozen_files(tmp_path / "root"))) == 2
    to = tmp_path / "out"
    export(tmp_path / "root", form, to)
    expected = {name: value.clone() for name, value in made.model.state_dict().items()}
    if form == "torch":
        held = torch.load(to / "checkpoint.pt", weights_only=True)["model"]
    else:
        held = {}
        for file in to.glob("*.safetensors"):
            part = safetensors.torch.load_file(file)
            assert not part.keys() & held.keys()
            held |= part
    assert held.keys() == expected.keys()
    assert all(torch.equal(held[name], value) for name, value in expected.items())
    if form == "hf":
        index = json.loads((to / "model.safetensors.index.json").read_text())
        assert {name: (to / file).is_file() for name, file in index["weight_map"].items()} == dict.fromkeys(held, True)


def test_transformers_reads_an_export_of_a_frozen_backbone(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))
    model.model.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.lm_head.parameters(), lr=1e-2)
    wishes = {"model": model, "optimizer": optimizer, "user": {"hf_config": model.config.to_json_string()}}
    with mementum.open_run(tmp_path / "root", task=TASK, every_steps=1, **wishes) as run:
        run.record()
    assert (folders(tmp_path / "root")[0] / "model.frozen.safetensors").is_file()
    export(tmp_path / "root", "hf", tmp_path / "out")
    read = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out")
    expected = model.state_dict()
    assert read.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in read.state_dict().items())


def test_a_snapshot_in_memory_that_needs_a_frozen_file_comes_back(tmp_path: Path) -> None:
    """The slot has the adapters, and says in which folder the base lies."""
    made = Adapted()
    run = open_run(tmp_path, made)
    train(run, made, 2)
    hold_disk(run)
    made.step()
    run.record()
    expected = made.state()
    die(run)
    assert steps_left(tmp_path, TASK)[0] == 3
    fresh = Adapted()
    with open_run(tmp_path, fresh, resume="must") as run:
        assert (run.resumed.step, run.resumed.tier) == (3, "ram")
        assert fresh.state() == expected
        run.wait()
    files = frozen_files(tmp_path)
    assert len(files) == 3
    assert len({file.stat().st_ino for file in files}) == 1


def test_the_only_checkpoint_and_its_snapshot_bring_back_the_base(tmp_path: Path) -> None:
    """The slot names the base in the checkpoint before, which retention has removed: the one that is left has it."""
    made = Adapted()
    run = open_run(tmp_path, made, keep_last=1)
    train(run, made, 4)
    run.wait()
    die(run)
    (before,) = frozen_files(tmp_path)
    inode = before.stat().st_ino
    fresh, told = Adapted(), Told()
    with open_run(tmp_path, fresh, keep_last=1, on_event=told) as again:
        assert again.resumed is not None
        assert (again.resumed.step, again.resumed.tier) == (4, "ram")
        assert torch.equal(fresh.base, made.base)
        train(again, fresh, 1)
        again.wait()
        assert [file.stat().st_ino for file in frozen_files(tmp_path)] == [inode]  # not written again
    assert told.of(Failed) == []
