"""Changes to JSON that keep it JSON: of its structure, its types, its sizes and its names."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

from mementum.format.manifest import ZEROS
from mementum.format.manifest import digest as blake3_of

DEPTH = 300  # more than any state of ours has; JSON itself allows about a thousand

# What a field may become: wrong types, sizes that overflow something, names that lead out, tags of typed JSON.
VALUES: tuple[Any, ...] = (
    *(None, True, False, "", "x", [], {}, [[]], [None], 0, 1, -1, 2, 64, 0.5, -0.0, 1e308, "deep"),
    *(1 << 31, 1 << 32, (1 << 53) + 1, 1 << 62, (1 << 63) - 1, 1 << 64, -(1 << 63), 10**18, 10**25),
    *("..", ".", "/", "../../sentinel/secret", "/etc/passwd", "step_0000000001/meta.json", "a\0b", "a\\b", "n" * 300),
    *("\ud800", "\u202e", "é" * 150, "meta.json", "model.safetensors", "optimizer.blocks", "index-00000.json"),
    *("context-00000.json", "index-00001.json", "left.tmp", "catalog.db", ZEROS, "0" * 32, "g" * 32),
    *("raw", "zstd:1", "zstd:99", "planes:4+zstd:1", "planes:0", "planes:65535", "zstd:1+zstd:1", "+", "no_codec:1"),
    *("float32", "float64", "bfloat16", "complex128", "bool", "qint8", "nn", "__doc__", "float4_e2m1fn_x2"),
    *([1 << 31, 1 << 31], [1 << 61], [0, 1 << 61], [-1], [1.5], ["1"], [1] * 65, [True], [0, 0]),
    *({"$tuple": []}, {"$int": "0x" + "f" * 5000}, {"$float": "7ff0000000000000"}, {"$str": "7aCA"}, {"$set": [[1]]}),
    *(
        {"$tensor": "x"},
        {"$tensor": None},
        {"$tensor_parts": ["sparse", {}, {}]},
        {"$tensor_parts": ["", {"a": "b"}, {}]},
    ),
    *(
        {"$bytes": "A" * 5000},
        {"$bytes": "?"},
        {"$decimal": "1E999999"},
        {"$fraction": [1, 0]},
        {"$range": [0, 1 << 62, 1]},
    ),
    *(
        {"$numpy_array": ["<f8", [1 << 40], ""]},
        {"$torch_tensor": ["float32", [1 << 40, 0], ""]},
        {"$path": ["x", "y"]},
    ),
    *({"$enum": ["os:system", 1]}, {"$enum": ["re:RegexFlag", 1 << 70]}, {"$namedtuple": ["os:stat_result", [], []]}),
    *(
        {"$namespace": {"__class__": 1}},
        {"$deque": [[], -1]},
        {"$defaultdict": ["eval", []]},
        {"$timezone": [9**9, 0, 0]},
    ),
    *({"$datetime": ["2026-02-30", 0, None]}, {"$timedelta": [1 << 62, 0, 0]}, {"$dict": [[{}, 1]]}, {"$no_such": 1}),
)
WAYS = ("replace", "drop", "double", "wrap", "rename", "swap", "grow")

Mutation = tuple[int, str, int]
mutations = st.lists(
    st.tuples(st.integers(0, 1 << 20), st.sampled_from(WAYS), st.integers(0, 1 << 20)), min_size=1, max_size=3
)


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every container of a tree with each of its keys. Long lists count by their ends: what they hold is alike."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        held = waiting.pop()
        keys: list[Any] = list(held) if isinstance(held, dict) else list(range(len(held)))
        for key in keys if len(keys) <= 40 else [*keys[:5], *keys[-5:]]:
            found.append((held, key))
            if isinstance(held[key], dict | list):
                waiting.append(held[key])
    return found


def new_value(which: int) -> Any:
    value = copy.deepcopy(VALUES[which % len(VALUES)])
    if value != "deep":
        return value
    deep: list[Any] = []
    for _ in range(DEPTH):
        deep = [deep]
    return deep


def mutate(tree: Any, changes: list[Mutation]) -> Any:
    """A changed copy of a tree."""
    tree = copy.deepcopy(tree)
    for place, way, which in changes:
        found = places(tree)
        if not found:
            return tree
        held, key = found[place % len(found)]
        value = new_value(which)
        if way == "replace":
            held[key] = value
        elif way == "drop":
            del held[key]
        elif way == "double" and isinstance(held, list):
            held.insert(key, held[key])
        elif way == "wrap":
            held[key] = [held[key]] if which % 2 else {"x": held[key]}
        elif way == "rename" and isinstance(held, dict):
            held[value if isinstance(value, str) else f"$tag{which}"] = held.pop(key)
        elif way == "swap":
            other, there = found[which % len(found)]
            if other is not held and there in (other if isinstance(other, dict) else range(len(other))):
                held[key] = copy.deepcopy(other[there])
        elif way == "grow" and isinstance(held[key], list) and held[key]:
            held[key] = (held[key] * (1 + which % 50))[:2000]
        elif way == "grow" and type(held[key]) is int:
            held[key] += which - (1 << 19)
    return tree


def as_json(tree: Any) -> bytes:
    """As any JSON, half of a surrogate pair too."""
    return json.dumps(tree, ensure_ascii=True, allow_nan=True).encode()


def with_digest(fields: dict[str, Any]) -> bytes:
    """A manifest's bytes with the digest that is right for them."""
    blank = as_json({**fields, "digest": ZEROS})
    head, _, tail = blank.rpartition(ZEROS.encode())
    return head + blake3_of(blank).encode() + tail
