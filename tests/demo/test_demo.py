"""The demo's pieces, and a small demo with one kill."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "demo"))  # its files are programs, not a package

import compare
import kills
from losslog import Lines, LossLog, read_log
from text import STDLIB_BYTES, Windows, read_text

import demo
from mementum.errors import UsageError
from mementum.format.context import render
from mementum.records import Entry, Granularity, Health, Manifest
from mementum.recover.load import Loaded

TINY = "--hidden 32 --layers 1 --window 32 --batch 2"


def lines(*losses: float, began_step: int = 0) -> Lines:
    numbered = enumerate(losses, start=began_step + 1)
    return Lines(began_step=began_step, resume_s=None, losses=tuple(numbered))


def loaded(weight: torch.Tensor, **context: object) -> Loaded:
    manifest = Manifest(
        id="a",
        seq=1,
        task="t",
        attempt=1,
        parent=None,
        step=1,
        epoch=0,
        time="",
        reason="",
        granularity=Granularity.FULL,
        health=Health.CLEAN,
        files=(),
    )
    render(context)  # what the comparison encodes has a typed form
    return Loaded(manifest=manifest, context=context, tensors={"model": {"weight": weight}})


def test_a_save_is_shown_whether_or_not_it_could_tell_what_it_cost() -> None:
    manifest = loaded(torch.zeros(1)).manifest
    told = replace(manifest, decision={"blocked_s": 0.0025})
    shown = io.StringIO()
    saved = [Entry(manifest=one, folder="f") for one in (manifest, told)]
    Console(file=shown, width=120).print(demo.saves_table(saved))
    silent, telling = (line for line in shown.getvalue().splitlines() if "0.0 MB" in line)
    assert "–" in silent
    assert "2.5 ms" in telling


def test_the_standard_library_is_text() -> None:
    text = read_text(None)
    assert len(text) == STDLIB_BYTES
    assert b"import" in text
    assert read_text(None) == text


def test_a_file_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc\xff")
    assert read_text(tmp_path / "a.txt") == b"abc\xff"


def test_windows_are_the_bytes_in_order() -> None:
    windows = Windows(b"abcdefgh", length=3)
    assert len(windows) == 2
    assert windows[1].tolist() == [100, 101, 102]
    assert windows[1].dtype == torch.int64


def test_a_text_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="has 2 bytes, one window needs 3"):
        Windows(b"ab", length=3)


def test_a_log_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    file = tmp_path / "log"
    assert read_log(file) is None
    log = LossLog(file, began_step=4, resumed=None)
    begun = read_log(file)
    assert begun is not None
    assert begun.last_step == 4
    log.add(5, 0.1 + 0.2)
    with file.open("ab") as torn:
        torn.write(b'{"step": 6, "lo')
    found = read_log(file)
    assert found == Lines(began_step=4, resume_s=None, losses=((5, 0.1 + 0.2),))


@pytest.mark.parametrize("number", [1, 3, 7])
def test_kills_are_spread_over_the_run_and_the_last_is_aimed(number: int, seed: int) -> None:
    for offset in range(50):
        drawn = kills.draw_kills(seed + offset, kills=number, steps=240, every=20)
        assert drawn == kills.draw_kills(seed + offset, kills=number, steps=240, every=20)
        assert len(drawn) == number
        assert all(early.step < late.step for early, late in pairwise(drawn))
        assert all(1 <= kill.step <= 216 and 0 <= kill.fraction < 1 for kill in drawn)
        assert [kill.aimed for kill in drawn] == [False] * (number - 1) + [True]
        assert drawn[-1].step % 20 == 0


def test_more_kills_than_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="10 kills do not fit into 10 steps"):
        kills.draw_kills(0, kills=10, steps=10, every=5)


def test_a_checkpoint_without_manifest_is_torn(tmp_path: Path) -> None:
    for name in ("step_0000000020", "step_0000000040-2"):
        (tmp_path / "20261130" / "t_0a0a0a" / name).mkdir(parents=True)
    (tmp_path / "20261130" / "t_0a0a0a" / "step_0000000020" / "meta.json").touch()
    torn = kills.torn_checkpoint(tmp_path)
    assert torn == "step_0000000040-2"
    assert kills.step_of(torn) == 40


def test_equal_runs_have_no_differences() -> None:
    left, right = (loaded(torch.tensor([1.0, float("nan")]), step=3, feed={"epoch": 1}) for _ in range(2))
    found = compare.compare_runs(left, right, (lines(3, 2, 1), [lines(3, 2), lines(2, 1, began_step=1)]))
    assert found == compare.Comparison(tensors=1, values=2, losses=4, differences=())


def test_every_difference_is_named() -> None:
    left = loaded(torch.tensor([1.0]), step=3, feed={"epoch": 1})
    right = loaded(torch.tensor([1.0 + 2**-23]), step=3, feed={"epoch": 2}, values=())
    found = compare.compare_runs(left, right, (lines(3, 2, 1), [lines(3.5, 2)]))
    assert found.differences == (
        "tensor model:weight differs",
        "context.feed.epoch differs",
        "context.values differs",
        "the loss of step 1 is 3.5 and was 3 in the straight run",
        "step 3 was never done",
    )


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(UsageError, match="did not make"):
        demo.clean(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "there")
    with pytest.raises(UsageError, match="is not a folder"):
        demo.clean(tmp_path / "out")
    assert os.listdir(tmp_path / "there") == []


def test_a_folder_of_the_demo_is_emptied(tmp_path: Path) -> None:
    out = tmp_path / "a" / "out"
    demo.clean(out)
    (out / "killed" / "20261130").mkdir(parents=True)
    (out / "loss.png").touch()
    (tmp_path / "precious").mkdir()
    (out / "link").symlink_to(tmp_path / "precious")
    demo.clean(out)
    assert sorted(os.listdir(out)) == [".gitignore", demo.MARKER]
    assert (tmp_path / "precious").is_dir()


def stub(folder: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "stub.py").write_text(program, encoding="utf-8")
    monkeypatch.setattr(kills, "TRAINER", folder / "stub.py")


def test_a_trainer_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(tmp_path, "raise SystemExit('the disk is on fire')", monkeypatch)
    with (
        kills.Trainer(tmp_path / "root", log=tmp_path / "log.jsonl", options=[]) as trainer,
        pytest.raises(kills.TrainerFailed, match="the disk is on fire"),
    ):
        kills.finish(trainer, progress=lambda step: None)


def test_a_trainer_that_ends_before_its_kill_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(tmp_path, "", monkeypatch)
    kill = kills.Kill(step=3, fraction=0.5)
    with (
        kills.Trainer(tmp_path / "root", log=tmp_path / "log.jsonl", options=[]) as trainer,
        pytest.raises(kills.TrainerFailed, match="ended before it was killed at step 3"),
    ):
        kills.end_by(kill, trainer, tmp_path / "root", progress=lambda step: None)


def test_a_small_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as ended:
        demo.demo(kills=1, steps=60, every=10, seed=3, text=None, out=out, trainer=TINY)
    printed = capsys.readouterr().out
    assert "bit-identical: yes" in printed.splitlines()
    assert ended.value.code == 0
    assert "seed 3" in printed
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    # Steps of milliseconds: of the six saves, those that the disk is behind with give way to newer ones.
    steps = [entry.manifest.step for entry in compare.checkpoints(out / "killed", demo.TASK)]
    assert steps[-1] == 60
    assert set(steps) < {10, 20, 30, 40, 50, 60} or len(steps) == 6
    assert len(steps) >= 2


def test_more_kills_than_fit_end_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        demo.demo(kills=20, steps=10, every=5, seed=3, text=None, out=tmp_path / "out", trainer=TINY)
    assert ended.value.code == 2
    assert "20 kills do not fit into 10 steps" in capsys.readouterr().out
