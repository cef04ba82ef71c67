"""A catalog that is a dictionary: what `SqlCatalog` does, without its milliseconds, where thousands are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mementum.catalog.recovery import best
from mementum.records import Entry, Fact, Manifest, Start


class PlainCatalog:
    """A `Catalog` that forgets facts."""

    def __init__(self) -> None:
        self._manifests: dict[str, dict[str, Manifest]] = {}
        self._sizes: dict[str, dict[str, int]] = {}
        self._starts: dict[str, dict[int, Start]] = {}

    def add(self, home: str, manifest: Manifest, folder: str) -> None:
        self._manifests.setdefault(home, {})[folder] = manifest

    def add_all(self, home: str, found: Iterable[tuple[Manifest, str]]) -> None:
        for manifest, folder in found:
            self.add(home, manifest, folder)

    def forget(self, home: str, folder: str) -> None:
        self._manifests.get(home, {}).pop(folder, None)

    def learn(self, home: str, source: str, facts: Iterable[Fact], *, size: int, begin: int = 0) -> int:
        sizes = self._sizes.setdefault(home, {})
        if sizes.get(source, 0) >= begin:
            sizes[source] = size
        return sizes.get(source, 0)

    def read_sizes(self, home: str) -> dict[str, int]:
        return dict(self._sizes.get(home, {}))

    def entries(self, home: str) -> Sequence[Entry]:
        found = (Entry(manifest=each, folder=folder) for folder, each in self._manifests.get(home, {}).items())
        return sorted(found, key=lambda entry: entry.order)

    def recovery_point(self, home: str, *, before_step: int | None = None) -> Entry | None:
        return best(self.entries(home), before_step=before_step)

    def begin(self, home: str, start: Start) -> None:
        self._starts.setdefault(home, {})[start.number] = start

    def starts(self, home: str) -> Sequence[Start]:
        return [start for _, start in sorted(self._starts.get(home, {}).items())]

    def homes(self) -> tuple[str, ...]:
        return tuple(sorted({*self._manifests, *self._sizes, *self._starts}))

    def close(self) -> None:
        """There is nothing to close."""
