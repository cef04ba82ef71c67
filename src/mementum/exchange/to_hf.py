"""An export for transformers: weights as model.safetensors, with the configuration that from_pretrained wants."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mementum.errors import UnknownFormat, UsageError
from mementum.exchange.reading import read_json
from mementum.records import DataFile, Index, record

WEIGHTS = "model.safetensors"
SHARDS = "model.safetensors.index.json"  # says which file has which tensor, where there are several
CONFIG = "config.json"
USER_FIELD = "hf_config"  # open_run(user={"hf_config": model.config.to_json_string()})

# What stands beside a configuration and goes with it: how to generate, and the tokenizer.
BESIDE = (
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)


@record
class Configured:
    """The files that stand beside the weights, by name, and where the configuration came from."""

    files: Mapping[str, bytes]
    origin: str


def shards(files: Sequence[DataFile]) -> dict[str, str]:
    """What each file of a model is called in the export, by the name that it has in the checkpoint."""
    if len(files) == 1:
        return {files[0].name: WEIGHTS}
    return {
        file.name: f"model-{number:05d}-of-{len(files):05d}.safetensors" for number, file in enumerate(files, start=1)
    }


def render_shards(index: Index, called: Mapping[str, str]) -> bytes:
    """The table of tensors and files that `from_pretrained` reads."""
    held = [tensor for tensor in index.tensors if tensor.file in called]
    table = {
        "metadata": {"total_size": sum(tensor.size for tensor in held)},
        "weight_map": {tensor.name: called[tensor.file] for tensor in held},
    }
    return json.dumps(table, indent=2).encode()


def configured(user: Mapping[str, Any], config: str | None) -> Configured:
    """The configuration that was given, or the one that the program has put into the checkpoint."""
    if config is not None:
        return _given(Path(config))
    held = user.get(USER_FIELD)
    if held is None:
        raise UsageError(
            "the checkpoint has no configuration for transformers",
            next_command=f"pass one: --config FILE or --config FOLDER (the folder of the model that training began "
            f'from); or save it from now on: open_run(user={{"{USER_FIELD}": model.config.to_json_string()}})',
        )
    try:
        value = json.loads(held) if isinstance(held, str) else held
    except ValueError:
        value = None
    if not isinstance(value, Mapping):
        raise UsageError(f"user.{USER_FIELD} in the checkpoint is no configuration", next_command="pass --config FILE")
    text = json.dumps(value, indent=2, allow_nan=False).encode()
    return Configured(files={CONFIG: text}, origin=f"user.{USER_FIELD} of the checkpoint")


def _given(path: Path) -> Configured:
    file = path / CONFIG if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"there is no configuration {file}", next_command="pass --config FILE, a config.json")
    try:
        read_json(file)
    except UnknownFormat as cause:
        raise UsageError(f"{file} is not a configuration: {cause.message}") from cause
    files = {CONFIG: file.read_bytes()}
    if path.is_dir():
        files |= {name: (path / name).read_bytes() for name in BESIDE if (path / name).is_file()}
    return Configured(files=files, origin=str(file))
