"""The randomness of the data: the same with any workers, batch size and place to resume from."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from mementum.data import ElasticSampler, Keyed, Sample, keyed_generators
from mementum.errors import UsageError

ITEMS, BATCH = 10, 2


class Augmented(Dataset[torch.Tensor]):
    """Draws from all three global generators, normal numbers (of which numpy keeps a second half) among them."""

    classes = ("cat", "dog")

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = [random.random(), random.gauss(0, 1), float(np.random.rand()), float(np.random.randn())]
        return torch.cat([torch.tensor([index, *drawn], dtype=torch.float64), torch.rand(2, dtype=torch.float64)])

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        raise AssertionError("this would bypass the keys")


class Broken(Dataset[int]):
    """Raises after it has drawn."""

    def __getitem__(self, index: int) -> int:
        Augmented()[index]
        raise LookupError(f"no sample {index}")


class Streamed(IterableDataset[int]):
    """A data set without indices."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(ITEMS))


def global_states() -> tuple[Any, ...]:
    name, key, *rest = np.random.get_state()
    return random.getstate(), name, key.tobytes(), *rest, torch.get_rng_state().numpy().tobytes()


def augmented(workers: int, *, batch_size: int = BATCH, position: int = 0) -> torch.Tensor:
    """The rest of two epochs, in one tensor of shape (samples, 7)."""
    sampler = ElasticSampler(ITEMS, seed=1)
    sampler.seek(0, position)
    loader = DataLoader(
        Keyed(Augmented(), seed=1),
        batch_size=batch_size,
        sampler=sampler,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
        persistent_workers=workers == 2,
    )
    return torch.cat([batch for _ in range(2) for batch in loader])


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # other tests may have left threads behind
def test_workers_batch_sizes_and_resumes_do_not_change_a_bit() -> None:
    straight = augmented(0)
    assert straight.shape == (20, 7)
    assert len(torch.unique(straight[:, 1:])) == 20 * 6
    for workers in (1, 2):
        assert torch.equal(augmented(workers), straight)
    assert torch.equal(augmented(0, batch_size=3), straight)
    assert torch.equal(augmented(0, position=6), straight[6:])
    torch.manual_seed(123)
    np.random.seed(123)
    random.seed(123)
    assert torch.equal(augmented(0), straight)


@pytest.mark.parametrize("normals", [0, 1])
def test_the_main_process_keeps_its_generators(normals: int) -> None:
    """Also the second half of a normal pair, which numpy's and Python's generators keep for the next call."""
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    for _ in range(normals):
        assert random.gauss(0, 1) != np.random.randn() != torch.randn(1).item()
    before = global_states()
    assert np.random.get_state(legacy=False)["has_gauss"] == normals
    keyed = Keyed(Augmented())
    assert keyed[Sample(1, 0)].shape == (7,)
    assert len(keyed.__getitems__([Sample(1, 0), Sample(2, 0)])) == 2
    with pytest.raises(LookupError, match="no sample 3"):
        Keyed(Broken())[Sample(3, 0)]
    assert global_states() == before


def test_another_global_numpy_source_is_put_back() -> None:
    source = np.random.get_bit_generator()
    mine = np.random.PCG64(3)
    try:
        np.random.set_bit_generator(mine)
        before = mine.state
        drawn = Keyed(Augmented())[Sample(1, 0)]
        assert np.random.get_bit_generator() is mine
        assert mine.state == before
    finally:
        np.random.set_bit_generator(source)
    assert torch.equal(drawn, Keyed(Augmented())[Sample(1, 0)])


class Drawn(Dataset[tuple[float, float, int]]):
    """What the generators are seeded with: where torch may change its numbers some day, its seed is ours."""

    def __getitem__(self, index: int) -> tuple[float, float, int]:
        return random.random(), float(np.random.rand()), torch.initial_seed()


def test_the_keys_of_the_first_release_stay() -> None:
    assert Keyed(Drawn())[Sample(0, 0)] == (0.8666432089832521, 0.5642579919910196, 11260574668676333850)
    assert Keyed(Drawn(), seed=7)[Sample(3, 2)] == (0.4263651710656746, 0.1732791779013897, 3955479719025738300)


def test_seed_epoch_and_index_all_count() -> None:
    places = [(seed, epoch, index) for seed in (0, 1, -1, 2**64) for epoch in (0, 1) for index in (0, 1)]
    drawn = [Keyed(Augmented(), seed=seed)[Sample(index, epoch)][1:] for seed, epoch, index in places]
    assert len(torch.unique(torch.stack(drawn))) == len(places) * 6


def test_a_plain_index_counts_as_the_epoch_that_is_set() -> None:
    keyed = Keyed(Augmented())
    assert torch.equal(keyed[4], keyed[Sample(4, 0)])
    keyed.epoch = 3
    assert torch.equal(keyed[4], keyed[Sample(4, 3)])
    assert torch.equal(keyed[Sample(4, 0)], Keyed(Augmented())[4])


def test_keyed_is_the_data_set_in_all_else() -> None:
    keyed = Keyed(Augmented(), seed=4)
    assert len(keyed) == ITEMS
    assert keyed.classes == ("cat", "dog")
    assert not hasattr(keyed, "colours")
    assert not hasattr(keyed, "__colours__")
    assert len(Keyed([7, 8])) == 2
    assert Keyed([7, 8])[1] == 8


def test_keyed_is_pickled() -> None:
    keyed = Keyed(Augmented(), seed=4)
    keyed.epoch = 2
    for back in (pickle.loads(pickle.dumps(keyed)), copy.copy(keyed), copy.deepcopy(keyed)):
        assert (back.seed, back.epoch, len(back)) == (4, 2, ITEMS)
        assert torch.equal(back[5], keyed[5])


def test_keyed_around_a_subset() -> None:
    values = TensorDataset(torch.arange(20))
    assert Keyed(Subset(values, [5, 6, 7])).__getitems__([Sample(2, 0)])[0][0].item() == 7


def test_a_stream_is_refused() -> None:
    with pytest.raises(UsageError, match="Streamed is an IterableDataset"):
        Keyed(Streamed())


def numbers(seed: int, epoch: int, index: int) -> tuple[float, float, float]:
    python, numpy, pytorch = keyed_generators(seed, epoch, index)
    return python.random(), numpy.random(), torch.rand(1, generator=pytorch, dtype=torch.float64).item()


def test_keyed_generators_are_a_function_of_the_place() -> None:
    before = global_states()
    assert numbers(1, 2, 3) == numbers(1, 2, 3)
    places = [(1, 2, 3), (0, 2, 3), (1, 0, 3), (1, 2, 0), (3, 2, 1), (-1, 2, 3)]
    assert len({number for place in places for number in numbers(*place)}) == 18
    assert global_states() == before
