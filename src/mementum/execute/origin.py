"""Where a run comes from: versions of what computes, and the commit of the code that trains."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("mementum", "torch", "numpy", "safetensors", "zstandard")
GIT_TIMEOUT_S = 2.0  # a huge or remote work tree may answer slowly; the run does not wait for it


def versions() -> dict[str, str]:
    """Package names to versions, with python's and the platform's."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def code() -> dict[str, object]:
    """The git commit of the folder that holds the main script, and whether tracked files differ from it."""
    main = Path(sys.argv[0]).resolve().parent if sys.argv and sys.argv[0] else Path.cwd()
    commit = _git(main, "rev-parse", "HEAD")
    if commit is None:
        return {}
    status = _git(main, "status", "--porcelain", "--untracked-files=no")
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
