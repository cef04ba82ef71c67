"""What a checkpoint folder of transformers holds, sorted into the parts of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mementum.assemble import plain_fields
from mementum.errors import UnknownFormat, UsageError
from mementum.exchange.from_torch import Sorting, Taken
from mementum.exchange.reading import first_file, read_json, read_shards, read_torch, read_weights
from mementum.exchange.to_hf import BESIDE, CONFIG, USER_FIELD, WEIGHTS
from mementum.exchange.trees import is_module_state, is_optimizer_state

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SINGLE = (WEIGHTS, "pytorch_model.bin")
STATE = "trainer_state.json"
FACTS = ("best_metric", "best_model_checkpoint", "max_steps", "num_train_epochs", "total_flos")  # of a trainer's state
KNOWN = frozenset({CONFIG, STATE, "optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth", *SINGLE, *INDEXES})
LEFT = {
    "training_args.bin": "the arguments of the trainer are a pickle of its own class",
    **dict.fromkeys(BESIDE, "no state of training; an export takes it with --config FOLDER"),
}
SHOWN_MAX = 20  # unknown files that are named; a folder may have thousands


def is_folder_of_transformers(folder: Path) -> bool:
    return first_file(folder, (*SINGLE, *INDEXES)) is not None


def sort_folder(folder: Path, *, optimizer: str | None) -> Taken:
    """The parts of a folder. UnknownFormat if its weights cannot be read; what else cannot be is left out, and told."""
    sorting = Sorting("a checkpoint folder of transformers", optimizer=optimizer)
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    single = first_file(folder, SINGLE)
    index = first_file(folder, INDEXES)
    if single is not None:
        state = read_weights(single)
    elif index is not None:
        state = read_shards(index)
    else:
        raise UsageError(f"{folder} has no weights of transformers: {', '.join((*SINGLE, *INDEXES))}")
    if not is_module_state(state):
        raise UnknownFormat(f"the weights in {folder} are no state dict", next_command="copy the folder again")
    sorting.model(state)
    _optimizer(folder, sorting)
    _other(folder / "scheduler.pt", "scheduler", "stateful", sorting)
    _other(folder / "rng_state.pth", "rng", "value", sorting, arrays=True)
    _other(folder / "scaler.pt", "scaler", "stateful", sorting)
    sorting.left_out += _rest(folder)
    trainer = _trainer(folder / STATE, sorting)
    user: dict[str, Any] = {"trainer": plain_fields({key: trainer[key] for key in FACTS if key in trainer})}
    if config:
        user[USER_FIELD] = config
    return sorting.taken(step=trainer.get("global_step"), epoch=trainer.get("epoch"), user=user)


def _rest(folder: Path) -> list[str]:
    """The files and folders that nothing was taken from, and why."""
    shard = re.compile(r"(model|pytorch_model)-\d+-of-\d+\.(safetensors|bin)")
    names = sorted(path.name for path in folder.iterdir() if path.name not in KNOWN and not shard.fullmatch(path.name))
    lines = [f"{name}: {LEFT.get(name, 'it is not known what it is')}" for name in names]
    more = [f"and {len(lines) - SHOWN_MAX} more files"] if len(lines) > SHOWN_MAX else []
    return [*lines[:SHOWN_MAX], *more]


def _optimizer(folder: Path, sorting: Sorting) -> None:
    packed = _read(folder / "optimizer.pt", sorting)
    if packed is None:
        return
    if is_optimizer_state(packed):
        sorting.optimizer(packed)
    else:
        sorting.left_out.append("optimizer.pt: it is no state of an optimizer")


def _other(path: Path, name: str, kind: str, sorting: Sorting, *, arrays: bool = False) -> None:
    value = _read(path, sorting, arrays=arrays)
    if value is not None:
        sorting.other(name, value, kind=kind)


def _read(path: Path, sorting: Sorting, *, arrays: bool = False) -> Any:
    if not path.is_file():
        return None
    try:
        return read_torch(path, arrays=arrays)
    except UnknownFormat as error:
        sorting.left_out.append(f"{path.name}: {error.message}")
        return None


def _trainer(path: Path, sorting: Sorting) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        return read_json(path)
    except UnknownFormat as error:
        sorting.left_out.append(f"{path.name}: {error.message}")
        return {}
