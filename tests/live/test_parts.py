"""Parts: what tensors are taken apart to, and parts that make no tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mementum.errors import CheckpointDamaged
from mementum.live.component import Component
from mementum.live.parts import is_made_of_parts, put_together, take_apart
from mementum.recover.load import Loaded
from mementum.resuming import put_back
from trips import Box, save_now


def test_dense_tensors_are_no_parts() -> None:
    assert not is_made_of_parts(torch.ones(2, 3).T)
    assert is_made_of_parts(torch.eye(2).to_sparse())


def test_the_parts_of_a_sparse_tensor_are_the_live_ones() -> None:
    tensor = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.tensor([1.0, 2.0]), (4,), check_invariants=True)
    kind, parts, facts = take_apart(tensor)
    assert (kind, facts) == ("sparse_coo", {"size": [4], "coalesced": False})
    assert parts["values"].data_ptr() == tensor._values().data_ptr()


@pytest.mark.parametrize(
    ("kind", "parts", "facts", "error"),
    [
        ("sparse_coo", {"indices": torch.tensor([[9]]), "values": torch.ones(1)}, {"size": [4]}, KeyError),
        (
            "sparse_coo",
            {"indices": torch.tensor([[9]]), "values": torch.ones(1)},
            {"size": [4], "coalesced": False},
            RuntimeError,
        ),
        ("sparse_csr", {"compressed": torch.tensor([0, 2]), "plain": torch.tensor([0])}, {"size": [1, 1]}, KeyError),
        ("a newer kind", {}, {}, ValueError),
    ],
)
def test_parts_that_make_no_tensor_are_refused(
    kind: str, parts: dict[str, torch.Tensor], facts: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        put_together(kind, parts, facts)


def test_parts_that_make_no_tensor_are_damage_of_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are those that were written, and still no tensor: it is told before anything live is touched."""
    save_now(tmp_path, {"state": {"box": Box(t=torch.eye(3).to_sparse())}})

    def spoiled(loaded: Loaded, components: list[Component], **wishes: object) -> object:
        loaded.tensors["box"]["t.indices"].fill_(7)
        return put_back(loaded, components)

    monkeypatch.setattr("mementum.restoring.put_back", spoiled)
    fresh = Box(mine=1)
    with pytest.raises(CheckpointDamaged, match="a tensor of box cannot be put together"):
        save_now(tmp_path, {"state": {"box": fresh}})
    assert fresh.held == {"mine": 1}
