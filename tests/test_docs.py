"""The documents hold: links lead somewhere, examples run, and the architecture names what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from house_lists import FLOORS
from loops import parts

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if not re.match(r"[a-z]+:", target)]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing, missing


def test_the_architecture_names_every_file() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    files = [path.relative_to(ROOT / "src/mementum") for path in (ROOT / "src/mementum").rglob("*.py")]
    stems = {path.stem for path in files} - {"__init__", "__main__"}
    words = set(re.findall(r"[a-z_0-9]+", text))
    typed = {stem for stem in stems if stem.startswith("typed_")}  # named together
    assert not stems - words - typed, sorted(stems - words - typed)


def test_the_architecture_names_no_file_that_is_gone() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    named = {name for name in re.findall(r"\b([a-z_]+)\.py\b", text) if name != "test_house"}
    stems = {path.stem for path in (ROOT / "src/mementum").rglob("*.py")}
    tests = {path.stem for path in (ROOT / "tests").rglob("*.py")}
    assert not named - stems - tests, sorted(named - stems - tests)


def test_the_architecture_draws_the_floors_as_they_are() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| (\d+) \| ((?:`\w+` ?)+)\|", text, re.MULTILINE)
    source = ROOT / "src/mementum"
    rooms = {path.stem for path in source.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    drawn = {int(number): set(re.findall(r"\w+", names)) for number, names in rows}
    assert drawn == {number: set(floor) & rooms for number, floor in enumerate(FLOORS, start=1)}


def test_the_example_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = [code for code in CODE.findall((ROOT / "README.md").read_text()) if "open_run" in code]
    monkeypatch.chdir(tmp_path)
    made = parts()

    def train_one_step(batch: list[torch.Tensor]) -> torch.Tensor:
        made.optimizer.zero_grad()
        loss = made.model(batch[0]).pow(2).mean()
        loss.backward()
        made.optimizer.step()
        made.scheduler.step()
        return loss

    names = {
        "model": made.model,
        "optimizer": made.optimizer,
        "scheduler": made.scheduler,
        "loader": made.loader,
        "train_one_step": train_one_step,
    }
    exec(example.replace("10_000", "10"), names)
    assert [path.parent.name for path in tmp_path.glob("ckpt/*/*/step_*/meta.json")] == ["step_0000000010"]


def test_the_digest_of_a_manifest_can_be_checked_as_the_format_says(monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = [code for code in CODE.findall((ROOT / "docs/format.md").read_text()) if "blake3" in code]
    (meta,) = (ROOT / "tests/golden/v1").glob("*/*/step_*/meta.json")
    monkeypatch.chdir(meta.parent)
    exec(example, {})
    with pytest.raises(AssertionError):
        exec(example.replace(".read_bytes()", '.read_bytes().replace(b"golden", b"g0lden")'), {})
