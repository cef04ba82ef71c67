"""The repository speaks of the project alone: no path of a machine, no registry's host."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HOSTS_AND_FOLDERS = [("/wo", "rk/"), ("/ro", "ot/"), ("pypi", ".org"), ("python", "hosted"), ("deb.", "debian.org")]
WORDS = ["".join(halves) for halves in [*HOSTS_AND_FOLDERS, ("npm", "js")]]  # in halves: this file is searched too


def words_in(data: bytes) -> list[str]:
    return [word for word in WORDS if word.encode() in data]


@pytest.mark.parametrize("word", WORDS)
def test_a_forbidden_word_is_found(word: str) -> None:
    assert words_in(f"see {word} there".encode()) == [word]


def test_the_repository_names_no_machine_of_ours() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("which files belong to the repository is known to git only")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    files = [ROOT / name for name in listed if name and (ROOT / name).is_file()]
    wrong = [f"{file.relative_to(ROOT)}: {word}" for file in files for word in words_in(file.read_bytes())]
    assert files
    assert not wrong, "\n".join(wrong)
