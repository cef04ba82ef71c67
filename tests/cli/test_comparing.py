"""`mementum diff`: what of two checkpoints is not the same, by digests and by numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mementum
from mementum.cli.differing import ABSENT, changes
from mementum.cli.measuring import apart

BIG = 1_200_000  # float32 numbers: more than one block of 4 MiB


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints: one number of many is changed, then a tensor comes, one goes and one changes its shape."""
    root = tmp_path_factory.mktemp("changed") / "root"
    state: dict[str, Any] = {
        "big": torch.arange(float(BIG)),
        "still": torch.ones(BIG),
        "old": torch.ones(3),
        "shape": torch.ones(4),
        "count": 1,
        "name": "a",
    }
    mementum.save(root, state, step=1, user={"lr": 0.1, "notes": {"who": "me"}}, keep_last=None)
    state["big"][7] += 2.0
    mementum.save(root, state, step=2, user={"lr": 0.2, "notes": {"who": "me"}}, keep_last=None)
    del state["old"]
    state |= {"new": torch.zeros(2, dtype=torch.int64), "shape": torch.ones(2, 2), "count": 2}
    mementum.save(root, state, step=3, keep_last=None)
    return root


def diff(ask: Any, root: Path, *words: str) -> dict[str, Any]:
    answer = ask("diff", root, *words, "--json")
    assert (answer.code, answer.err) == (0, "")
    found: dict[str, Any] = json.loads(answer.out)
    return found


def test_two_of_a_run(ask: Any, root: Path) -> None:
    found = diff(ask, root, "@4", "@6")
    assert (found["a"]["step"], found["b"]["step"], found["deep"]) == (4, 6, False)
    fields = {one["path"]: (one["a"], one["b"]) for one in found["fields"]}
    assert (fields["step"], fields["seq"], fields["parent"][1]) == ((4, 6), (2, 3), found["a"]["checkpoint"])
    assert {one["path"]: one for one in found["metrics"]}["loss"] == {"path": "loss", "a": 0.2, "b": 0.5}
    assert {one["path"]: one for one in found["metrics"]}["acc"] == {"path": "acc", "a": 0.75}
    assert found["versions"] == found["code"] == found["user"] == []
    assert (found["tensors"]["equal"], len(found["tensors"]["changed"])) == (0, 8)
    assert {one["how"] for one in found["tensors"]["changed"]} == {"may differ"}  # all of a file lie in one block


def test_numbers_are_compared_deeply(ask: Any, root: Path) -> None:
    found = diff(ask, root, "@4", "@6", "--deep")["tensors"]["changed"]
    step = next(one for one in found if one["name"].endswith("weight/step") or one["name"].endswith("weight.step"))
    assert (step["how"], step["changed"], step["elements"]) == ("differs", 1, 1)
    assert (step["largest_difference"], step["relative"]) == (2.0, 0.5)  # 4 and 6 steps of AdamW
    same = diff(ask, root, "@4", "@4", "--deep")
    assert (same["tensors"]["equal"], same["tensors"]["changed"], same["fields"], same["context"]) == (8, [], [], [])


def test_what_can_be_told_without_reading(ask: Any, changed: Path) -> None:
    found = diff(ask, changed, "@1", "@2")
    how = {one["component"]: (one["how"], one["blocks_differing"]) for one in found["tensors"]["changed"]}
    assert how["big"] == ("differs", 1)
    assert "still" not in how or how["still"][0] == "may differ"
    assert [one["path"] for one in found["user"]] == ["lr"]
    deep = diff(ask, changed, "@1", "@2", "--deep")["tensors"]
    assert [(one["component"], one["changed"], one["largest_difference"]) for one in deep["changed"]] == [
        ("big", 1, 2.0)
    ]
    assert deep["equal"] == 3


def test_tensors_that_come_go_and_change_their_shape(ask: Any, changed: Path) -> None:
    found = diff(ask, changed, "@2", "@3", "--deep")
    tensors = found["tensors"]
    assert [one["component"] for one in tensors["only_a"]] == ["old"]
    assert [(one["component"], one["dtype"], one["shape"]) for one in tensors["only_b"]] == [("new", "int64", [2])]
    (shape,) = [one for one in tensors["changed"] if one["component"] == "shape"]
    assert (shape["how"], shape["shapes"]) == ("differs", [[4], [2, 2]])
    assert "changed" not in shape
    assert any(one["path"] == "count.state" and (one["a"], one["b"]) == (1, 2) for one in found["context"])
    text = ask("diff", changed, "@2", "@3").lines
    assert any(line.startswith("  only in a: old/") for line in text)
    assert any(line.endswith("float32 [4] -> float32 [2, 2]") for line in text)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["@4", "@5"], 4, "has no checkpoint at step 5"),
        (["@4", "other@6"], 4, "there is no task 'other'"),
        (["@4", "@!"], 2, "selects no checkpoint"),
        (["@4"], 2, "Missing argument 'B'"),
    ],
)
def test_bad_words(ask: Any, root: Path, words: list[str], code: int, said: str) -> None:
    answer = ask("diff", root, *words)
    assert (answer.code, said in answer.err) == (code, True)


@pytest.mark.parametrize("file", ["index-00000.json", "context-00000.json", "model.safetensors", "meta.json"])
def test_damage_is_told(ask: Any, root: Path, file: str) -> None:
    (path,) = root.glob(f"*/*/step_*4/{file}")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    answer = ask("diff", root, "@4", "@6", "--deep")
    assert (answer.code, file in answer.err) == (3, True)


def test_paths_of_values() -> None:
    first = {"a": 1, "b": [1, 2], "c": {"d": "x"}, "long": [0] * 20, "gone": None, "kind": 1}
    second = {"a": 1, "b": [1, 3], "c": {"d": "y"}, "long": [1] * 20, "kind": 1.0, "came": True}
    found = {one.path: (one.first, one.second) for one in changes(first, second)}
    assert found == {
        "b[1]": (2, 3),
        "c.d": ("x", "y"),
        "long": ([0] * 20, [1] * 20),
        "gone": (None, ABSENT),
        "kind": (1, 1.0),
        "came": (ABSENT, True),
    }


def test_how_far_numbers_are_apart() -> None:
    def measured(dtype: torch.dtype, first: list[float], second: list[float]) -> Any:
        raws = [torch.tensor(some, dtype=dtype).view(torch.uint8).numpy().tobytes() for some in (first, second)]
        return apart(str(dtype).removeprefix("torch."), memoryview(raws[0]), memoryview(raws[1]))

    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8):
        found = measured(dtype, [3.0, 4.0, 1.0], [3.0, 4.0, 3.0])
        assert (found.elements, found.changed, found.most, found.unlike) == (3, 1, 2.0, 0)
        assert found.relative == pytest.approx(2 / math.sqrt(26))
    odd = measured(torch.float32, [math.nan, 1.0, math.inf], [math.nan, math.nan, math.inf])
    assert (odd.changed, odd.most, odd.unlike) == (1, 0.0, 1)
    from_nothing = measured(torch.float32, [0.0], [1.0])
    assert (from_nothing.most, from_nothing.relative) == (1.0, math.inf)
    eight = apart("float8_e4m3fn", memoryview(b"\1\2"), memoryview(b"\1\3"))
    assert (eight.changed, eight.most, eight.relative) == (1, None, None)
    rng = np.random.default_rng(3)
    one, other = rng.standard_normal((2, 3_000_000)).astype("float32")  # more than one piece
    many = apart("float32", memoryview(one.tobytes()), memoryview(other.tobytes()))
    assert many.most == pytest.approx(float(np.abs(one.astype("f8") - other).max()))
    expected = float(np.linalg.norm(one.astype("f8") - other) / np.linalg.norm(one.astype("f8")))
    assert many.relative == pytest.approx(expected)
