"""The order of the data: frozen, uniform, and the same after a resume at any place."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from mementum.data import CHUNK, ROUNDS_MIN, ElasticSampler, Sample, permuted
from mementum.errors import UsageError

ITEMS, EPOCHS, BATCH = 10, 3, 2
FORK = {0: None, 2: "fork"}  # torch refuses a way to start workers where there are none

# What the first release draws. These lists never change: a checkpoint holds a place in them.
GOLDEN = (
    [0, 3, 6, 9, 2, 4, 5, 7, 1, 8],
    [5, 3, 9, 6, 4, 7, 1, 0, 2, 8],
    [6, 0, 4, 2, 5, 1, 9, 7, 8, 3],
)
GOLDEN_LARGE = "fd9ef90914772ea6d4de925093bf4178eba741e528deb50fc0366597d801bbf9"


class Counted(Dataset[int]):
    """Gives back the index, and remembers what it was asked for."""

    def __init__(self, length: int = ITEMS) -> None:
        self.length = length
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.asked.append(index)
        return index


def flat(lists: list[list[int]]) -> list[int]:
    return [number for numbers in lists for number in numbers]


def batches(sampler: ElasticSampler, dataset: Dataset[Any] | None = None, **options: Any) -> list[list[int]]:
    """One epoch's batches."""
    loader = DataLoader(dataset or Counted(len(sampler)), batch_size=BATCH, sampler=sampler, **options)
    return [batch.tolist() for batch in loader]


def scalar_order(n: int, seed: int, epoch: int) -> list[int]:
    """The order once more, place by place in plain integers, as the paper states the shuffle."""
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    assert mix(golden) == 0xE220A8397B1DCDAF  # the published first number of splitmix64 from 0
    key = 1
    for word in (seed, 0, epoch, 0):
        key = mix(((key + golden) & mask) ^ word)
    rounds = max(24, 6 * (n - 1).bit_length())
    stream = [mix((key + i * golden) & mask) for i in range(1, 2 * rounds + 1)]
    order = []
    for place in range(n):
        x = place
        for offset, coin in zip(stream[0::2], stream[1::2], strict=True):
            partner = (offset % n - x) % n
            x = partner if mix(max(x, partner) ^ coin) >> 63 else x
        order.append(x)
    return order


# The order


@pytest.mark.parametrize("epoch", range(EPOCHS))
def test_the_order_of_the_first_release_stays(epoch: int) -> None:
    assert permuted(10, 0, epoch, 0, 10).tolist() == GOLDEN[epoch]
    assert permuted(10, 0, epoch, 0, 10).dtype == np.int64


def test_the_large_order_of_the_first_release_stays() -> None:
    order = permuted(100_003, 0, 0, 0, 100_003)
    assert hashlib.sha256(order.astype("<i8").tobytes()).hexdigest() == GOLDEN_LARGE
    assert np.array_equal(np.sort(order), np.arange(100_003))


@pytest.mark.parametrize("n", [1, 2, 3, 10, 64, 65, 257])
def test_the_order_is_the_published_shuffle(n: int) -> None:
    assert permuted(n, 5, 3, 0, n).tolist() == scalar_order(n, 5, 3)


def test_every_length_is_permuted() -> None:
    for n in range(1, 301):
        assert sorted(permuted(n, 7, n % 5, 0, n).tolist()) == list(range(n)), n


def test_lengths_near_the_limit_stay_in_range() -> None:
    n = 2**63 - 1
    ends = np.concatenate([permuted(n, 0, 0, 0, 50), permuted(n, 0, 0, n - 50, n)])
    assert len(set(ends.tolist())) == 100
    assert 0 <= ends.min() <= ends.max() < n


def test_a_slice_is_a_slice_of_the_whole() -> None:
    n = 3 * CHUNK + 17
    whole = permuted(n, 11, 4, 0, n)
    places = random.Random(0)
    cuts = [(0, 0), (n, n), (n - 1, n), (CHUNK - 1, CHUNK + 1), (CHUNK, 2 * CHUNK)]
    cuts += [tuple(sorted(places.sample(range(n + 1), 2))) for _ in range(20)]
    for start, stop in cuts:
        assert np.array_equal(permuted(n, 11, 4, start, stop), whole[start:stop]), (start, stop)


def test_epochs_and_seeds_differ() -> None:
    seeds = (0, 1, -1, 2**31, 2**63, 2**64 - 1, 2**64, -(2**64), 2**64 + 1, 2**200)
    orders = {tuple(permuted(50, seed, epoch, 0, 50).tolist()) for seed in seeds for epoch in range(20)}
    assert len(orders) == len(seeds) * 20


def chi_square(counts: list[int]) -> float:
    expected = sum(counts) / len(counts)
    return sum((count - expected) ** 2 / expected for count in counts)


def test_the_first_place_is_uniform() -> None:
    firsts = Counter(int(permuted(7, seed, epoch, 0, 1)[0]) for seed in range(20) for epoch in range(100))
    assert len(firsts) == 7
    assert chi_square(list(firsts.values())) < 22.5  # 6 degrees of freedom: 1 in 1000 would be larger


def test_all_orders_of_four_are_equally_likely() -> None:
    orders = Counter(tuple(permuted(4, 3, epoch, 0, 4).tolist()) for epoch in range(2400))
    assert len(orders) == 24
    assert chi_square(list(orders.values())) < 49.8  # 23 degrees of freedom: 1 in 1000 would be larger


def test_two_samples_are_swapped_half_of_the_time() -> None:
    swapped = sum(int(permuted(2, 0, epoch, 0, 1)[0]) for epoch in range(1000))
    assert 450 < swapped < 550
    assert ROUNDS_MIN >= 24


def test_neighbours_in_a_long_order_are_strangers() -> None:
    order = permuted(10_000, 0, 0, 0, 10_000)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.04
    assert abs(np.corrcoef(order, permuted(10_000, 0, 1, 0, 10_000))[0, 1]) < 0.04


@pytest.mark.parametrize(
    ("n", "epoch", "start", "stop"),
    [(0, 0, 0, 0), (2**63, 0, 0, 1), (5, -1, 0, 5), (5, 0, 3, 2), (5, 0, 0, 6), (5, 0, -1, 2)],
)
def test_places_that_do_not_exist_are_refused(n: int, epoch: int, start: int, stop: int) -> None:
    with pytest.raises(UsageError, match="there are no places"):
        permuted(n, 0, epoch, start, stop)


# The sampler


def test_outside_of_a_run_every_epoch_has_its_own_order() -> None:
    sampler = ElasticSampler(Counted())
    assert [list(sampler) for _ in range(EPOCHS)] == list(GOLDEN)
    assert (sampler.epoch, sampler.position) == (EPOCHS, 0)


def test_an_iteration_does_not_move_the_sampler_before_its_end() -> None:
    sampler = ElasticSampler(ITEMS)
    samples = iter(sampler)
    assert [next(samples) for _ in range(4)] == GOLDEN[0][:4]
    assert (sampler.epoch, sampler.position) == (0, 0)


def test_seek_does_not_disturb_an_iteration_under_way() -> None:
    sampler = ElasticSampler(ITEMS)
    samples = iter(sampler)
    sampler.seek(0, 2)
    assert list(samples) == GOLDEN[0]
    assert (sampler.epoch, sampler.position) == (1, 0)


def test_the_end_of_an_old_iteration_does_not_move_a_sampler_that_was_sought_elsewhere() -> None:
    sampler = ElasticSampler(ITEMS)
    samples = iter(sampler)
    next(samples)
    sampler.seek(5, 3)
    assert list(samples) == GOLDEN[0][1:]
    assert (sampler.epoch, sampler.position) == (5, 3)


def test_samples_know_their_epoch() -> None:
    sampler = ElasticSampler(ITEMS)
    sampler.seek(2, 7)
    drawn = list(sampler)
    assert drawn == GOLDEN[2][7:]
    assert [sample.epoch for sample in drawn] == [2, 2, 2]


def test_without_shuffle_the_order_is_the_data_s() -> None:
    sampler = ElasticSampler(CHUNK + 5, shuffle=False)
    sampler.seek(1, CHUNK - 1)
    drawn = list(sampler)
    assert drawn == list(range(CHUNK - 1, CHUNK + 5))
    assert {sample.epoch for sample in drawn} == {1}


def test_iteration_crosses_chunks() -> None:
    n = 2 * CHUNK + 3
    assert list(ElasticSampler(n, seed=9)) == permuted(n, 9, 0, 0, n).tolist()


def test_the_length_stays_that_of_an_epoch() -> None:
    sampler = ElasticSampler(ITEMS)
    loader = DataLoader(Counted(), batch_size=3, sampler=sampler)
    sampler.seek(1, 8)
    assert len(sampler) == ITEMS
    assert len(loader) == 4
    assert len(list(loader)) == 1


def test_a01_stop_after_every_step_and_resume() -> None:
    """Resuming in epoch 2 or later must not replay the order of epoch 1."""
    sampler = ElasticSampler(ITEMS, seed=1)
    straight = [batch for _ in range(EPOCHS) for batch in batches(sampler)]
    assert len(straight) == 15
    assert len({tuple(batch) for batch in straight}) > 5
    saved = ElasticSampler(ITEMS, seed=1).state_dict()
    done: list[list[int]] = []
    while len(done) < len(straight):
        sampler = ElasticSampler(ITEMS, seed=99)  # a new process; everything comes from the state
        sampler.load_state_dict(json.loads(json.dumps(saved)))
        loader = DataLoader(Counted(), batch_size=BATCH, sampler=sampler)
        for step, batch in enumerate(loader):
            if step == 1:
                break
            done.append(batch.tolist())
            saved = sampler.state_at(sampler.epoch, sampler.position + len(batch))
        else:
            saved = sampler.state_dict()
    assert done == straight


def test_a01_any_place_leads_to_the_same_end() -> None:
    sampler = ElasticSampler(ITEMS, seed=1)
    straight = [batch for _ in range(EPOCHS) for batch in batches(sampler)]
    for step in range(len(straight) + 1):
        sampler = ElasticSampler(ITEMS, seed=1)
        sampler.seek(*divmod(step * BATCH, ITEMS))
        rest = [batch for _ in range(EPOCHS - sampler.epoch) for batch in batches(sampler)]
        assert straight[:step] + rest == straight


def test_a02_the_end_of_an_epoch_is_a_place() -> None:
    """A state taken after an epoch's last batch comes back as it was, and the next epoch is whole and new."""
    saved = ElasticSampler(ITEMS).state_at(0, ITEMS)
    sampler = ElasticSampler(ITEMS)
    sampler.load_state_dict(saved)
    assert sampler.state_dict() == saved
    assert batches(sampler) == []
    assert (sampler.epoch, sampler.position) == (1, 0)
    assert flat(batches(sampler)) == GOLDEN[1]


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # other tests may have left threads behind
@pytest.mark.parametrize("workers", [0, 2])
def test_a02_the_run_seeks_behind_a_prefetching_loader(workers: int) -> None:
    """A loader with workers exhausts the sampler before the last batches are trained on; seek has the last word."""
    sampler = ElasticSampler(ITEMS)
    loader = DataLoader(
        Counted(), batch_size=BATCH, sampler=sampler, num_workers=workers, multiprocessing_context=FORK[workers]
    )
    seen: list[int] = []
    for epoch in range(2):
        for step, batch in enumerate(loader, start=1):
            seen += batch.tolist()
            sampler.seek(epoch, step * BATCH)
            assert sampler.state_dict()["position"] == step * BATCH
        sampler.seek(epoch + 1, 0)
    assert seen == GOLDEN[0] + GOLDEN[1]


def test_a28_a_resume_reads_nothing_again() -> None:
    sampler = ElasticSampler(100_003, seed=3)
    sampler.seek(7, 100_003 - 11)
    dataset = Counted(100_003)
    drawn = flat(batches(sampler, dataset))
    assert len(dataset.asked) == 11
    assert dataset.asked == drawn == permuted(100_003, 3, 7, 100_003 - 11, 100_003).tolist()


def test_another_batch_size_and_drop_last_go_on_at_the_same_sample() -> None:
    sampler = ElasticSampler(ITEMS)
    sampler.seek(0, 4)
    loader = DataLoader(Counted(), batch_size=4, sampler=sampler, drop_last=True)
    assert [batch.tolist() for batch in loader] == [GOLDEN[0][4:8]]
    assert (sampler.epoch, sampler.position) == (1, 0)
    assert [batch.tolist() for batch in loader] == [GOLDEN[1][:4], GOLDEN[1][4:8]]
    assert (sampler.epoch, sampler.position) == (2, 0)


def test_the_state_is_plain_json() -> None:
    sampler = ElasticSampler(ITEMS, seed=int(np.int64(-5)), shuffle=False)
    sampler.seek(np.int64(3), np.int64(4))  # type: ignore[arg-type]
    state = sampler.state_dict()
    assert state == {"kind": "elastic", "seed": -5, "length": 10, "shuffle": False, "epoch": 3, "position": 4}
    assert [type(value) for value in state.values()] == [str, int, int, bool, int, int]
    assert json.loads(json.dumps(state)) == state
    other = ElasticSampler(ITEMS, seed=8)
    other.load_state_dict(state)
    assert (other.seed, other.shuffle, other.epoch, other.position) == (-5, False, 3, 4)
    assert other.state_dict() == state


def test_state_at_does_not_move() -> None:
    sampler = ElasticSampler(ITEMS, seed=2**80)
    assert sampler.state_at(4, 10) == sampler.state_dict() | {"epoch": 4, "position": 10}
    assert (sampler.epoch, sampler.position) == (0, 0)


def test_a_state_of_other_data_is_refused_and_changes_nothing() -> None:
    sampler = ElasticSampler(ITEMS, seed=1)
    sampler.seek(1, 2)
    before = sampler.state_dict()
    with pytest.raises(UsageError, match="data set of 11 samples, this one has 10"):
        sampler.load_state_dict(ElasticSampler(11, seed=2).state_dict())
    with pytest.raises(UsageError, match="not the state of an ElasticSampler: kind 'other'"):
        sampler.load_state_dict(before | {"kind": "other"})
    with pytest.raises(UsageError, match="not the state of an ElasticSampler"):
        sampler.load_state_dict({"kind": "elastic", "length": ITEMS})
    with pytest.raises(UsageError, match="no position 11 in epoch 1 of 10"):
        sampler.load_state_dict(before | {"position": 11, "seed": 5})
    assert sampler.state_dict() == before


@pytest.mark.parametrize(("epoch", "position"), [(-1, 0), (0, -1), (0, 11)])
def test_a_place_that_does_not_exist_is_refused(epoch: int, position: int) -> None:
    sampler = ElasticSampler(ITEMS)
    with pytest.raises(UsageError, match=f"no position {position} in epoch {epoch}"):
        sampler.seek(epoch, position)
    with pytest.raises(UsageError, match=f"no position {position} in epoch {epoch}"):
        sampler.state_at(epoch, position)


@pytest.mark.parametrize("data", [0, [], Counted(0)])
def test_no_data_is_refused(data: Any) -> None:
    with pytest.raises(UsageError, match="nothing to draw from"):
        ElasticSampler(data)


# Sample


def test_a_sample_is_an_int_with_an_epoch() -> None:
    sample = Sample(3, 4)
    assert (sample, sample.epoch, hash(sample), str(sample)) == (3, 4, hash(3), "3")
    assert "abcdef"[sample] == "d"
    assert torch.arange(6)[sample].item() == 3
    assert np.arange(6)[sample] == 3


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_sample_is_pickled_with_its_epoch(protocol: int) -> None:
    back = pickle.loads(pickle.dumps(Sample(2**40, 7), protocol))
    assert (type(back), back, back.epoch) == (Sample, 2**40, 7)
    assert copy.deepcopy(back).epoch == 7
