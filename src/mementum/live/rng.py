"""The random number generators of the process: python, numpy, torch on the CPU and on every CUDA device."""

from __future__ import annotations

import random
from array import array
from typing import Any

import numpy as np
import torch


def read() -> dict[str, Any]:
    """The states of all global generators, as plain values (7 KB and 16 bytes a CUDA device)."""
    version, words, gauss = random.getstate()
    return {
        "python": {"version": version, "words": array("I", words).tobytes(), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state().numpy().tobytes(),
        "cuda": [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()]
        if torch.cuda.is_available()
        else [],
    }


def apply(state: dict[str, Any]) -> None:
    """Put all global generators back. CUDA devices that are not here any more are passed over."""
    python = state["python"]
    words = array("I")
    words.frombytes(python["words"])
    random.setstate((python["version"], tuple(words), python["gauss"]))
    np.random.set_state(state["numpy"])
    torch.set_rng_state(_tensor(state["torch"]))
    if torch.cuda.is_available():
        for device, saved in zip(range(torch.cuda.device_count()), state["cuda"], strict=False):
            torch.cuda.set_rng_state(_tensor(saved), device)


def inexact(state: dict[str, Any] | None) -> list[str]:
    """What of a stored state cannot be put back here, in words."""
    if state is None:
        return ["the generators were not stored"]
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if len(state["cuda"]) != here:
        return [f"the generators of {len(state['cuda'])} CUDA devices were stored, there are {here} here"]
    return []


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


class GlobalGenerators:
    """All global generators as one object with a state dict, for `mementum.save` and `mementum.load`."""

    def state_dict(self) -> dict[str, Any]:
        return read()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        apply(state)
