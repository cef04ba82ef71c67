"""Writes the golden checkpoint of the present format version. Run by hand, once, when the version changes:

    python tests/golden/make.py

It refuses to write over what is there: a released version's golden files never change.
"""

from __future__ import annotations

import enum
import json
import sys
from collections import Counter, deque
from decimal import Decimal
from pathlib import Path
from unittest import mock

import numpy as np
import torch

import mementum
from mementum.clock import ManualClock
from mementum.format.fields import FORMAT
from mementum.storage import local

HERE = Path(__file__).parent


class Phase(enum.Enum):
    """An enum of the program's own, as states hold them."""

    WARM = "warm"


class Kinds(torch.nn.Module):
    """A buffer of every dtype that the weights' file treats in a way of its own, and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 3, bias=False)
        self.tied = torch.nn.Linear(3, 3, bias=False)
        self.tied.weight = self.first.weight
        torch.nn.init.constant_(self.first.weight, 0.5)
        for name in ("float64", "bfloat16", "float16", "int64", "uint16", "bool", "float8_e4m3fn", "complex128"):
            values = torch.tensor([0, 1, 2], dtype=torch.float32).to(getattr(torch, name))
            self.register_buffer(f"of_{name}", values)
        self.register_buffer("of_no_dimension", torch.tensor(7))
        self.register_buffer("of_no_element", torch.empty(0, 4))


VALUES = {
    "int": 2**70,
    "float": float.fromhex("0x1.8p-3"),
    "nan": float("nan"),
    "complex": 1 + 2j,
    "text": "π ≈ 3",
    "bytes": b"\x00\xff",
    "tuple": (1, ("a", None)),
    "set": {1, 2},
    "keys": {1: "one", (2, 3): "pair"},
    "deque": deque([1, 2], maxlen=5),
    "counter": Counter("aab"),
    "decimal": Decimal("1.10"),
    "enum": Phase.WARM,
    "numpy": np.float32(0.1),
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "tensor": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "size": torch.Size([2, 3]),
    "dtype": torch.float16,
}


def objects() -> tuple[Kinds, torch.optim.AdamW]:
    model = Kinds()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    return model, optimizer


def make(root: Path) -> None:
    """One checkpoint with every kind of file, written with a fixed clock, host and chance."""
    torch.manual_seed(1)
    model, optimizer = objects()
    wide = torch.arange(20_000, dtype=torch.float32)  # enough for a block that is worth encoding
    about = (
        mock.patch("mementum.execute.origin.versions", return_value={"mementum": "golden"}),
        mock.patch("mementum.execute.origin.code", return_value={"commit": "0" * 40, "dirty": False}),
        mock.patch("platform.node", return_value="golden"),
        mock.patch("os.getpid", return_value=1),
        mock.patch.object(local.os, "urandom", return_value=b"gold"),
    )
    for patch in about:
        patch.start()
    batches = [torch.tensor([1.0])] * 4
    with mementum.open_run(
        root,
        task="golden",
        model=model,
        optimizer=optimizer,
        state={"wide": wide},
        data=batches,
        codec="planes+zstd:1",
        user={"logger": "none"},
        clock=ManualClock(),
    ) as run:
        run.values.update(VALUES)
        for number, _ in run.steps(batches, 3):
            model.first.weight.grad = torch.full((3, 3), 0.5)
            optimizer.step()
            run.record(loss=1.0 / number, note="made by hand")
        run.metrics(3, accuracy=0.75)
    for patch in about:
        patch.stop()
    for leftover in root.glob("catalog.db*"):
        leftover.unlink()  # a cache is no part of the format


if __name__ == "__main__":
    target = HERE / f"v{FORMAT}"
    if target.exists():
        sys.exit(f"{target} exists: a released version's golden files never change")
    sys.path.insert(0, str(HERE.parent))
    from golden.make import make as make_golden  # so that the enum's class has a name that the test can find

    make_golden(target)
    print(json.dumps(sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()), indent=1))
