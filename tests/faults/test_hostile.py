"""Hostile roots: bombs, links and names that lead out take neither memory nor a look at what lies beside the root."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from mutations import VALUES, WAYS, as_json, mutate, with_digest
from tiny_runs import folders_of, tiny_run

from mementum.format.blocks import digest as xxh3_of
from mementum.format.manifest import digest

SAMPLE, SAMPLE_OF_A_SOAK = 5, 30  # mutated roots, beside those made by hand
WAIT_S = 300.0
INDEX, CONTEXT, META = "index-00000.json", "context-00000.json", "meta.json"
TERABYTE = 1 << 40

Forge = Callable[[Path], None]


def seal(folder: Path) -> None:
    """Make the manifest right again for the small files that lie there now."""
    fields = json.loads((folder / META).read_bytes())
    for file in fields["files"]:
        path = folder / file["name"]
        if "blake3" in file and path.is_file():
            file["size"], file["blake3"] = path.stat().st_size, digest(path.read_bytes())
    (folder / META).write_bytes(with_digest(fields))


def of_json(name: str, change: Callable[[Any], Any]) -> Forge:
    def forge(folder: Path) -> None:
        fields = json.loads((folder / name).read_bytes())
        fields = change(fields) or fields
        (folder / name).write_bytes(with_digest(fields) if name == META else as_json(fields))
        if name != META:
            seal(folder)

    return forge


def of_bytes(name: str, data: bytes) -> Forge:
    def forge(folder: Path) -> None:
        (folder / name).write_bytes(data)
        if name != META:
            seal(folder)

    return forge


def frame(claimed: int) -> bytes:
    """A zstd frame that says that it unpacks to `claimed` bytes, and holds a few."""
    return b"\x28\xb5\x2f\xfd\xe0" + claimed.to_bytes(8, "little") + b"\x09\x00\x00x"


def bomb(claimed: int, raw_size: int) -> Forge:
    """The blocks become one frame that claims much; index and manifest are right for it."""

    def forge(folder: Path) -> None:
        data = frame(claimed)
        (folder / "optimizer.blocks").write_bytes(data)
        fields = json.loads((folder / INDEX).read_bytes())
        (file,) = [file for file in fields["files"] if file["name"] == "optimizer.blocks"]
        file["size"], file["blocks"] = len(data), [[0, len(data), raw_size, "zstd:1", xxh3_of(data), "0" * 32]]
        (folder / INDEX).write_bytes(as_json(fields))
        manifest = json.loads((folder / META).read_bytes())
        next(file for file in manifest["files"] if file["name"] == "optimizer.blocks")["size"] = len(data)
        (folder / META).write_bytes(as_json(manifest))
        seal(folder)

    return forge


def named(name: str) -> Forge:
    """The manifest and the index name a data file elsewhere."""

    def forge(folder: Path) -> None:
        for path in (folder / INDEX, folder / META):
            path.write_bytes(path.read_bytes().replace(b"model.safetensors", json.dumps(name)[1:-1].encode()))
        seal(folder)

    return forge


def linked(name: str) -> Forge:
    def forge(folder: Path) -> None:
        secret = folder.parents[4] / "sentinel" / name
        shutil.copy(folder / name, secret)
        (folder / name).unlink()
        (folder / name).symlink_to(secret)

    return forge


def linked_folder(folder: Path) -> None:
    outside = folder.parents[4] / "sentinel" / f"{folder.name}-{os.urandom(4).hex()}"
    shutil.copytree(folder, outside)
    shutil.rmtree(folder)
    folder.symlink_to(outside)


def set_each(key: str, value: object, within: str) -> Callable[[Any], None]:
    def change(fields: Any) -> None:
        for item in fields[within]:
            item[key] = value

    return change


BOMBS: dict[str, Forge] = {
    **{f"deep {name}": of_bytes(name, b"[" * 200_000) for name in (META, INDEX, CONTEXT)},
    **{f"deep object {name}": of_bytes(name, b'{"a":' * 200_000) for name in (META, INDEX, CONTEXT)},
    **{f"deep and closed {name}": of_bytes(name, b"[" * 90_000 + b"]" * 90_000) for name in (META, INDEX, CONTEXT)},
    **{f"digits {name}": of_bytes(name, b'{"format": ' + b"9" * 500_000 + b"}") for name in (META, INDEX, CONTEXT)},
    "many files": of_json(META, lambda fields: fields.update(files=[fields["files"][0]] * 20_000)),
    "large seq": of_json(META, lambda fields: fields.update(seq=(1 << 62) - 1, step=(1 << 62) - 1)),
    "huge integer": of_json(CONTEXT, lambda fields: fields.update(step={"$int": "0x" + "f" * 1_000_000})),
    "long range": of_json(CONTEXT, lambda fields: fields.update(values={"a": {"$range": [0, 1 << 62, 1]}})),
    "decimal": of_json(CONTEXT, lambda fields: fields.update(values={"a": {"$decimal": "1E999999999"}})),
    "empty array": of_json(CONTEXT, lambda f: f.update(values={"a": {"$numpy_array": ["<f8", [TERABYTE, 0], ""]}})),
    "large array": of_json(CONTEXT, lambda f: f.update(values={"a": {"$numpy_array": ["<U999999999", [1], ""]}})),
    "large shape": of_json(INDEX, set_each("shape", [1 << 31, 1 << 31], "tensors")),
    "large tensor": of_json(INDEX, set_each("size", 1 << 61, "tensors")),
    "large file": of_json(META, set_each("size", TERABYTE, "files")),
    "large blocks": of_json(INDEX, lambda fields: fields["files"][0].update(blocks=[[0, 1, TERABYTE, "raw", "0"]])),
    "terabyte frame": bomb(TERABYTE, TERABYTE),
    "terabyte frame, small index": bomb(TERABYTE, 640),
    "frame of a whole block": bomb(64 << 20, 64 << 20),
    "frame without an end": bomb((1 << 64) - 3, 640),
}
OUTSIDE = (
    "../../../sentinel/secret",
    "../../../../../sentinel/secret",
    "/etc/passwd",
    "..",
    "a/../../../secret",
    "x\0y",
)
LEADS: dict[str, Forge] = {
    **{f"names {name!r}".replace("/", "|").replace("\0", "0"): named(name) for name in OUTSIDE},
    **{f"links {name}": linked(name) for name in (META, INDEX, CONTEXT, "model.safetensors", "optimizer.blocks")},
    "links its folder": linked_folder,
}


def sampled(name: str, rng: random.Random, size: int = SAMPLE) -> dict[str, Forge]:
    found: dict[str, Forge] = {}
    for number in range(size):
        count = 1 + number % 3
        changes = [(rng.randrange(1 << 20), rng.choice(WAYS), rng.randrange(len(VALUES))) for _ in range(count)]
        found[f"sample {number} {name}"] = of_json(name, lambda fields, changes=changes: mutate(fields, changes))
    return found


def wrong_in(folder: Path, cases: dict[str, Forge]) -> dict[str, list[str]]:
    """What a process that reads all of the forged roots did wrong, by root."""
    tiny_run(folder / "made")
    (folder / "sentinel").mkdir()
    (folder / "sentinel" / "secret").write_bytes(b"secret")
    (folder / "roots").mkdir()
    for name, forge in {"0 as it was": lambda _: None, **cases}.items():
        root = shutil.copytree(folder / "made", folder / "roots" / name)
        for path in root.glob("catalog.db*"):
            path.unlink()
        forge(folders_of(root)[0])
    sentinels = contents(folder / "sentinel")
    here = Path(__file__).parent
    result = subprocess.run(
        [sys.executable, str(here / "hostile_reader.py"), str(folder)],
        env={**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parent}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    found: dict[str, list[str]] = json.loads(result.stdout.splitlines()[-1])
    assert len(found) == len(cases) + 1
    assert contents(folder / "sentinel") == sentinels
    return {name: what for name, what in found.items() if what}


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without(part: str, key: str) -> Forge:
    return of_json(CONTEXT, lambda fields: fields[part].pop(key) and None)


def deep_attempt(folder: Path) -> None:
    (folder.parent / "attempts" / "0001.json").write_bytes(b"[" * 200_000)


def test_neither_memory_nor_a_path_outside_is_touched(fast_path: Path, rng: random.Random) -> None:
    samples = {**sampled(META, rng), **sampled(INDEX, rng)}
    assert wrong_in(fast_path, {**BOMBS, **LEADS, **samples, "deep attempt": deep_attempt}) == {}


@pytest.mark.soak
def test_more_of_anybodys_making(fast_path: Path, rng: random.Random) -> None:
    assert wrong_in(fast_path, {**sampled(META, rng, SAMPLE_OF_A_SOAK), **sampled(INDEX, rng, SAMPLE_OF_A_SOAK)}) == {}


def test_contexts_of_a_wrong_shape_raise_errors_of_ours(fast_path: Path, rng: random.Random) -> None:
    assert wrong_in(fast_path, {**sampled(CONTEXT, rng, 5), "no python": without("rng", "python")}) == {}


def test_the_frame_claims_what_it_says() -> None:
    assert zstandard.frame_content_size(frame(TERABYTE)) == TERABYTE


@pytest.mark.parametrize("name", [META, INDEX])
def test_a_sealed_checkpoint_is_read_again(tmp_path: Path, name: str) -> None:
    """Else all that is forged would only be refused for its digest."""
    tiny_run(tmp_path)
    of_json(name, lambda fields: None)(folders_of(tmp_path)[0])
    assert tiny_run(tmp_path, resume="must")
