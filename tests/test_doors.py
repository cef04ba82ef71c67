"""The front door: arguments that are wrong, tasks that are taken, listeners that fail, and workers that fork."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from loops import assert_same, parts, train
from mementum.errors import StateMismatch, TaskInUse, UnsupportedState, UsageError
from mementum.events import Committed, Failed
from trips import Box, Told


@pytest.mark.parametrize(
    ("wishes", "told"),
    [
        ({"resume": "perhaps"}, "resume must be one of auto, never, must"),
        ({"on_error": "ignore"}, "on_error must be one of tell, raise"),
        ({"every_steps": 0}, "every_steps must be 1 or more"),
        ({"every_s": 0}, "every_s must be more than 0"),
        ({"every_s": float("nan")}, "every_s must be more than 0"),
        ({"keep_last": 0}, "keep_last must be 1 or more"),
        ({"keep_every_steps": -1}, "keep_every_steps must be 1 or more"),
        ({"codec": "gzip"}, "gzip"),
        ({"policy": object(), "every_steps": 1}, "either a policy or"),
        ({"data": 3}, "cannot be iterated"),
        ({"task": ""}, "1 to 1000 printable characters"),
        ({"task": "a\nb"}, "printable"),
        ({"task": "a" * 1001}, "printable"),
        ({"state": {"a/b": {}}}, "is not a name"),
        ({"state": {"..": {}}}, "is not a name"),
        ({"state": {3: {}}}, "is not a name"),
        ({"state": {"model": {}}, "model": torch.nn.Linear(1, 1)}, "'model' is given twice"),
        ({"state": {"x": None}}, "'x' is None"),
        ({"user": {"f": print}}, "user.f"),
        ({"scheduler": 3}, "scheduler: "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_arguments_are_told_before_anything_is_written(tmp_path: Path, wishes: dict[str, Any], told: str) -> None:
    root = tmp_path / "root"
    with pytest.raises(UsageError) as refused:
        mementum.open_run(root, **{"task": "t", "state": {"s": {}}, **wishes})
    assert told in str(refused.value)
    assert not root.exists()


def test_a_task_has_one_run(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    with mementum.open_run(tmp_path, task="t", model=model) as run:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(TaskInUse, match=rf"'t' is being trained by process {os.getpid()} on .*this one") as refused:
            mementum.open_run(tmp_path, task="t", model=model)
        assert (refused.value.task, refused.value.pid) == ("t", os.getpid())
        assert "run.close()" in str(refused.value.next_command)
        assert sorted(tmp_path.rglob("*")) == before
        run.record()
    with mementum.open_run(tmp_path, task="t", model=model) as run:
        assert run.step == 1


def test_a_task_has_one_run_by_whatever_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "link").symlink_to("root")
    monkeypatch.chdir(tmp_path)
    with mementum.open_run(tmp_path / "root", task="t", state={"s": {}}):
        for path in ("root", "./root", tmp_path / "link", "root/../link"):
            with pytest.raises(TaskInUse):
                mementum.open_run(path, task="t", state={"s": {}})


def test_two_tasks_train_in_one_root_at_once(tmp_path: Path) -> None:
    """Names that would share a folder if letters were dropped are two tasks as well."""
    names = ("a", "b", "a b", "a/b", "A")
    told = {name: Told() for name in names}
    runs = {
        name: mementum.open_run(tmp_path, task=name, state={"s": {"name": name}}, on_event=told[name], every_steps=1)
        for name in names
    }
    for number, name in enumerate(names):
        for _ in range(number + 1):
            runs[name].record()
    for run in runs.values():
        run.close()
    for number, name in enumerate(names):
        assert told[name].of(Failed) == []
        held: dict[str, str] = {}
        with mementum.open_run(tmp_path, task=name, state={"s": held}, resume="must") as run:
            assert (run.step, held) == (number + 1, {"name": name})


def test_a_door_that_did_not_open_leaves_the_task_free(tmp_path: Path) -> None:
    with mementum.open_run(tmp_path, task="t", model=torch.nn.Linear(1, 1)) as run:
        run.record()
    for _ in range(2):
        with pytest.raises(StateMismatch):
            mementum.open_run(tmp_path, task="t", model=torch.nn.Linear(2, 2))
    with mementum.open_run(tmp_path, task="t", model=torch.nn.Linear(1, 1)) as run:
        assert run.step == 1


def test_a_listener_that_raises_is_called_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told, calls = Told(), []

    def broken(event: Any) -> None:
        calls.append(event)
        raise ZeroDivisionError("of the listener")

    with mementum.open_run(tmp_path, task="t", state={"s": {}}, every_steps=1, on_event=[broken, told]) as run:
        for _ in range(3):
            run.record()
            run.wait()
    assert len(calls) == 1
    assert "is not called again" in caplog.text
    assert [event.step for event in told.of(Committed)] == [1, 2, 3]


def test_several_objects_of_a_role(tmp_path: Path) -> None:
    def make() -> dict[str, Any]:
        models = [torch.nn.Linear(1, 1), torch.nn.Linear(2, 2)]
        return {
            "model": models,
            "optimizer": {f"adam_{n}": torch.optim.Adam(m.parameters()) for n, m in enumerate(models)},
        }

    saved, fresh = make(), make()
    with mementum.open_run(tmp_path, task="t", **saved) as run:
        run.record()
    assert sorted(path.name for path in tmp_path.rglob("*.safetensors")) == ["model0.safetensors", "model1.safetensors"]
    with mementum.open_run(tmp_path, task="t", **fresh, resume="must"):
        assert all(torch.equal(a.weight, b.weight) for a, b in zip(saved["model"], fresh["model"], strict=True))


def test_fields_of_the_users_own_stand_in_the_manifest(tmp_path: Path) -> None:
    user = {"sweep": 3, "path": "wandb/x", "pair": (1, 2), "nan": float("inf"), "unicode": "größe 重"}
    with mementum.open_run(tmp_path, task="t", state={"s": {}}, user=user) as run:
        run.record()
        run.wait()
    with mementum.open_run(tmp_path, task="t", state={"s": {}}) as run:
        assert dict(run._opened.catalog.entries(run._opened.home)[0].manifest.user) == {**user, "pair": [1, 2]}


@pytest.mark.parametrize("codec", ["raw", "zstd:1", "planes+zstd:1"])
def test_every_codec_brings_the_same_bits_back(tmp_path: Path, codec: str) -> None:
    straight = train(tmp_path / "straight", 8)
    train(tmp_path / "cut", 8, stop=4, codec=codec)
    assert_same(straight, train(tmp_path / "cut", 8))


def test_saves_while_loader_workers_are_forked_and_at_work(tmp_path: Path) -> None:
    """Each of the 30 steps is saved, workers live through all of it, and new ones are forked at a resume."""

    def make() -> Any:
        made = parts(workers=2)
        made.loader = torch.utils.data.DataLoader(
            made.loader.dataset,
            batch_size=4,
            sampler=made.loader.sampler,
            num_workers=2,
            persistent_workers=True,
            multiprocessing_context="fork",
        )
        return made

    told = Told()
    straight = train(tmp_path / "straight", 30, make=make, on_event=told)
    for stop in (17, 18):  # in the middle of an epoch, and after its last batch
        root = tmp_path / str(stop)
        cut = train(root, 30, stop=stop, make=make, on_event=told)
        assert cut.losses == {number: straight.losses[number] for number in range(1, stop + 1)}
        resumed = train(root, 30, make=make, on_event=told)
        assert resumed.resumed.step == stop
        assert_same(straight, resumed)
    assert told.of(Failed) == []


def test_a_fork_in_the_middle_of_a_run_does_not_hold_its_task(tmp_path: Path) -> None:
    """A child that outlives the run, as a data worker of a killed process does."""
    run = mementum.open_run(tmp_path, task="t", state={"s": {}}, every_steps=1)
    run.record()
    run.wait()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)  # until the parent lets go
        os._exit(0)
    try:
        run.record()
        run.close()
        with mementum.open_run(tmp_path, task="t", state={"s": {}}, resume="must") as again:
            assert again.step == 2
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


def test_state_that_was_refused_can_be_given_in_another_form(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedState):
        mementum.open_run(tmp_path / "root", task="t", state={"count": 3})
    with mementum.open_run(tmp_path / "root", task="t", state={"count": Box(n=3)}) as run:
        run.values["count"] = 3
        run.record()


@pytest.mark.parametrize(
    ("wishes", "told"),
    [
        ({"policy": 3}, "a policy has a method decide"),
        ({"every_steps": 2.5}, "every_steps must be"),
        ({"every_steps": True}, "every_steps must be a whole"),
        ({"every_s": "x"}, "every_s must be"),
        ({"keep_last": "a"}, "keep_last must be"),
        ({"codec": None}, "a codec is a text"),
        ({"on_event": 5}, "on_event is a function"),
        ({"user": [1]}, "fields are given as a dict"),
        ({"capture": "later"}, "capture must be one of"),
        ({"rename": {"a.": "b"}}, "two names, or two prefixes"),
    ],
)
def test_nonsense_is_refused_before_anything_is_written(tmp_path: Path, wishes: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        mementum.open_run(tmp_path / "root", task="t", state={"s": {}}, **wishes)
    assert not (tmp_path / "root").exists()
