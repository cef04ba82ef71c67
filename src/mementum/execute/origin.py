"""Where a run comes from: versions of what computes, and the commit of the code that trains."""

from __future__ import annotations

import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("mementum", "torch", "numpy", "safetensors", "zstandard")
GIT_TIMEOUT_S = 2.0  # a huge or remote work tree may answer slowly; the run does not wait for it

_codes: dict[Path, dict[str, object]] = {}  # what was found, by the folder of the main script


def versions() -> dict[str, str]:
    """Package names to versions, with python's and the platform's."""
    installed = {package: found for package in PACKAGES if (found := _installed(package)) is not None}
    return {"python": platform.python_version(), "platform": platform.platform(), **installed}


@cache
def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def code() -> dict[str, object]:
    """The git commit of the folder that holds the main script, and whether tracked files differ from it: as it was when
    the process first asked, since what is changed later is not what trains."""
    folder = Path(sys.argv[0]).resolve().parent if sys.argv and sys.argv[0] else Path.cwd()
    if folder not in _codes and (found := _code_in(folder)):
        _codes[folder] = found
    return dict(_codes.get(folder, {}))


def _code_in(folder: Path) -> dict[str, object]:
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {}
    status = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, **({} if status is None else {"dirty": status != ""})}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ("git", "-C", str(folder), *arguments),
            capture_output=True,
            text=True,
            errors="replace",  # a status lists names of files, which may be any bytes
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
