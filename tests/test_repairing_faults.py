"""A hundred random faults on a disk and on a bucket: a hundred repairs from the other one, bit for bit."""

from __future__ import annotations

from pathlib import Path
from random import Random

import torch

import mementum
from copies import content
from mementum.records import Entry
from mementum.recover.load import Loaded, load
from mementum.repairing import Repaired
from mementum.storage.local import LocalStore
from mementum.storage.store import Store
from mementum.storage.tiers import open_store
from mendings import copy, mend
from tiered import TASK, entries, home_of


class Faults:
    """One random fault in a store, of one of all kinds."""

    KINDS = ("flip", "cut", "grow", "remove", "swap", "zeros", "empty")

    def __init__(self, store: Store, rng: Random) -> None:
        self._store, self._rng = store, rng

    def one(self, kind: str, folder: str) -> str:
        keys = [stat.key for stat in self._store.list(f"{folder}/")]
        key = self._rng.choice(keys)
        data = bytearray(self._store.get(key))
        match kind:
            case "flip":
                data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
            case "cut":
                del data[self._rng.randrange(len(data)) :]
            case "grow":
                data += self._rng.randbytes(self._rng.randrange(1, 100))
            case "zeros":
                start = self._rng.randrange(len(data))
                size = min(self._rng.randrange(1, 600), len(data) - start)
                data[start : start + size] = b"\0" * size if any(data[start : start + size]) else b"\1" * size
            case "empty":
                data.clear()
            case "swap":
                other = self._rng.choice([one for one in keys if one != key])
                theirs = bytes(self._store.get(other))
                self._store.replace(other, [bytes(data)])
                self._store.replace(key, [theirs])
                return key
        if kind == "remove":
            self._store.delete(key)
        else:
            self._store.replace(key, [bytes(data)])
        return key


def trained(root: Path) -> tuple[LocalStore, list[Entry]]:
    """Checkpoints of a real training, some of them compressed."""
    torch.manual_seed(0)
    model = torch.nn.Linear(20, 30)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    config = {"slots": 0, "scrub": "off", "keep_last": 9, "codec": "planes+zstd:1"}
    with mementum.open_run(root, task=TASK, config=config, model=model, optimizer=optimizer, every_steps=1) as run:
        for _ in range(2):
            model(torch.ones(1, 20)).pow(2).mean().backward()
            optimizer.step()
            run.record(loss=1.0)
            run.wait()
    return home_of(root), list(entries(root).values())


def test_a_hundred_random_faults(tmp_path: Path, s3_url: str, s3_options: dict[str, str]) -> None:
    near, saved = trained(tmp_path / "root")
    far = open_store(s3_url, s3_options)
    there = [copy(entry, near, far) for entry in saved]
    rng, repaired = Random(8), 0
    before = {(id(store), entry.folder): content(store, entry.folder) for store in (near, far) for entry in saved}
    tensors = [load(near, entry.folder, entry.manifest) for entry in saved]
    for number in range(100):
        damaged, donor = (near, far) if number % 2 else (far, near)
        which = rng.randrange(len(saved))
        entry = (saved if damaged is near else there)[which]
        Faults(damaged, rng).one(Faults.KINDS[number // 2 % len(Faults.KINDS)], entry.folder)
        done = mend(entry, damaged, donor)
        assert isinstance(done, Repaired), (number, done)
        assert not done.anew
        assert content(damaged, entry.folder) == before[id(damaged), entry.folder]
        repaired += 1
        if number % 10 == 0:
            loaded, expected = load(damaged, entry.folder, entry.manifest), tensors[which]
            assert isinstance(loaded, Loaded)
            assert isinstance(expected, Loaded)
            for component, held in expected.tensors.items():
                for name, tensor in held.items():
                    assert torch.equal(loaded.tensors[component][name], tensor)
    assert repaired == 100
    for store in (near, far):
        assert content(store) == {key: data for entry in saved for key, data in before[id(store), entry.folder].items()}
