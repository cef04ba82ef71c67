"""A catalog that is a dictionary: what `SqlCatalog` does, without its milliseconds, where thousands are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mementum.records import Entry, Fact, Manifest


class PlainCatalog:
    """A `Catalog` that forgets facts."""

    def __init__(self) -> None:
        self._manifests: dict[str, dict[str, Manifest]] = {}
        self._sizes: dict[str, dict[str, int]] = {}

    def add(self, home: str, manifest: Manifest, folder: str) -> None:
        self._manifests.setdefault(home, {})[folder] = manifest

    def forget(self, home: str, folder: str) -> None:
        self._manifests.get(home, {}).pop(folder, None)

    def learn(self, home: str, source: str, facts: Iterable[Fact], *, size: int, begin: int = 0) -> None:
        self._sizes.setdefault(home, {})[source] = size

    def read_sizes(self, home: str) -> dict[str, int]:
        return dict(self._sizes.get(home, {}))

    def entries(self, home: str) -> Sequence[Entry]:
        found = (Entry(manifest=each, folder=folder) for folder, each in self._manifests.get(home, {}).items())
        return sorted(found, key=lambda entry: entry.order)

    def close(self) -> None:
        """There is nothing to close."""
