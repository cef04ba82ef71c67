"""Import: a checkpoint of another program, recognised by its content, as a checkpoint of ours."""

from __future__ import annotations

import os
from pathlib import Path

from mementum.assemble import plain_fields, retention_of
from mementum.catalog import tasks
from mementum.errors import UsageError
from mementum.exchange.from_folder import is_folder_of_transformers, sort_folder
from mementum.exchange.from_torch import Sorting, Taken, sort_torch
from mementum.exchange.reading import is_safetensors, is_torch_file, read_safetensors, read_torch
from mementum.functional import Wanted, save_components
from mementum.opening import TASK_MAX, root_folder
from mementum.records import Granularity, record
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

FORMS = "a file of torch.save, a .safetensors file, a Lightning .ckpt, or a checkpoint folder of transformers"
DCP = ".metadata"  # what tells a folder of torch.distributed.checkpoint


@record
class Imported:
    """The checkpoint that was made, what went into it, and what did not, in words."""

    checkpoint: str
    task: str
    what: str
    step: int | None
    epoch: int | None
    granularity: Granularity
    components: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def import_checkpoint(source: str, *, to: str, task: str, optimizer: str | None = None) -> Imported:
    """Make a checkpoint of `task` in the root `to` of the foreign one at `source`. Nothing in it is run.

    optimizer: the class of the optimizer, where the file does not tell it.

    Raises UsageError if `source` is nothing that can be imported, UnknownFormat if it cannot be read or holds more than
    tensors and plain values, SaveFailed if the root does not take it. The root is not touched before it is read."""
    root = root_folder(to)
    if not task or len(task) > TASK_MAX or not task.isprintable():
        raise UsageError(f"a task's name has 1 to {TASK_MAX} printable characters, got {task[:60]!r}")
    path = _existing(source)
    taken = sort(path, optimizer=optimizer)
    kinds = {component.kind for component in taken.components}
    granularity = Granularity.WEIGHTS_AND_OPTIMIZER if "optimizer" in kinds else Granularity.WEIGHTS
    wanted = Wanted(
        task=task,
        step=taken.step or 0,
        epoch=taken.epoch or 0,
        reason=f"imported from {path.name}",
        granularity=granularity,
        retention=retention_of(None, None),  # an import takes nothing away
        codec="raw",
        user=plain_fields({"imported": {"from": path.name, "what": taken.what}, **taken.user}),
    )
    id = save_components(root, taken.components, wanted).result()
    return Imported(
        checkpoint=id,
        task=task,
        what=taken.what,
        step=taken.step,
        epoch=taken.epoch,
        granularity=granularity,
        components=tuple((component.name, component.kind) for component in taken.components),
        left_out=taken.left_out,
        notes=taken.notes,
    )


def sort(path: Path, *, optimizer: str | None = None) -> Taken:
    """What a file or folder gives, recognised by its content. UsageError says what can be imported."""
    if path.is_dir():
        if is_folder_of_transformers(path):
            return sort_folder(path, optimizer=optimizer)
        raise UsageError(f"{path} is no folder that can be imported{_why_no_folder(path)}", next_command=_give())
    if is_safetensors(path):
        sorting = Sorting("a safetensors file", optimizer=optimizer)
        sorting.model(dict(read_safetensors(path)))
        return sorting.taken()
    if is_torch_file(path):
        return sort_torch(read_torch(path), optimizer=optimizer)
    raise UsageError(f"{path} is no file that can be imported", next_command=_give())


def _existing(source: str) -> Path:
    if not source or "\0" in source or "://" in source:
        raise UsageError(f"{source!r} is no path", next_command=_give())
    path = Path(os.path.abspath(os.path.expanduser(source)))
    if not (path.is_dir() or path.is_file()):
        raise UsageError(f"there is no file or folder {path}", next_command=_give())
    return path


def _why_no_folder(path: Path) -> str:
    if (path / DCP).is_file():
        return ": the metadata of torch.distributed.checkpoint is a pickle; make a file of torch.save of it first"
    if any(tasks.tasks(LocalStore(PosixDisk(), str(path)))):
        return ": it is a root of mementum already"
    return ""


def _give() -> str:
    return f"give {FORMS}"
