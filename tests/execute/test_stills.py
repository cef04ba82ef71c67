"""Files of frozen tensors: linked while they are the same, written when they are not, and never trusted unseen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mementum.errors import MementumError
from mementum.execute import structure
from mementum.execute.gathered import Gathered
from mementum.execute.snapshot import Image
from mementum.execute.stills import CHANGES_MAX, Stills, Unsteady
from mementum.execute.structure import Reader
from mementum.format.blocks import encode
from mementum.live.stateful import components_in
from mementum.records import DataFile, Index, StoredTensor
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

NAME = "model.frozen.safetensors"


class Made:
    """A model that is frozen but for its last layer, in a store that is a folder."""

    def __init__(self, root: Path) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(30, 30), torch.nn.Linear(30, 1))
        self.model[0].requires_grad_(False)
        self.stills = Stills()
        self.reader = Reader(codec="raw", frozen=True)
        self.store = LocalStore(PosixDisk(), str(root))
        self.reader.read(components_in({"model": self.model}))  # the second reading knows what stays

    def images(self) -> tuple[Image, ...]:
        reading = self.reader.read(components_in({"model": self.model}))
        return tuple(
            Image(layout=layout, raw=Gathered(layout, reading, number), steady=layout.frozen)
            for number, layout in enumerate(reading.structure.layouts)
        )

    def write(self, images: tuple[Image, ...], folder: str) -> tuple[DataFile, ...]:
        """All files, as a save writes them, and told to the stills."""
        files = []
        for image in images:
            pairs = list(encode(image.raw, image.layout.stretches, "raw"))
            self.store.put(f"{folder}/{image.layout.name}", [stored for _, stored in pairs])
            files.append(
                DataFile(name=image.layout.name, size=image.layout.raw_size, blocks=tuple(block for block, _ in pairs))
            )
        tensors = tuple(tensor for image in images for tensor in image.layout.tensors)
        self.stills.wrote(folder, Index(rank=0, files=tuple(files), tensors=tensors))
        return tuple(files)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr(structure, "FROZEN_MIN", 1)
    return Made(tmp_path)


def test_nothing_is_known_at_first(made: Made) -> None:
    images = made.images()
    assert [image.layout.name for image in images if image.steady] == [NAME]
    assert made.stills.link(images, made.store, "a") == {}
    assert made.stills.proved(images) is None
    assert made.stills.take_unfrozen() == ()


def test_what_is_committed_is_linked(made: Made, tmp_path: Path) -> None:
    images = made.images()
    files = made.write(images, "a")
    made.stills.require_steady(images, files)
    assert made.stills.proved(images) is None  # its checkpoint may still come to nothing
    made.stills.committed()
    again = made.images()
    linked = made.stills.link(again, made.store, "b")
    assert linked == {NAME: next(file for file in files if file.name == NAME)}
    assert made.stills.linked == linked[NAME].size
    assert (tmp_path / "a" / NAME).stat().st_ino == (tmp_path / "b" / NAME).stat().st_ino
    proved = made.stills.proved(again)
    assert proved is not None
    assert {name: still.folder for name, still in proved.items()} == {NAME: "a"}
    assert made.stills.proved([image for image in again if not image.steady]) == {}


@pytest.mark.parametrize("through_data", [False, True])
def test_a_changed_one_is_not_linked_and_counts_as_moving_after_some(made: Made, through_data: bool) -> None:
    made.write(made.images(), "start")
    made.stills.committed()
    for number in range(1, CHANGES_MAX + 1):
        assert made.stills.take_unfrozen() == ()
        with torch.no_grad():
            (made.model[0].weight.data if through_data else made.model[0].weight)[0] += 1
        images = made.images()
        assert made.stills.proved(images) is None
        assert made.stills.link(images, made.store, f"f{number}") == {}
        made.write(images, f"f{number}")
        made.stills.committed()
    moving = made.stills.take_unfrozen()
    assert set(moving) == {("model", "0.weight"), ("model", "0.bias")}
    assert made.stills.take_unfrozen() == ()  # told once
    made.reader.unfreeze(moving)
    assert not any(image.steady for image in made.images())


def test_changes_count_only_in_a_row(made: Made) -> None:
    made.write(made.images(), "start")
    made.stills.committed()
    for number in range(3 * CHANGES_MAX):
        if number % 2:
            made.model[0].weight.data[0] += 1
        images = made.images()
        if not made.stills.link(images, made.store, f"f{number}"):
            made.write(images, f"f{number}")
            made.stills.committed()
    assert made.stills.take_unfrozen() == ()


@pytest.mark.parametrize("through_data", [False, True])
def test_what_changes_while_it_is_written_is_found(made: Made, through_data: bool) -> None:
    images = made.images()
    files = made.write(images, "a")
    (steady,) = [image for image in images if image.steady]
    with torch.no_grad():
        (made.model[0].weight.data if through_data else made.model[0].weight)[0] += 1
    with pytest.raises(Unsteady) as caught:
        made.stills.require_steady(images, files)
    assert set(caught.value.names) == {("model", "0.weight"), ("model", "0.bias")}
    assert "model.0.weight" in caught.value.message
    assert "older checkpoints" in (caught.value.kept or "")
    assert isinstance(caught.value, MementumError)
    assert isinstance(steady.raw, Gathered)
    assert set(made.stills.take_unfrozen()) == set(steady.raw.names)


def test_a_file_that_is_gone_or_compressed_or_of_other_tensors_is_written(made: Made, tmp_path: Path) -> None:
    made.write(made.images(), "a")
    made.stills.committed()
    (tmp_path / "a" / NAME).unlink()
    assert made.stills.link(made.images(), made.store, "b") == {}
    proved: Any = made.stills.proved(made.images())
    still = proved[NAME]
    packed = DataFile(
        name=NAME,
        size=still.file.size,
        blocks=tuple(
            type(block)(
                offset=block.offset,
                size=block.size,
                raw_size=block.raw_size,
                codec="zstd:1",
                digest=block.digest,
                raw_digest=block.raw_digest,
            )
            for block in still.file.blocks
        ),
    )
    made.stills.know({NAME: type(still)(folder="a", file=packed, tensors=still.tensors)})
    assert made.stills.proved(made.images()) is None
    made.stills.know({NAME: type(still)(folder="a", file=still.file, tensors=still.tensors[:1])})
    assert made.stills.proved(made.images()) is None


def test_a_file_is_not_linked_onto_itself(made: Made) -> None:
    images = made.images()
    made.write(images, "a")
    made.stills.committed()
    assert made.stills.link(images, made.store, "a") == {}
    assert made.stills.linked == 0


def test_where_there_are_no_links_the_checkpoint_that_has_it_is_named(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "link", lambda *_: False)
    files = made.write(made.images(), "a")
    made.stills.committed()
    own = next(file for file in files if file.name == NAME)
    for folder in ("b", "c"):  # the third names the first too, and not the second
        linked = made.stills.link(made.images(), made.store, folder)
        assert linked == {NAME: replace(own, folder="a")}
        assert made.stills.linked == 0  # it is no file of this checkpoint
        assert not (tmp_path / folder / NAME).exists()
        made.stills.wrote(folder, Index(rank=0, files=tuple(linked.values()), tensors=tensors_of(made)))
        made.stills.committed()
    proved = made.stills.proved(made.images())
    assert proved is not None
    assert {name: (still.folder, still.file) for name, still in proved.items()} == {NAME: ("a", own)}
    (tmp_path / "a" / NAME).write_bytes(b"cut")
    assert made.stills.link(made.images(), made.store, "d") == {}


def tensors_of(made: Made) -> tuple[StoredTensor, ...]:
    return tuple(tensor for image in made.images() for tensor in image.layout.tensors)
