"""Export: a checkpoint, or what of it another program understands, as a folder in that program's format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from mementum.errors import CheckpointDamaged, UsageError
from mementum.exchange import context_page, to_dcp, to_hf, to_torch
from mementum.exchange.folder import NewFolder, free_place, new_folder
from mementum.exchange.trees import module_state, named_state, optimizer_state, why_not_plain
from mementum.execute.plan import frozen_name, weights_name
from mementum.format.levels import standard_name
from mementum.format.weights import CODES
from mementum.live.modules import EXTRA_STATE
from mementum.live.tree import join, stored
from mementum.records import Buffer, Damage, DataFile, Entry, Manifest, record
from mementum.recover.load import Loaded, load
from mementum.recover.verify import Proved, examine, raw_blocks, read_manifest
from mementum.storage.disk import Disk, PosixDisk
from mementum.storage.store import Store

FORMS = ("safetensors", "hf", "torch", "dcp")
OF_THE_RUN = ("rng", "feed", "values")  # what a context has besides components
KEPT = "the checkpoint as it is, and all others; nothing was exported"
NEXT = "export another one: `mementum ls ROOT` lists them"


@record
class Exported:
    """What was made: the folder and its files, and what is not in it or may be otherwise, in words."""

    checkpoint: str
    step: int
    form: str
    folder: str
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


@record
class Made:
    """Remarks on what went into the folder."""

    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@record
class Source:
    """A checkpoint where it lies, and the one model of it that is wanted (None: all that the form can take)."""

    store: Store
    folder: str
    manifest: Manifest
    model: str | None


def export(
    entry: Entry,
    store: Store,
    *,
    to: str,
    form: str,
    model: str | None = None,
    config: str | None = None,
    disk: Disk | None = None,
) -> Exported:
    """Make the folder `to`, which is there whole or not at all, of the checkpoint `entry` in `store`.

    form: one of FORMS. model: this model alone. config: a file or folder for form `hf`.

    Raises UsageError before anything is written, CheckpointDamaged if a byte is not the one that was saved."""
    if form not in FORMS:
        raise UsageError(f"there is no form {form!r}", next_command=f"choose one of {', '.join(FORMS)}")
    if config is not None and form != "hf":
        raise UsageError(f"a configuration is for the form hf, not for {form}")
    free_place(to)
    source = Source(store=store, folder=entry.folder, manifest=_manifest(entry, store), model=model)
    with new_folder(to, PosixDisk() if disk is None else disk) as new:
        made = _put_parts(new, source, form) if form in ("torch", "dcp") else _put_weights(new, source, form, config)
        files = new.files
    return Exported(
        checkpoint=entry.manifest.id,
        step=entry.manifest.step,
        form=form,
        folder=new.final,
        files=files,
        left_out=made.left_out,
        notes=made.notes,
    )


def _put_weights(new: NewFolder, source: Source, form: str, config: str | None) -> Made:
    """The files of weights as they lie, every block proved on its way."""
    proved = _whole(examine(source.store, source.folder, source.manifest), source, Proved)
    names = _models(proved.context, source.model)
    beside: Mapping[str, bytes] = {}
    notes: list[str] = []
    if form == "hf":
        if len(names) > 1:
            raise UsageError(
                f"the checkpoint has {len(names)} models: {', '.join(names)}", next_command="choose one: --model NAME"
            )
        found = to_hf.configured(source.manifest.user, config)
        beside, notes = found.files, [f"the configuration is {found.origin}"]
    new.put(context_page.NAME, [context_page.render(source.manifest, proved.context)])
    for name in names:
        files = _files_of(proved, name, source)
        called = to_hf.shards(files) if form == "hf" else {file.name: standard_name(file.name) for file in files}
        for file in files:
            new.put(called[file.name], _proved_bytes(file, source, proved.index.bases))
        if len(files) > 1 and form == "hf":
            new.put(to_hf.SHARDS, [to_hf.render_shards(proved.index, called)])
        notes += _remarks(proved, name)
    for name, text in beside.items():
        new.put(name, [text])
    return Made(notes=tuple(notes))


def _proved_bytes(file: DataFile, source: Source, bases: Sequence[DataFile]) -> Iterator[Buffer]:
    for found in raw_blocks(source.store, source.folder, file, bases):
        if isinstance(found, Damage):
            raise _damaged(source, [found])
        yield found


def _files_of(proved: Proved, model: str, source: Source) -> tuple[DataFile, ...]:
    """The files that hold a model's weights: one, or two where a part of it is frozen, or one that is all frozen."""
    wanted = {weights_name(model)}
    if f"{model}.frozen" not in proved.context["components"]:  # else that name is the other model's
        wanted.add(frozen_name(model))
    files = tuple(file for file in proved.index.files if standard_name(file.name) in wanted)
    if not files:
        key = f"{source.folder}/{weights_name(model)}"
        raise _damaged(source, [Damage(key=key, what="the index names no such file")])
    return files


def _remarks(proved: Proved, model: str) -> Iterator[str]:
    """What readers of safetensors cannot know of a model from its file."""
    for tensor in proved.index.tensors:
        if tensor.component == model and tensor.dtype not in CODES:
            yield f"{model}.{tensor.name} is {tensor.dtype}, which the format lacks: it stands there as bytes (U8)"
    state = proved.context["components"][model]["state"]["state"]
    yield from (
        f"{model}.{key} is extra state of a module; it stands in no file of weights"
        for key in state
        if key.rpartition(".")[2] == EXTRA_STATE
    )


def _put_parts(new: NewFolder, source: Source, form: str) -> Made:
    """All parts as plain state dicts: for torch by position, for dcp by name."""
    loaded = _whole(load(source.store, source.folder, source.manifest), source, Loaded)
    held: Mapping[str, Any] = loaded.context["components"]
    wanted = tuple(held) if source.model is None else _models(loaded.context, source.model)
    content: dict[str, Any] = {}
    order: dict[str, tuple[tuple[str, ...], ...]] = {}
    left_out: list[str] = []
    notes: list[str] = []
    trees = {name: _tree(loaded, name, source) for name in held}
    states = {name: trees[name]["state"] for name in held if held[name]["kind"] == "module"}
    parameters = [f"{name}.{key}" for name, state in states.items() for key in state]
    for name in wanted:
        part = trees[name]
        if held[name]["kind"] == "module":
            part = module_state(part)
        elif held[name]["kind"] == "optimizer" and form == "torch":
            positional = optimizer_state(part, parameters)
            part, order[name] = positional.packed, positional.order
            notes += [f"{name}: {positional.doubt}"] if positional.doubt is not None else []
        elif held[name]["kind"] == "optimizer":
            part = named_state(part, tuple(states))
        why = why_not_plain(name, part)
        if why is None:
            content[name] = part
        else:
            left_out.append(f"{name}: {why}, which other programs could not read")
    for key, number in (("step", source.manifest.step), ("epoch", source.manifest.epoch)):
        content.setdefault(key, number)
    new.put(context_page.NAME, [context_page.render(source.manifest, loaded.context, order=order or None)])
    (to_torch if form == "torch" else to_dcp).write(new, content)
    left_out += [f"{name}: it stands in {context_page.NAME}" for name in OF_THE_RUN if loaded.context.get(name)]
    return Made(left_out=tuple(left_out), notes=tuple(notes))


def _models(context: Mapping[str, Any], name: str | None) -> tuple[str, ...]:
    """The models of a checkpoint, or the one that is wanted. UsageError says what there is instead."""
    held: Mapping[str, Any] = context["components"]
    models = tuple(each for each in held if held[each]["kind"] == "module")
    if name is None and not models:
        raise UsageError(f"the checkpoint holds no model; it holds: {', '.join(held) or 'nothing'}")
    if name is not None and name not in models:
        raise UsageError(f"the checkpoint has no model {name!r}; it has: {', '.join(models) or 'none'}")
    return models if name is None else (name,)


def _tree(loaded: Loaded, name: str, source: Source) -> Any:
    try:
        return join(
            loaded.context["components"][name]["state"], stored(loaded.tensors.get(name, {}), id=source.manifest.id)
        )
    except (RuntimeError, ValueError, TypeError, LookupError) as cause:
        what = f"a tensor of {name} cannot be put together: {cause}"
        raise _damaged(source, [Damage(key=source.folder, what=what)]) from cause


def _manifest(entry: Entry, store: Store) -> Manifest:
    """The manifest that lies there now: the catalog is a cache, the file decides."""
    found = read_manifest(store, entry.folder)
    if isinstance(found, Manifest) and found.id == entry.manifest.id:
        return found
    damage = found if isinstance(found, Damage) else Damage(key=entry.folder, what=f"it is checkpoint {found.id}")
    raise CheckpointDamaged(entry.manifest.id, [(damage.key, damage.what)], kept=KEPT, next_command=NEXT)


T = TypeVar("T", Proved, Loaded)


def _whole(found: T | tuple[Damage, ...], source: Source, kind: type[T]) -> T:
    if isinstance(found, kind):
        return found
    assert isinstance(found, tuple)
    raise _damaged(source, found)


def _damaged(source: Source, damage: Sequence[Damage]) -> CheckpointDamaged:
    findings = [(each.key, each.what) for each in damage]
    return CheckpointDamaged(source.manifest.id, findings, kept=KEPT, next_command=NEXT)
