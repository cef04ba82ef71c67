"""The comparison of two finished runs: every tensor, every other value and every loss, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from losslog import Lines

from mementum.catalog import tasks
from mementum.errors import CheckpointDamaged, NothingToResume
from mementum.events import Event
from mementum.format import typed_json
from mementum.live.tree import leaves, same
from mementum.opening import open_catalog
from mementum.records import Entry, record
from mementum.recover.load import Loaded, load
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore


@record
class Comparison:
    """What was compared, and what differs; nothing differs if the runs are bit for bit the same."""

    tensors: int
    values: int
    losses: int
    differences: tuple[str, ...]


def checkpoints(root: Path, task: str) -> tuple[Entry, ...]:
    """All checkpoints of a task, oldest first."""
    root = root.resolve()
    home = tasks.find(LocalStore(PosixDisk(), str(root)), task)
    if home is None:
        return ()
    catalog = open_catalog(root, emit=_ignore)
    try:
        return tuple(sorted(catalog.entries(home), key=lambda entry: entry.order))
    finally:
        catalog.close()


def last_checkpoint(root: Path, task: str) -> Loaded:
    """The newest checkpoint of a task, every byte proved. CheckpointDamaged if it is not whole."""
    root = root.resolve()
    found, home = checkpoints(root, task), tasks.find(LocalStore(PosixDisk(), str(root)), task)
    if not found or home is None:
        raise NothingToResume(f"{root} has no checkpoint of task {task!r}")
    entry = found[-1]
    loaded = load(LocalStore(PosixDisk(), f"{root}/{home}"), entry.folder, entry.manifest)
    if not isinstance(loaded, Loaded):
        raise CheckpointDamaged(entry.manifest.id, [(damage.key, damage.what) for damage in loaded])
    return loaded


def compare_runs(straight: Loaded, killed: Loaded, logs: tuple[Lines, Sequence[Lines]]) -> Comparison:
    """Compare the last checkpoints of both runs (weights, optimizer, generators, data position, schedule, counters),
    and the losses of the straight run with those of every attempt of the killed one, steps that were done twice too."""
    left, right = _tensors(straight), _tensors(killed)
    differences = [f"tensor {name} is in one run only" for name in sorted(left.keys() ^ right.keys())]
    differences += [f"tensor {name} differs" for name in left if name in right and not same(left[name], right[name])]
    values, others = _values(straight.context), _values(killed.context)
    differences += [
        f"{path} differs" for path in sorted(values.keys() | others.keys()) if values.get(path) != others.get(path)
    ]
    expected = dict(logs[0].losses)
    found = [pair for lines in logs[1] for pair in lines.losses]
    differences += [
        f"the loss of step {step} is {loss!r} and was {expected.get(step)!r} in the straight run"
        for step, loss in found
        if expected.get(step) != loss
    ]
    differences += [f"step {step} was never done" for step in sorted(expected.keys() - {step for step, _ in found})]
    return Comparison(tensors=len(left), values=len(values), losses=len(found), differences=tuple(differences))


def _tensors(loaded: Loaded) -> dict[str, torch.Tensor]:
    return {f"{part}:{name}": tensor for part, named in loaded.tensors.items() for name, tensor in named.items()}


def _values(context: Mapping[str, object]) -> dict[str, bytes]:
    """Every value of a context by its path, as the bytes that it is stored in. What was remembered of vital signs is
    left out: how long steps took is no part of the training."""
    training = {name: value for name, value in context.items() if name != "perceived"}
    return {path: typed_json.dumps(value) for path, value in leaves(training, "context")}


def _ignore(event: Event) -> None:
    """The catalog is read only, and has nothing to tell here."""
