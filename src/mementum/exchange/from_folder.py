"""What a checkpoint folder of transformers holds, sorted into the parts of a checkpoint."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mementum.assemble import plain_fields
from mementum.errors import UnknownFormat, UsageError
from mementum.exchange.from_torch import Sorting, Taken
from mementum.exchange.reading import first_file, read_json, read_shards, read_torch, read_weights
from mementum.exchange.to_hf import CONFIG, USER_FIELD, WEIGHTS
from mementum.exchange.trees import is_module_state, is_optimizer_state

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SINGLE = (WEIGHTS, "pytorch_model.bin")
STATE = "trainer_state.json"
FACTS = ("best_metric", "best_model_checkpoint", "max_steps", "num_train_epochs", "total_flos")  # of a trainer's state
LAYERS_MAX = 1000  # of a model that is made to learn its names; a hostile configuration may ask for millions
# What is not state of training, or is made again from what is.
NOT_TAKEN = {
    "training_args.bin": "the arguments of the trainer are a pickle of its own class",
    "scaler.pt": "the state of the loss scaler is not taken",
}


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
    sorting.model(_with_tied(state, config, sorting))
    _optimizer(folder, sorting)
    _other(folder / "scheduler.pt", "scheduler", "stateful", sorting)
    _other(folder / "rng_state.pth", "rng", "value", sorting, arrays=True)
    sorting.left_out += [f"{name}: {why}" for name, why in NOT_TAKEN.items() if (folder / name).exists()]
    trainer = _trainer(folder / STATE, sorting)
    user: dict[str, Any] = {"trainer": plain_fields({key: trainer[key] for key in FACTS if key in trainer})}
    if config:
        user[USER_FIELD] = config
    return sorting.taken(step=trainer.get("global_step"), epoch=trainer.get("epoch"), user=user)


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


def _with_tied(state: dict[str, Any], config: Mapping[str, Any], sorting: Sorting) -> dict[str, Any]:
    """The state dict with the names of tied weights that the file has once: a live model's state dict has them all.

    Which they are is known to the model's class only, so it is made without weights, where transformers is there."""
    architectures = config.get("architectures")
    if not (config.get("tie_word_embeddings", True) and isinstance(architectures, list) and len(architectures) == 1):
        return state
    large = any(type(value) is int and "layer" in key and value > LAYERS_MAX for key, value in config.items())
    tied = None if large else _tied_names(str(architectures[0]), config)
    if tied is None:
        sorting.notes.append("model: which of its weights are tied is not known here; load it with fit='partial'")
        return state
    whole = dict(state)
    for names in tied:
        held = [name for name in names if name in state]
        whole |= {name: state[held[0]] for name in names if held and name not in state}
    added = sorted(whole.keys() - state.keys())
    if added:
        sorting.notes.append(f"model: {', '.join(added)} stood in the file once, under the name it is tied to")
    return whole


def _tied_names(architecture: str, config: Mapping[str, Any]) -> list[list[str]] | None:
    """The names that share one parameter, for each that has several. None where that cannot be found out."""
    try:
        transformers = importlib.import_module("transformers")
        cls: Any = getattr(transformers, architecture, None)
        if not issubclass(cls, transformers.PreTrainedModel):  # a TypeError where it is no class at all
            return None
        torch = importlib.import_module("torch")
        with torch.device("meta"):
            model: Any = cls(cls.config_class.from_dict(dict(config)))
            model.tie_weights()
    except (ImportError, RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
        return None  # a class that is not of this version, or a configuration that it does not take
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [several for several in names.values() if len(several) > 1]
