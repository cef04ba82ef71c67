"""Exchanging: `mementum export` and `mementum import`, checkpoints from and for other programs."""

from __future__ import annotations

from collections.abc import Iterator

from mementum.cli.failing import OK, warn
from mementum.cli.reading import address_in, find, look, require_readable
from mementum.cli.text import as_json as rendered
from mementum.cli.text import counted, printable
from mementum.rooting import part_of


def export(
    root: str, address: str | None, *, to: str, form: str, model: str | None, config: str | None, as_json: bool
) -> int:
    """Make a folder of one checkpoint, and print what is in it; the exit code."""
    contents = look(root)
    for damage in contents.nameless:
        warn(f"warning: {damage.key}: {damage.what}")
    held = find(contents, address_in(contents, address))
    require_readable(held)
    from mementum.exchange.exporting import export as work  # torch, which takes seconds: only once there is work

    store = part_of(contents.root, held.home)
    done = work(held.entry, store, to=to, form=form, model=model, config=config)
    if as_json:
        fields = {
            "checkpoint": done.checkpoint,
            "task": held.task,
            "step": done.step,
            "form": done.form,
            "folder": done.folder,
            "files": list(done.files),
            "left_out": list(done.left_out),
            "notes": list(done.notes),
        }
        print(rendered(fields))
        return OK
    print(printable(f"checkpoint {done.checkpoint} of step {done.step} is in {done.folder} as {done.form}"))
    _print(f"  {name}" for name in done.files)
    _print(f"left out: {what}" for what in done.left_out)
    _print(f"note: {what}" for what in done.notes)
    return OK


def import_source(source: str, *, to: str, task: str, optimizer: str | None, as_json: bool) -> int:
    """Make a checkpoint of a foreign one, and print what was taken; the exit code."""
    from mementum.exchange.importing import import_checkpoint

    done = import_checkpoint(source, to=to, task=task, optimizer=optimizer)
    if as_json:
        fields = {
            "checkpoint": done.checkpoint,
            "task": done.task,
            "what": done.what,
            "step": done.step,
            "epoch": done.epoch,
            "granularity": done.granularity.name.lower(),
            "components": [{"name": name, "kind": kind} for name, kind in done.components],
            "left_out": list(done.left_out),
            "notes": list(done.notes),
        }
        print(rendered(fields))
        return OK
    where = "of an unknown step" if done.step is None else f"of step {done.step}"
    print(printable(f"{done.what} {where} is checkpoint {done.checkpoint} of task {done.task}"))
    print(f"it holds {counted(len(done.components), 'part')}: {done.granularity.name.lower().replace('_', ' ')}")
    _print(f"  {name} ({kind})" for name, kind in done.components)
    _print(f"left out: {what}" for what in done.left_out)
    _print(f"note: {what}" for what in done.notes)
    return OK


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        print(printable(line))
