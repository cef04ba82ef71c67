"""Files that are coded anew against a base, of weights too, and what reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from deltas import CODEC, Moving, folder
from mementum.basing import Whole
from mementum.exchange.exporting import export
from mementum.execute.commit import commit
from mementum.execute.transfer import NotWhole
from mementum.format import blocks, index
from mementum.format.levels import CODED
from mementum.format.manifest import digest
from mementum.placing import Copied, Form, place
from mementum.recoding import Recoded
from mementum.records import DataFile, Entry, Index, Manifest, StoredFile
from mementum.recover.load import Loaded, load
from mementum.recover.verify import INDEX, Proved, examine, read_manifest, verify
from mementum.storage.local import LocalStore
from mementum.testing.simdisk import SimDisk
from trips import bits

OTHER = "step_0000000009"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 1024)


def proof_of(moving: Moving, number: int) -> tuple[Manifest, Index]:
    manifest = moving.entry(number).manifest
    proved = examine(moving.store, folder(number), manifest)
    assert isinstance(proved, Proved), proved
    return manifest, proved.index


def recoded(moving: Moving, target: LocalStore, number: int, *, base: Whole | None) -> Manifest:
    """A copy of a checkpoint whose data files are all coded, weights too."""
    manifest, proof = proof_of(moving, number)
    made: dict[str, DataFile] = {}
    for file in proof.files:
        counted = base if base is not None and base.file.name.startswith(file.name) else None
        held = [tensor for tensor in proof.tensors if tensor.file == file.name]
        chunks = Recoded(
            file,
            held,
            proof.bases,
            source=moving.store,
            folder=folder(number),
            codec=CODEC,
            pause=lambda: None,
            base=counted,
        )
        name = file.name if file.name.endswith(CODED) else f"{file.name}{CODED}"
        stat = target.put(f"{folder(number)}/{name}", chunks)
        made[file.name] = chunks.file(name, stat.size)
    used = [base.file] if base is not None and any(file.base for file in made.values()) else []
    tensors = tuple(replace(tensor, file=made[tensor.file].name) for tensor in proof.tensors)
    rendered = index.render(Index(rank=0, files=tuple(made.values()), tensors=tensors, bases=tuple(used)))
    files = [StoredFile(name=file.name, size=file.size) for file in made.values()]
    files += [StoredFile(name=file.name, size=file.size, folder=file.folder) for file in used]
    for file in manifest.files:
        if file.digest is not None:
            data = rendered if INDEX.fullmatch(file.name) else bytes(moving.store.get(f"{folder(number)}/{file.name}"))
            target.put(f"{folder(number)}/{file.name}", [data])
            files.append(StoredFile(name=file.name, size=len(data), digest=digest(data)))
    return replace(manifest, files=tuple(files))


def test_weights_that_are_coded_are_loaded_and_exported_as_they_were(rng: Random, tmp_path: Path) -> None:
    moving, target = Moving(rng), LocalStore(SimDisk(), "tier")
    entry = moving.save(1)
    before = load(moving.store, folder(1), entry.manifest)
    after = recoded(moving, target, 1, base=None)
    assert [file.name for file in after.files[:2]] == ["model.safetensors.blocks", "optimizer.blocks"]
    assert after.size < entry.manifest.size
    assert verify(target, folder(1), after, deep=True) == ()
    loaded = load(target, folder(1), after)
    assert isinstance(before, Loaded)
    assert isinstance(loaded, Loaded)
    assert bits(loaded.tensors) == bits(before.tensors)
    commit(after, target, folder(1))
    made = export(
        Entry(manifest=after, folder=folder(1)), target, to=str(tmp_path / "out"), form="safetensors", model="model"
    )
    assert "model.safetensors" in made.files
    data = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert data == bytes(moving.store.get(f"{folder(1)}/model.safetensors"))
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")["w"], torch.zeros(2))


def test_a_file_of_a_copy_is_coded_against_the_copy_of_another(rng: Random) -> None:
    moving, target = Moving(rng), LocalStore(SimDisk(), "tier")
    moving.save(1)
    moving.save(2)
    first = recoded(moving, target, 1, base=None)
    proved = examine(target, folder(1), first)
    assert isinstance(proved, Proved)
    second = recoded(moving, target, 2, base=Whole(target, "c1", folder(1), proved.index.files[1]))
    assert second.files[1].size < 0.5 * first.files[1].size
    assert second.files[2] == StoredFile(name="optimizer.blocks", size=first.files[1].size, folder=folder(1))
    assert verify(target, folder(2), second, deep=True) == ()
    loaded = load(target, folder(2), second)
    assert isinstance(loaded, Loaded)
    found = loaded.tensors["optimizer"]["0.exp_avg"].view(torch.uint8).numpy().tobytes()
    assert found == moving.raws[2]


def test_a_delta_is_sent_whole_where_its_base_is_not(rng: Random) -> None:
    moving, target = Moving(rng), LocalStore(SimDisk(), "tier")
    moving.settled(1)
    moving.settled(2)
    after = recoded(moving, target, 2, base=None)
    assert all(file.folder is None for file in after.files)
    assert verify(target, folder(2), after, deep=True) == ()


def test_damage_of_the_source_is_told(rng: Random) -> None:
    moving, target = Moving(rng), LocalStore(SimDisk(), "tier")
    moving.settled(1)
    moving.settled(2)
    moving.store.delete(f"{folder(1)}/optimizer-2.blocks")
    manifest = read_manifest(moving.store, folder(2))
    assert isinstance(manifest, Manifest)
    assert examine(moving.store, folder(2), manifest) != ()
    data = index.parse(moving.store.get(f"{folder(2)}/index-00000-2.json"))
    chunks = Recoded(
        data.files[1],
        data.tensors,
        data.bases,
        source=moving.store,
        folder=folder(2),
        codec=None,
        pause=lambda: None,
    )
    with pytest.raises(NotWhole, match=rf"{folder(1)}/optimizer-2\.blocks"):
        target.put(f"{OTHER}/x", chunks)
    assert list(target.list()) == []


def placed(moving: Moving, target: LocalStore, number: int, others: list[Entry], **form: Any) -> Entry:
    done = place(
        moving.entry(number),
        source=moving.store,
        target=target,
        form=Form(codec=CODEC, **form),
        others=others,
        require_newest=lambda: None,
        pause=lambda: None,
    )
    assert isinstance(done, Copied), done
    assert verify(target, done.folder, done.manifest, deep=True) == ()
    return Entry(manifest=done.manifest, folder=done.folder)


def test_copies_on_a_tier_are_coded_against_one_another(rng: Random) -> None:
    moving, tier, back = Moving(rng, weights=1000), LocalStore(SimDisk(), "tier"), LocalStore(SimDisk(), "back")
    others: list[Entry] = []
    for number in (1, 2, 3):
        moving.save(number)
        others.append(placed(moving, tier, number, others))
    first, *later = (entry.manifest for entry in others)
    assert [file.name for file in first.files[:2]] == ["model.safetensors", "optimizer-2.blocks"]
    for manifest in later:
        assert [(file.name, file.folder) for file in manifest.files if file.digest is None] == [
            ("model.safetensors-2.blocks", None),
            ("optimizer-2.blocks", None),
            ("model.safetensors", folder(1)),
            ("optimizer-2.blocks", folder(1)),
        ]
        assert manifest.size < 0.6 * first.size
    fetched = place(others[2], source=tier, target=back, require_newest=lambda: None, pause=lambda: None)
    assert isinstance(fetched, Copied)
    assert all(file.folder is None for file in fetched.manifest.files)
    here, there = load(moving.store, folder(3), moving.entry(3).manifest), load(back, folder(3), fetched.manifest)
    assert isinstance(here, Loaded)
    assert isinstance(there, Loaded)
    assert bits(here.tensors) == bits(there.tensors)


def test_a_copy_without_levels_counts_against_what_is_left(rng: Random) -> None:
    moving, tier = Moving(rng, weights=1000), LocalStore(SimDisk(), "tier")
    others: list[Entry] = []
    for number in (1, 2):
        moving.save(number)
        others.append(placed(moving, tier, number, others, levels=(0,)))
    assert [(file.name, file.folder) for file in others[1].manifest.files if file.digest is None] == [
        ("model.safetensors-2.blocks", None),
        ("model.safetensors", folder(1)),
    ]
