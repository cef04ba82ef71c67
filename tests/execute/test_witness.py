"""A copy that something overtook is found: by torch's counts, by the heads of tensors, or by all of their bytes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from mementum.execute.structure import Bytes, Spot
from mementum.execute.witness import SAMPLE, Held, Watched, Witness, hold, what_happened, witness

SIZES = (1, SAMPLE // 4, SAMPLE, 3)  # in numbers of four bytes: shorter than a sample, as long, longer


def tensors_of(sizes: Sequence[int] = SIZES) -> list[torch.Tensor]:
    return [torch.arange(float(size)) for size in sizes]


def watched_of(tensors: Sequence[torch.Tensor]) -> Watched:
    spots: list[Spot] = []
    start = 0
    for number, tensor in enumerate(tensors):
        stop = start + tensor.nbytes
        spots.append(
            Spot(component="model", key=f"w{number}", file=0, start=start, stop=stop, address=tensor.data_ptr())
        )
        start = stop
    return Watched(spots)


def copied(watched: Watched) -> list[Bytes]:
    return [source.copy() for source in watched.sources]


def seen(tensors: Sequence[torch.Tensor], *, verify: bool) -> tuple[Watched, Held, Witness]:
    watched = watched_of(tensors)
    return watched, hold(tensors), witness(watched, tensors, verify=verify)


@pytest.mark.parametrize("verify", [False, True])
def test_nothing_happened(verify: bool) -> None:
    tensors = tensors_of()
    watched, held, before = seen(tensors, verify=verify)
    assert what_happened(before, held, watched, copied(watched)) is None
    assert (before.digests is not None) is verify


@pytest.mark.parametrize("number", range(len(SIZES)))
@pytest.mark.parametrize("verify", [False, True])
def test_a_counted_change_is_found_wherever_it_is(number: int, verify: bool) -> None:
    tensors = tensors_of()
    watched, held, before = seen(tensors, verify=verify)
    targets = copied(watched)  # right, as it happens: nobody knows
    tensors[number][-1] += 1
    told = what_happened(before, held, watched, targets)
    assert told == f"model.w{number} was changed while it was copied, not by its optimizer's step"


@pytest.mark.parametrize(
    ("place", "verify", "found"),
    [
        (0, False, True),
        (SAMPLE // 4 - 1, False, True),
        (SAMPLE // 4, False, False),
        (SAMPLE // 4, True, True),
        (SAMPLE - 1, True, True),
    ],
)
def test_an_uncounted_change_is_found_in_the_head_or_by_digests(place: int, verify: bool, found: bool) -> None:
    tensors = tensors_of()
    watched, held, before = seen(tensors, verify=verify)
    tensors[2].data[place] += 1
    told = what_happened(before, held, watched, copied(watched))
    assert (told is not None) is found
    assert told is None or told.startswith("model.w2 ")


def test_only_the_changed_one_is_named(rng: random.Random) -> None:
    for _ in range(20):
        tensors = tensors_of([rng.randrange(1, 300) for _ in range(6)])
        watched, held, before = seen(tensors, verify=True)
        number = rng.randrange(6)
        place = rng.randrange(tensors[number].numel())
        tensors[number].data[place] -= 0.5
        told = what_happened(before, held, watched, copied(watched))
        assert told is not None
        assert told.split(" ")[0] == f"model.w{number}"


def test_a_copy_that_is_wrong_for_its_own_reasons_is_found() -> None:
    tensors = tensors_of()
    watched, held, before = seen(tensors, verify=False)
    targets = copied(watched)
    targets[3][0] ^= 1
    told = what_happened(before, held, watched, targets)
    assert told is not None
    assert told.startswith("model.w3 ")


def test_nothing_to_watch() -> None:
    watched, held, before = seen([], verify=True)
    assert what_happened(before, held, watched, []) is None
    assert before.sample.dtype == np.uint8


def test_nan_is_equal_to_itself() -> None:
    tensors = [torch.full((8,), float("nan"))]
    watched, held, before = seen(tensors, verify=True)
    assert what_happened(before, held, watched, copied(watched)) is None


def test_a_sample_is_of_the_heads_wherever_they_lie(rng: random.Random) -> None:
    memory = torch.arange(4096, dtype=torch.uint8)
    for _ in range(50):
        cuts = sorted(rng.sample(range(4096), 8))
        tensors = [memory[start:stop] for start, stop in itertools.pairwise(cuts)]
        rng.shuffle(tensors)
        watched = watched_of(tensors)
        assert sorted(watched.order) == list(range(7))
        expected = b"".join(bytes(tensors[number][:SAMPLE].numpy()) for number in watched.order)
        assert watched.sample().tobytes() == expected
