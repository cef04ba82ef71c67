"""Where a root's catalog lies: always on a local disk, since SQLite's locks and maps need one."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
from blake3 import blake3

NAME = "catalog.db"
# File systems over which SQLite's write-ahead log must not be used: its shared memory needs one kernel.
REMOTE = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "virtiofs"}
)


def catalog_path(root: Path) -> Path:
    """Beside a local root; for a root on a network file system in the user's cache folder."""
    if not is_remote(root):
        return root / NAME
    return cached_path(str(root.resolve()))


def cached_path(name: str) -> Path:
    """In the user's cache folder, which is made: for a root of that name, which no local disk has."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mementum"
    cache.mkdir(parents=True, exist_ok=True)
    return cache / f"{blake3(name.encode()).hexdigest()[:16]}.db"


def is_remote(path: Path) -> bool:
    """Whether other hosts may reach `path`, by its file system."""
    kind = file_system(path)
    return kind in REMOTE or kind.startswith("fuse")


def file_system(path: Path) -> str:
    """The type of the file system that holds `path`; empty where the system does not tell."""
    resolved = path.resolve()
    best, kind = -1, ""
    try:
        partitions = psutil.disk_partitions(all=True)
    except OSError:
        return ""
    for partition in partitions:
        mount = Path(partition.mountpoint)
        if resolved.is_relative_to(mount) and len(mount.parts) >= best:
            best, kind = len(mount.parts), partition.fstype
    return kind
