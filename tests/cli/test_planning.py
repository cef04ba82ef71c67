"""`mementum plan`: where the size of the state is from, what is said of memory and disk, and words without sense."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mementum.cli import amounts
from mementum.cli.planning import binding
from mementum.errors import UsageError
from mementum.execute.room import Room
from mementum.execute.shared_file import create
from mementum.execute.slots import Slots, name_of
from mementum.format import index

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture(autouse=True)
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine of the test's own, and quick measurements. Call it to change the machine."""
    shm = tmp_path / "shm"
    shm.mkdir()
    monkeypatch.setattr("mementum.planning.PROBE", 16 * MIB)

    def change(**fields: Any) -> None:
        wanted = {"host_available": 8 * GIB, "shm_size": 8 * GIB, "shm_free": 8 * GIB, "shm_usable": True} | fields
        monkeypatch.setattr("mementum.execute.room.look", lambda **where: Room(shm_folder=str(shm), **wanted))

    change()
    return change


def planned(ask: Any, *words: object) -> dict[str, Any]:
    answer = ask("plan", *words, "--json")
    assert (answer.code, answer.err) == (0, "")
    found: dict[str, Any] = json.loads(answer.out)
    return found


def test_the_newest_checkpoint_tells_the_size(ask: Any, root: Path) -> None:
    (folder,) = root.glob("*/*/step_0000000006")
    parsed = index.parse((folder / "index-00000.json").read_bytes())
    raw = sum(block.raw_size for file in parsed.files for block in file.blocks)
    found = planned(ask, root, "--no-measure")
    manifest = json.loads((folder / "meta.json").read_bytes())
    assert found["state"] == {"moving": raw, "frozen": 0, "source": f"checkpoint {manifest['id']} of step 6"}
    assert raw >= 3 * 4 * 1240  # weights and both moments of the model, packed on the disk
    assert found["save"]["bytes"] == raw
    assert found["next"].startswith("python your_program.py")
    assert planned(ask, root, "byte-gpt", "--no-measure")["state"] == found["state"]


def test_one_of_several_tasks_is_to_be_named(ask: Any, root: Path, make: Any) -> None:
    make(root, "second", losses=(0.1,))
    answer = ask("plan", root, "--no-measure")
    assert answer.code == 2
    assert "has 2 tasks and none was named: 'byte-gpt', 'second'\n" in answer.err
    assert answer.err.endswith("next: mementum plan ROOT byte-gpt\n")
    assert planned(ask, root, "second", "--no-measure")["state"]["source"].endswith(" of step 2")
    assert ask("plan", root, "third", "--no-measure").code == 4


def test_frozen_files_of_a_checkpoint_are_told_apart(ask: Any, tmp_path: Path) -> None:
    import torch

    import mementum

    model = torch.nn.Sequential(torch.nn.Linear(1500, 1500), torch.nn.Linear(1500, 2))
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model[1].parameters())
    with mementum.open_run(tmp_path / "root", task="lora", model=model, optimizer=optimizer, every_steps=1) as run:
        for _ in range(2):
            model(torch.ones(1, 1500)).sum().backward()
            optimizer.step()
            run.record()
            run.wait()
    state = planned(ask, tmp_path / "root", "--no-measure")["state"]
    assert 0 <= state["frozen"] - 4 * 1500 * 1501 < 10_000  # the header of its file
    assert 0 <= state["moving"] - 3 * 4 * 3002 < 10_000


def test_an_index_that_was_changed_is_damage(ask: Any, root: Path) -> None:
    (folder,) = root.glob("*/*/step_0000000006")
    path = folder / "index-00000.json"
    path.write_bytes(path.read_bytes().replace(b'"rank": 0', b'"rank": 1'))
    answer = ask("plan", root, "--no-measure")
    assert answer.code == 3
    assert "it does not match its digest" in answer.err


def test_sizes_that_are_given(ask: Any, tmp_path: Path) -> None:
    new = tmp_path / "a" / "new"
    found = planned(ask, new, "--params", "124M", "--frozen", "1MB", "--every", "100steps", "--step-time", "500ms")
    assert (found["state"]["moving"], found["state"]["frozen"]) == (12 * 124_000_000, 1_000_000)
    assert found["every"] == {"text": "every 100 steps of 500 ms", "interval_s": 50.0, "step_s": 0.5}
    assert found["save"]["bytes_per_day"] == 12 * 124e6 * 86400 / 50
    assert found["save"]["first_bytes"] == 12 * 124_000_000 + 1_000_000
    assert found["choice"]["kind"] == "shm"
    assert found["measured"]["write"]["bytes"] == 16 * MIB
    assert found["measured"]["copy"]["bytes_per_s"] > 0
    assert found["measured"]["folder"] == str(tmp_path)
    assert found["save"]["share"] == pytest.approx((found["save"]["blocked_s"] + 0.27 * 1.488) / 50)
    assert not new.parent.exists()
    assert sorted(os.listdir(tmp_path)) == ["shm"]


def test_the_text_says_what_and_from_where(ask: Any, tmp_path: Path, room: Any) -> None:
    room(limit=6 * GIB, used=1 * GIB, limited_by="/sys/fs/cgroup/memory.max")
    answer = ask("plan", tmp_path / "new", "--state", "1GiB", "--every", "1s", "--no-measure")
    assert (answer.code, answer.err) == (0, "")
    said = {line.split("  ")[1].strip(): line for line in answer.lines if line.startswith("  ")}
    assert "5.0 GiB" in said["may be taken"]
    assert said["may be taken"].endswith("/sys/fs/cgroup/memory.max (1.0 GiB of 6.0 GiB used)")
    assert "3 of 1.0 GiB in shared memory, 3.0 GiB in all" in said["slots"]
    assert said["speed"].endswith("not measured: it was not asked for")
    assert "unknown" in said["until durable"]
    assert "84.4 TiB" in said["bytes a day"]
    assert "29.5 %" in said["of the training's time"]
    assert answer.lines[-2].startswith("choice: 3 slots of 1.0 GiB in shared memory")
    assert answer.lines[-1] == (
        f"next: mementum plan {tmp_path}/new TASK after the first save: its checkpoint says how large the state is"
    )


def test_shared_memory_that_is_too_small(ask: Any, tmp_path: Path, room: Any) -> None:
    room(shm_size=64 * MIB, shm_free=64 * MIB)
    found = planned(ask, tmp_path, "--state", "1GiB", "--no-measure")
    assert (found["choice"]["kind"], found["choice"]["slots"]) == ("memory", 3)
    needed = int(found["next"].partition("--shm-size=")[2].partition("m")[0])
    assert found["next"].endswith("for pods see docs/memory.md")
    room(shm_size=needed * MIB, shm_free=needed * MIB)
    enough = planned(ask, tmp_path, "--state", "1GiB", "--no-measure")["choice"]
    assert (enough["kind"], enough["slots"]) == ("shm", 3)
    room(shm_size=(needed - 4) * MIB, shm_free=(needed - 4) * MIB)
    assert planned(ask, tmp_path, "--state", "1GiB", "--no-measure")["choice"]["slots"] == 2


def test_no_memory_at_all(ask: Any, tmp_path: Path, room: Any) -> None:
    room(host_available=GIB)
    answer = ask("plan", tmp_path, "--state", "1GiB")
    assert answer.code == 0
    assert "give the process more memory" in answer.lines[-1]
    (slots,) = [line for line in answer.lines if line.startswith("  slots ")]
    assert slots.split()[1] == "none"
    (stands,) = [line for line in answer.lines if line.startswith("  the loop stands still ")]
    assert stands.endswith("as long as the disk takes: there is no memory for a copy")
    assert "unknown" not in stands


def test_a_disk_that_cannot_keep_up_is_said(
    ask: Any, tmp_path: Path, room: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mementum.planning import Writing

    monkeypatch.setattr("mementum.planning.measure_disk", lambda *_: Writing(rate=1e8, size=16 * MIB))
    behind = ask("plan", tmp_path, "--state", "1GB", "--every", "9s")
    assert any(line.startswith("  the disk is behind ") for line in behind.lines)
    ahead = ask("plan", tmp_path, "--state", "1GB", "--every", "11s")
    assert not any(line.startswith("  the disk is behind ") for line in ahead.lines)
    unknown = ask("plan", tmp_path, "--state", "1GB", "--every", "7steps")
    (day,) = [line for line in unknown.lines if line.startswith("  a day ")]
    assert "--step-time" in day


def test_slots_of_dead_processes_are_listed(ask: Any, tmp_path: Path) -> None:
    file = create(str(tmp_path / "shm" / name_of("abc", 0)))
    assert file is not None
    file.reserve(3 * MIB)
    held = planned(ask, tmp_path, "--state", "1GB", "--no-measure")
    assert held["left_behind"] == []  # its process lives: this one
    file.close()
    found = planned(ask, tmp_path, "--state", "1GB", "--no-measure")["left_behind"]
    assert found == [
        {
            "path": file.path,
            "bytes": 3 * MIB,
            "task": None,
            "step": None,
            "id": None,
            "why": "it is not a slot of mementum",
        }
    ]
    answer = ask("plan", tmp_path, "--state", "1GB", "--no-measure")
    assert f"left by a dead process: {file.path}, 3.0 MiB, no snapshot: it is not a slot of mementum" in answer.lines


def test_a_head_of_another_version_is_listed_too(ask: Any, tmp_path: Path) -> None:
    slots = Slots(str(tmp_path / "shm"), "abc", count=2, emit=lambda event: None, headroom=lambda: GIB)
    slot = slots.acquire([100])
    assert slot is not None
    slot.validate(b"no head of ours", seq=1, attempt=1, id="c1", step=7)
    slots.close(keep=True)
    (found,) = planned(ask, tmp_path, "--state", "1GB", "--no-measure")["left_behind"]
    assert (found["task"], found["step"]) == (None, None)
    assert found["why"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--state", "12 bananas"), "--state: '12 bananas' is not a size such as 1.2GB or 800MiB"),
        (("--state", "0"), "--state: '0' is out of reach"),
        (("--state", "-1GB"), "--state: '-1GB' is not a size"),
        (("--state", "nan"), "--state: 'nan' is not a size"),
        (("--state", "1e99GB"), "--state: '1e99GB' is out of reach"),
        (("--params", "7X"), "--params: '7X' is not a number such as 124M or 7B"),
        (("--params", "7B", "--state", "1GB"), "--state and --params both say how large the state is"),
        (("--params", "7B", "--optimizer", "adamant"), "--optimizer: 'adamant' is none of adamw, adam"),
        (("--params", "7B", "--dtype", "int8"), "--dtype: 'int8' is none of fp32, bf16, fp16"),
        (("--state", "1GB", "--optimizer", "adamw"), "--optimizer and --dtype say what --params are"),
        (("--frozen", "1GB"), "--frozen is beside what --state or --params say"),
        (("--state", "1GB", "--every", "10"), "--every: '10' is not an interval such as 10m or 100steps"),
        (("--state", "1GB", "--every", "0steps"), "--every: '0steps' is out of reach"),
        (("--state", "1GB", "--step-time", "half"), "--step-time: 'half' is not a time such as 500ms"),
        (("--state", "1GB", "--slots", "1"), "--slots: 1 is none of 2 to 16"),
    ],
)
def test_words_without_sense(ask: Any, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    answer = ask("plan", tmp_path / "root", *words, "--no-measure")
    assert answer.code == 2
    assert said in answer.err
    assert "next: " in answer.err


@pytest.mark.parametrize("there", [True, False])
def test_a_root_without_checkpoints_asks_for_the_size(ask: Any, tmp_path: Path, there: bool) -> None:
    root = tmp_path / "root"
    if there:
        root.mkdir()
    answer = ask("plan", root)
    assert answer.code == 4
    assert "--state 1.2GB" in answer.err
    assert root.exists() is there


def test_sizes_counts_and_times() -> None:
    assert [amounts.size("s", text) for text in ("12", "1.2GB", "1.5 GiB", "2Gi", "3k", "7mb", "800B")] == [
        12,
        1_200_000_000,
        3 << 29,
        2 << 30,
        3000,
        7_000_000,
        800,
    ]
    assert [amounts.count("c", text) for text in ("7B", "124M", "1.5e9", "12k")] == [
        7 * 10**9,
        124 * 10**6,
        15 * 10**8,
        12000,
    ]
    assert [amounts.time_s("t", text) for text in ("0.5s", "200ms", "10m", "2h", "1d")] == [0.5, 0.2, 600, 7200, 86400]
    assert amounts.interval("e", "100steps") == (None, 100)
    assert amounts.interval("e", "1 step") == (None, 1)
    assert amounts.interval("e", "90s") == (90.0, None)
    with pytest.raises(UsageError, match="out of reach"):
        amounts.time_s("t", "400d")


def test_what_binds() -> None:
    room = Room(host_available=5, limit=9, used=5, limited_by="a limit", shm_folder="/x")
    assert binding(room) == "a limit (5 B of 9 B used)"
    assert binding(Room(host_available=None, shm_folder="/x")) == "nothing tells it"
    assert binding(Room(host_available=3, limit=9, used=1, limited_by="a", shm_folder="/x")).startswith("MemAvailable")
