"""Golden checkpoints of format 2: a delta, references to another checkpoint's files, dropped levels."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import mementum
from golden import make_second as make
from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import open_sqlite
from mementum.exchange.exporting import export
from mementum.format.codec import is_delta
from mementum.records import Entry, Granularity
from mementum.recover.choose import candidates
from mementum.recover.load import Loaded, load
from mementum.recover.verify import Proved, examine, verify
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

HERE = Path(__file__).parent
FIRST = "step_0000000001"
FROZEN = "model.frozen.safetensors"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(HERE / "v2", tmp_path / "root")
    return tmp_path / "root"


@pytest.fixture
def store(root: Path) -> LocalStore:
    (home,) = root.glob("????????/*_*")
    return LocalStore(PosixDisk(), str(home))


@pytest.fixture
def entries(store: LocalStore) -> dict[int, Entry]:
    catalog = open_sqlite(None)
    assert refresh(catalog, "home", store) == ()
    return {entry.manifest.step: entry for entry in catalog.entries("home")}


def test_all_are_whole(store: LocalStore, entries: dict[int, Entry]) -> None:
    assert list(entries) == [1, 2, 3, 4]
    for entry in entries.values():
        assert verify(store, entry.folder, entry.manifest, deep=True) == ()
    foreign = {
        step: {(file.folder, file.name) for file in entry.manifest.files if file.folder is not None}
        for step, entry in entries.items()
    }
    both = {(FIRST, FROZEN), (FIRST, "optimizer-2.blocks")}
    assert foreign == {1: set(), 2: both, 3: {(FIRST, FROZEN)}, 4: both}


def test_deltas_are_decoded(store: LocalStore, entries: dict[int, Entry]) -> None:
    for step in (2, 4):
        proved = examine(store, entries[step].folder, entries[step].manifest)
        assert isinstance(proved, Proved)
        coded = [block.codec for file in proved.index.files for block in file.blocks if is_delta(block.codec)]
        assert coded == ["delta:4+planes:4+zstd:1"]
        loaded = load(store, entries[step].folder, entries[step].manifest)
        assert isinstance(loaded, Loaded)
        assert torch.equal(loaded.tensors["wide"]["value"], make.wide(step))


def test_it_resumes(root: Path) -> None:
    model, optimizer = make.objects()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    held = torch.zeros(make.COUNT, dtype=torch.int32)
    with mementum.open_run(
        root, task=make.TASK, model=model, optimizer=optimizer, state={"wide": held}, resume="must"
    ) as run:
        assert run.step == make.SAVES
    assert torch.equal(held, make.wide(make.SAVES))
    assert torch.equal(model[0].weight, torch.full((8, 8), 0.25))
    assert model[1].weight[0, 0].item().hex() == GOLDEN_WEIGHT
    assert optimizer.state[model[1].weight]["step"].item() == make.SAVES


def test_dropped_levels_leave_weights_that_nothing_takes_for_more(
    store: LocalStore, entries: dict[int, Entry], tmp_path: Path
) -> None:
    entry = entries[make.WITHERED]
    manifest = entry.manifest
    assert (manifest.levels, manifest.granularity, manifest.generation) == ((0,), Granularity.WEIGHTS, 3)
    assert entry not in candidates(tuple(entries.values()))
    loaded = load(store, entry.folder, manifest)
    assert isinstance(loaded, Loaded)
    assert list(loaded.context) == ["format", "step", "epoch", "components"]
    assert {name: list(held) for name, held in loaded.tensors.items()} == {"model": ["0.weight", "1.weight"]}
    made = export(entry, store, to=str(tmp_path / "out"), form="safetensors")
    assert set(made.files) >= {FROZEN, "model.safetensors"}
    assert torch.equal(load_file(tmp_path / "out" / FROZEN)["0.weight"], torch.full((8, 8), 0.25))


GOLDEN_WEIGHT = "-0x1.00a2340000000p-1"
