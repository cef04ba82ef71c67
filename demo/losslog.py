"""A log of losses, one JSON line a step, that a killed process leaves readable."""

from __future__ import annotations

import json
import os
from pathlib import Path

from mementum.records import Resumed, record


@record
class Lines:
    """What a log says: the step that the attempt began after, how long putting back took, and (step, loss) in order."""

    began_step: int
    resume_s: float | None
    losses: tuple[tuple[int, float], ...]

    @property
    def last_step(self) -> int:
        """The last step that was done; the one it began after where none was."""
        return self.losses[-1][0] if self.losses else self.began_step


class LossLog:
    """Appends to `file`, each line by one write that no kill can take back; without a file it does nothing."""

    def __init__(self, file: Path | None, *, began_step: int, resumed: Resumed | None) -> None:
        self._descriptor = None
        if file is not None:
            self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._write({"began_step": began_step, "resume_s": resumed.duration_s if resumed else None})

    def add(self, step: int, loss: float) -> None:
        self._write({"step": step, "loss": loss})  # JSON keeps a float's every bit

    def _write(self, fields: dict[str, int | float | None]) -> None:
        if self._descriptor is not None:
            os.write(self._descriptor, json.dumps(fields).encode() + b"\n")


def read_log(file: Path) -> Lines | None:
    """What the log says so far; None before the attempt has begun. A last line that is not whole is passed over."""
    try:
        whole, _, _ = file.read_bytes().rpartition(b"\n")
    except FileNotFoundError:
        return None
    if not whole:
        return None
    first, *rest = (json.loads(line) for line in whole.split(b"\n"))
    return Lines(
        began_step=first["began_step"],
        resume_s=first["resume_s"],
        losses=tuple((line["step"], line["loss"]) for line in rest),
    )
