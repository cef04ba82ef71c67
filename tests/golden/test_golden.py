"""Golden checkpoints: what every released format version wrote is read, value by value, by this one."""

from __future__ import annotations

import math
import shutil
from collections import Counter, deque
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import mementum
from golden import make
from mementum.format import manifest as manifests
from mementum.format.fields import FORMAT
from mementum.recover.verify import verify
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("v*"))


@pytest.fixture(params=["v1"])  # test_second.py has the checkpoints of the next one
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    copy = tmp_path / request.param
    shutil.copytree(HERE / request.param, copy)
    return copy


def test_the_present_version_has_a_golden_checkpoint() -> None:
    assert f"v{FORMAT}" in VERSIONS


def test_it_is_whole(root: Path) -> None:
    (path,) = root.glob("*/*/step_*/meta.json")
    manifest = manifests.parse(path.read_bytes())
    store = LocalStore(PosixDisk(), str(path.parent.parent))
    assert verify(store, path.parent.name, manifest, deep=True) == ()
    assert (manifest.task, manifest.step, manifest.seq, manifest.reason) == ("golden", 3, 1, "the run ended")
    assert manifest.metrics == {"loss": 1 / 3, "note": "made by hand"}
    assert [row["step"] for row in manifest.debug_info] == [1, 2, 3]


def test_its_weights_are_standard_safetensors(root: Path) -> None:
    (path,) = root.glob("*/*/step_*/model.safetensors")
    tensors = load_file(path)
    assert torch.equal(tensors["of_bfloat16"], torch.tensor([0, 1, 2], dtype=torch.bfloat16))
    assert torch.equal(tensors["of_no_dimension"], torch.tensor(7))
    assert tensors["of_complex128"].view(torch.complex128).flatten().tolist() == [0, 1, 2]
    assert tensors["of_no_element"].shape == (0, 4)


def test_it_resumes(root: Path) -> None:
    model, optimizer = make.objects()
    wide = torch.zeros(20_000)
    torch.nn.init.zeros_(model.first.weight)
    data = [torch.tensor([1.0])] * 4
    with mementum.open_run(
        root, task="golden", model=model, optimizer=optimizer, state={"wide": wide}, data=data, resume="must"
    ) as run:
        assert (run.step, [number for number, _ in run.steps(data, epochs=1)]) == (3, [4])
        values = run.values
    assert torch.equal(wide, torch.arange(20_000, dtype=torch.float32))
    assert model.tied.weight is model.first.weight
    state = optimizer.state[model.first.weight]
    assert state["step"].item() == 3
    expected_average = 0.5 * (1 - 0.9**3)  # of a constant gradient of one half, three steps with beta 0.9
    assert torch.allclose(state["exp_avg"], torch.full((3, 3), expected_average))
    assert model.first.weight[0, 0].item().hex() == GOLDEN_WEIGHT
    assert math.isnan(values.pop("nan"))
    assert values.pop("enum") is make.Phase.WARM
    assert torch.equal(values.pop("tensor"), torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    assert np.array_equal(values.pop("array"), np.arange(6, dtype=np.int16).reshape(2, 3))
    assert values == {
        "int": 2**70,
        "float": 0.1875,
        "complex": 1 + 2j,
        "text": "π ≈ 3",
        "bytes": b"\x00\xff",
        "tuple": (1, ("a", None)),
        "set": {1, 2},
        "keys": {1: "one", (2, 3): "pair"},
        "deque": deque([1, 2], maxlen=5),
        "counter": Counter({"a": 2, "b": 1}),
        "decimal": Decimal("1.10"),
        "numpy": np.float32(0.1),
        "size": torch.Size([2, 3]),
        "dtype": torch.float16,
    }


GOLDEN_WEIGHT = "-0x1.01e9760000000p-2"
