"""Training data whose order and randomness are pure functions of a seed, an epoch and a place.

Nothing that has been read must be read again to find a place, and nothing depends on how many workers read or how
large the batches are. So a checkpoint holds six numbers, and a resume costs the same in the first epoch and the last.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset, Sampler

from mementum.errors import UsageError

# The names of the state's form and of its fields, as they stand in checkpoints: never change them.
KIND = "elastic"
FIELDS = ("kind", "seed", "length", "shuffle", "epoch", "position")

# Places that are worked out at once: an array of 16 KiB stays in the first-level cache, numpy's cost per call is spread
# over many samples (1 to 2 us for each of a million), and neither a start in mid-epoch nor the pause between two chunks
# is noticed (2 to 4 ms).
CHUNK = 2048

# The proof asks for a multiple of log2(n) rounds; six are ample for an order that nobody attacks. A few elements mix in
# few but lopsided rounds, so there is a floor, which brings the bias for two elements under 2 ** -24.
ROUNDS_PER_BIT = 6
ROUNDS_MIN = 24

# Keys of different uses never meet, even where seed, epoch and index are the same.
_ORDER, _SAMPLE = 1, 2

_MASK = 2**64 - 1
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SHIFTS = tuple(map(np.uint64, (30, 27, 31)))
_FACTORS = tuple(map(np.uint64, (_MIX_1, _MIX_2)))


class Sample(int):
    """A data set's index that knows the epoch it is drawn in. It is an int in every other respect."""

    epoch: int

    def __new__(cls, index: int, epoch: int) -> Self:
        sample = super().__new__(cls, index)
        sample.epoch = epoch
        return sample

    def __reduce__(self) -> tuple[type[Self], tuple[int, int]]:
        return type(self), (int(self), self.epoch)


def permuted(n: int, seed: int, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
    """The places `start` to `stop` of the epoch's shuffled order of `range(n)`: int64 of shape (stop - start,).

    A pure function in integer arithmetic: the same on every platform and with every version of numpy. Each place is
    worked out alone, by the swap-or-not shuffle (Hoang, Morris, Rogaway: An enciphering scheme based on a card shuffle,
    CRYPTO 2012), so memory and time depend on stop - start and, by the number of rounds, on log2(n) only.
    UsageError unless 0 <= start <= stop <= n and epoch >= 0.
    """
    if not (1 <= n < 2**63 and 0 <= start <= stop <= n and epoch >= 0):
        raise UsageError(f"there are no places {start} to {stop} in epoch {epoch} of {n} samples")
    rounds = max(ROUNDS_MIN, ROUNDS_PER_BIT * (n - 1).bit_length())
    stream = _stream(_key(_ORDER, seed, epoch), 2 * rounds)
    offsets, keys = stream[0::2] % np.uint64(n), stream[1::2]
    order = np.empty(stop - start, np.int64)
    for begin in range(start, stop, CHUNK):
        end = min(begin + CHUNK, stop)
        order[begin - start : end - start] = _swap_or_not(np.arange(begin, end, dtype=np.uint64), n, offsets, keys)
    return order


class ElasticSampler(Sampler[int]):
    """Draws every index once an epoch, in an order that is a function of (seed, epoch, position).

    `data` is the data set or its length. Iterating yields a `Sample` for every place from the present one to the
    epoch's end, and at the end moves on to the next epoch, so that it needs no help outside of a run. It does not move
    before: a loader that prefetches draws far more than the training has seen. Only the run knows the true place; it
    tells it by `seek`, and asks for the state of it by `state_at`.

    `len` is that of a whole epoch, wherever the sampler stands, so that `len(loader)` (learning rate schedules are
    made of it) is the same in a resumed run; the first epoch after a resume yields fewer than that.
    """

    def __init__(self, data: Sized | int, *, seed: int = 0, shuffle: bool = True) -> None:
        length = data if isinstance(data, int) else len(data)
        if length < 1:
            raise UsageError(f"there is nothing to draw from: the data set has {length} samples")
        self._length = int(length)
        self._seed = operator.index(seed)
        self._shuffle = bool(shuffle)
        self._epoch = 0
        self._position = 0

    @property
    def seed(self) -> int:
        return self._seed

    @property
    def shuffle(self) -> bool:
        return self._shuffle

    @property
    def epoch(self) -> int:
        """The epoch that is drawn next or now, from 0."""
        return self._epoch

    @property
    def position(self) -> int:
        """How many samples of the epoch are consumed: 0 to len(self). The end is a place of its own."""
        return self._position

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        # The place is taken here and not at the first draw, so that a later seek cannot move an iteration under way.
        return self._samples(self._seed, self._shuffle, self._epoch, self._position)

    def seek(self, epoch: int, position: int) -> None:
        """Say that `position` samples of `epoch` are consumed. What iterates already goes on as it was.

        From position len(self) the next iteration is empty and moves on to the next epoch; whoever has seen a loader
        end seeks (epoch + 1, 0).
        """
        self._epoch, self._position = self._checked(epoch, position)

    def state_dict(self) -> dict[str, Any]:
        """The present place as plain JSON: kind, seed, length, shuffle, epoch, position."""
        return self.state_at(self._epoch, self._position)

    def state_at(self, epoch: int, position: int) -> dict[str, Any]:
        """What `state_dict` would be at the given place; the sampler does not move."""
        epoch, position = self._checked(epoch, position)
        values = (KIND, self._seed, self._length, self._shuffle, epoch, position)
        return dict(zip(FIELDS, values, strict=True))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over seed, shuffle and place. UsageError, and no change, if the state is not of this data's length."""
        if state.get("kind") != KIND or not state.keys() >= set(FIELDS):
            raise UsageError(
                f"this is not the state of an ElasticSampler: kind {state.get('kind')!r}, fields {list(state)}",
                kept="the sampler, as it was",
                next_command="resume with the sampler that the checkpoint was written with",
            )
        if state["length"] != self._length:
            raise UsageError(
                f"the state is of a data set of {state['length']} samples, this one has {self._length}",
                kept="the sampler, as it was",
                next_command="resume with the same data, or leave the sampler's state out to start a new order",
            )
        epoch, position = self._checked(state["epoch"], state["position"])
        self._seed, self._shuffle = operator.index(state["seed"]), bool(state["shuffle"])
        self._epoch, self._position = epoch, position

    def _checked(self, epoch: int, position: int) -> tuple[int, int]:
        epoch, position = operator.index(epoch), operator.index(position)
        if epoch < 0 or not 0 <= position <= self._length:
            raise UsageError(f"there is no position {position} in epoch {epoch} of {self._length} samples")
        return epoch, position

    def _samples(self, seed: int, shuffle: bool, epoch: int, position: int) -> Iterator[int]:
        for start in range(position, self._length, CHUNK):
            stop = min(start + CHUNK, self._length)
            places = permuted(self._length, seed, epoch, start, stop).tolist() if shuffle else range(start, stop)
            for index in places:
                yield Sample(index, epoch)
        if self._epoch == epoch:  # where somebody has moved us to another epoch meanwhile, this end is not news
            self._epoch, self._position = epoch + 1, 0


class Keyed(Dataset[Any]):
    """A data set whose random augmentation depends on (seed, epoch, index) only.

    Workers, batch sizes and order do not matter, and a resume repeats it exactly. While `dataset[index]` runs, the
    global generators of `random`, `numpy.random` and torch (CPU) are seeded for that sample; afterwards they are what
    they were, also when it raises. Not meant for threads that draw from the global generators beside it, nor for
    random numbers drawn on a GPU or in a collate function.

    It must be the outermost data set: what is put around it (Subset, ConcatDataset) hands on plain integers. A plain
    integer counts as drawn in `self.epoch`, which is 0 unless you set it: with another sampler than ElasticSampler
    every epoch repeats the augmentation of the first one, unless `epoch` is set before each (persistent workers never
    see that).

    torch's CPU generator uses 32 bits of any seed, so among about 90,000 samples expect one pair with the same torch
    numbers.
    """

    def __init__(self, dataset: Dataset[Any] | Sequence[Any], *, seed: int = 0) -> None:
        if isinstance(dataset, IterableDataset):
            raise UsageError(
                f"{type(dataset).__name__} is an IterableDataset: its samples have no index to key random numbers by",
                next_command="use a data set with __getitem__ and __len__, or draw from keyed_generators in it",
            )
        self.dataset = dataset
        self.seed = operator.index(seed)
        self.epoch = 0
        self._numpy_source = np.random.MT19937(0)

    def __getitem__(self, sample: int) -> Any:
        index = operator.index(sample)
        epoch = sample.epoch if isinstance(sample, Sample) else self.epoch
        for_python, for_numpy, for_torch = _keys(self.seed, epoch, index)
        python_state = random.getstate()
        torch_state = torch.default_generator.get_state()
        # numpy copies a state number by number (60 us each way), so the whole source is exchanged instead. That
        # forgets the second half of a normal pair, the one thing that has to be put back by value, and it is rare.
        numpy_state = np.random.get_state(legacy=False)
        numpy_source = np.random.get_bit_generator()  # type: ignore[attr-defined]
        try:
            np.random.set_bit_generator(self._numpy_source)  # type: ignore[attr-defined]
            np.random.seed([for_numpy & 0xFFFFFFFF, for_numpy >> 32])
            random.seed(for_python)
            torch.default_generator.manual_seed(for_torch)
            return self.dataset[index]
        finally:
            np.random.set_bit_generator(numpy_source)  # type: ignore[attr-defined]
            if numpy_state["has_gauss"]:
                np.random.set_state(numpy_state)
            random.setstate(python_state)
            torch.default_generator.set_state(torch_state)

    def __getitems__(self, samples: Iterable[int]) -> list[Any]:
        # torch's loader asks for whole batches where it can; the wrapped data set's own would not be keyed.
        return [self[sample] for sample in samples]

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        # Special methods are ours or nobody's, and while a pickle is read there is no data set to ask yet.
        if name == "dataset" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return getattr(self.dataset, name)


def keyed_generators(seed: int, epoch: int, index: int) -> tuple[random.Random, np.random.Generator, torch.Generator]:
    """Three generators for one sample, functions of (seed, epoch, index) only, for data sets that take generators.

    They are of their own: their numbers are not those that Keyed's global generators give.
    """
    for_python, for_numpy, for_torch = _keys(seed, epoch, index)
    return random.Random(for_python), np.random.default_rng(for_numpy), torch.Generator().manual_seed(for_torch)


def _swap_or_not(
    places: NDArray[np.uint64], n: int, offsets: NDArray[np.uint64], keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Where each place of range(n) goes: every round pairs x with (offset - x) mod n and tosses a coin per pair."""
    modulus = np.uint64(n)
    for offset, key in zip(offsets, keys, strict=True):
        partners = offset - places
        np.minimum(partners, partners + modulus, out=partners)  # what wrapped around below 0 comes back by adding n
        coins = np.maximum(places, partners)
        coins ^= key
        signs = _mixed(coins).view(np.int64)
        signs >>= 63  # of a signed number: all bits set, or none
        partners ^= places
        partners &= coins
        places ^= partners
    return places


def _keys(seed: int, epoch: int, index: int) -> tuple[int, int, int]:
    """A key of 64 bits for each of the three generators; from one key, two Mersenne twisters would be twins."""
    key = _key(_SAMPLE, seed, epoch, index)
    return _mix(key + _GOLDEN), _mix(key + 2 * _GOLDEN), _mix(key + 3 * _GOLDEN)


def _key(use: int, *numbers: int) -> int:
    """64 bits that depend on every bit of the numbers, which may have any size and sign."""
    key = use
    for number in numbers:
        key = _mix((key + _GOLDEN) ^ (number & _MASK))
        rest = number >> 64
        while rest not in (0, -1):
            key = _mix((key + _GOLDEN) ^ (rest & _MASK))
            rest >>= 64
        key = _mix((key + _GOLDEN) ^ (rest & _MASK))
    return key


def _stream(key: int, count: int) -> NDArray[np.uint64]:
    """The splitmix64 stream (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014)."""
    return _mixed(np.uint64(key) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN))


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`_mix` of every word, in place."""
    words ^= words >> _SHIFTS[0]
    words *= _FACTORS[0]
    words ^= words >> _SHIFTS[1]
    words *= _FACTORS[1]
    words ^= words >> _SHIFTS[2]
    return words


def _mix(word: int) -> int:
    """splitmix64's finaliser: a bijection of 64-bit words in which every bit in moves every bit out."""
    word &= _MASK
    word = (word ^ (word >> 30)) * _MIX_1 & _MASK
    word = (word ^ (word >> 27)) * _MIX_2 & _MASK
    return word ^ (word >> 31)
