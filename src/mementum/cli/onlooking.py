"""Onlooking: a disk that can be looked at and not changed, so that who only explains a root cannot touch it."""

from __future__ import annotations

import errno
from typing import NoReturn

from mementum.storage.disk import NewFile, PosixDisk
from mementum.storage.local import NOT_AN_OBJECT


class Onlooker(PosixDisk):
    """What the system refuses to list looks empty, and stands in `refused` by its path, with the reason.

    Reading a refused file raises as on any disk. A lock may be taken: it changes no byte, and ends with us."""

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}

    def listdir(self, folder: str) -> list[str]:
        try:
            return super().listdir(folder)
        except OSError as error:
            self._refuse(folder, error)
            return []

    def has_folder(self, folder: str) -> bool:
        try:
            return super().has_folder(folder)
        except OSError as error:
            self._refuse(folder, error)
            return False

    def size(self, path: str) -> int:
        try:
            return super().size(path)
        except OSError as error:
            if error.errno in NOT_AN_OBJECT:
                raise
            self._refuse(path, error)
            raise FileNotFoundError(errno.ENOENT, "cannot be seen by this user", path) from error

    def create(self, path: str) -> NewFile:
        _forbid(path)

    def append(self, path: str) -> NewFile:
        _forbid(path)

    def rename_new(self, old: str, new: str) -> None:
        _forbid(new)

    def rename_over(self, old: str, new: str) -> None:
        _forbid(new)

    def link(self, old: str, new: str) -> None:
        _forbid(new)

    def unlink(self, path: str) -> None:
        _forbid(path)

    def unlink_unused(self, path: str) -> bool:
        _forbid(path)

    def mkdir(self, folder: str) -> None:
        _forbid(folder)

    def rmdir(self, folder: str) -> None:
        _forbid(folder)

    def _refuse(self, path: str, error: OSError) -> None:
        self.refused[path.rstrip("/") or "/"] = error.strerror or str(error)


def _forbid(path: str) -> NoReturn:
    raise AssertionError(f"{path} was about to be changed by somebody who only looks")
