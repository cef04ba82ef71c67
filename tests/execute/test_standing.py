"""A standing capture copies nothing: what is written is the live state, and the loop is told to wait."""

from __future__ import annotations

import copy

import torch

from mementum.execute.capture import BlockingCapture
from mementum.execute.standing import StandingCapture
from mementum.live.stateful import components_in


def test_it_gives_the_bytes_of_a_copy() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    components = components_in({"model": model, "optimizer": optimizer, "mine": torch.arange(3)})
    copied = BlockingCapture(codec="raw").take(components)
    capture = StandingCapture()
    capture.note(components)
    capture.warm(components)
    capture.unfreeze([("model", "0.weight")])
    standing = capture.take(components)
    assert copied is not None
    assert standing is not None
    assert standing.holds_up
    assert not copied.holds_up
    assert [image.layout for image in standing.images] == [image.layout for image in copied.images]
    assert [bytes(image.raw[:]) for image in standing.images] == [bytes(image.raw[:]) for image in copied.images]
    assert standing.components.keys() == copied.components.keys()
    assert not any(image.steady for image in standing.images)  # it is of this moment, and is written
    assert standing.outcome() is None
    standing.release()
    capture.close()


def test_what_is_written_is_what_is_live() -> None:
    tensor = torch.zeros(2)
    before = copy.deepcopy(tensor)
    standing = StandingCapture().take(components_in({"t": tensor}))
    assert standing is not None
    (image,) = standing.images
    assert bytes(image.raw[: tensor.nbytes]) == before.numpy().tobytes()
    tensor.fill_(3)
    assert bytes(image.raw[: tensor.nbytes]) == tensor.numpy().tobytes() != before.numpy().tobytes()
