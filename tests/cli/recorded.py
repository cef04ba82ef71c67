"""A root whose checkpoints are of the steps 2, 4 and 6 gets vital signs, facts and decisions that a test knows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mementum.catalog import facts
from mementum.cli.recalling import DECISIONS
from mementum.format import manifest as manifests
from mementum.format import vitals
from mementum.records import Fact, Manifest, Vitals

WHEN = "2026-11-30T06:10:09.000000Z"


def home(root: Path) -> Path:
    (found,) = root.glob("*/byte-gpt_*")
    return found


def forget(root: Path) -> None:
    """Take away what the run that made the root has recorded of itself, so that only what the test tells is there."""
    for path in home(root).glob("vitals/*"):
        path.unlink()
    for journal in home(root).glob("journal/*"):
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(line for line in lines if json.loads(line)["kind"] not in {*DECISIONS, "cost"}))
    for cache in root.glob("catalog.db*"):
        cache.unlink()


def row(step: int, **values: Any) -> Vitals:
    """Every step takes half a second, and its loss is one over its number."""
    usual = {"loss": 1 / step, "loss_z": 0.5, "grad_norm": 2.0, "lr": 0.01, "memory_used": 0.25, "step_s": 0.5}
    given: dict[str, Any] = {"at_s": step / 2, **usual, **values}
    return Vitals(step=step, **given)


def write(root: Path, attempt: int, rows: list[Vitals]) -> Path:
    path = home(root) / vitals.key(attempt)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(vitals.begin() + b"".join(vitals.chunk([vitals.row(one)]) for one in rows))
    return path


def tell(root: Path, attempt: int, kind: str, step: int | None, checkpoint: str | None = None, **values: Any) -> None:
    """Append a fact to the attempt's journal."""
    line = facts.render(Fact(kind=kind, time=WHEN, checkpoint=checkpoint, step=step, values=values))
    with (home(root) / facts.journal_key(attempt)).open("ab") as journal:
        journal.write(line)


def decide(root: Path, step: int, reason: str, decision: Mapping[str, Any], **changes: Any) -> Manifest:
    """Let the checkpoint of a step have been saved for this reason."""
    path = home(root) / f"step_{step:010d}" / "meta.json"
    manifest = manifests.parse(path.read_bytes())
    changed = replace(manifest, reason=reason, decision=decision, time=WHEN, **changes)
    path.write_bytes(manifests.render(changed))
    return changed
