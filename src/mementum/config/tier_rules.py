"""Tier rules: settings of places that cannot all be kept."""

from __future__ import annotations

from collections.abc import Iterator

from mementum.config.quantities import share_text, size_text
from mementum.config.reading import Path
from mementum.config.settings import Settings
from mementum.config.tiers import FOLDERS, Tier
from mementum.records import Reach

Said = Iterator[tuple[Path, str]]


def tier_rules(settings: Settings) -> Said:
    """What of the tiers and marks cannot be kept, each with its path."""
    names: dict[str, int] = {}
    for number, tier in enumerate(settings.tiers):
        path: Path = ("tiers", number)
        if tier.called in names:
            text = f"tier {names[tier.called]} of the list is called {tier.called} too: give one of them a name"
            yield (*path, "url" if tier.name is None else "name"), text
        names.setdefault(tier.called, number)
        yield from _tier(settings, tier, path)
    marks = settings.watermarks
    if marks is not None and not marks.clean_to < marks.clean_from <= marks.emergency:
        told = ", ".join(str(share_text(one)) for one in (marks.clean_to, marks.clean_from, marks.emergency))
        yield ("watermarks",), f"clean_to, clean_from and emergency must rise, and are {told}"


def _tier(settings: Settings, tier: Tier, path: Path) -> Said:
    scheme = tier.url.partition("://")[0] if "://" in tier.url else ""
    if len(set(tier.levels)) < len(tier.levels):
        yield (*path, "levels"), f"{list(tier.levels)} names a level twice"
    if 1 not in tier.levels and tier.codec is not None:
        yield (*path, "codec"), "it is of optimizer state (level 1), which does not go there"
    if scheme == "ram" and tier.outlives is not Reach.PROCESS:
        yield (*path, "reach"), "memory does not outlive the machine's next start: `process`"
    if tier.storage_class is not None and scheme in (*FOLDERS, "ram", "redis", "rediss"):
        yield (*path, "storage_class"), "only object stores have classes"
    size = settings.expected.checkpoint_size
    if size is not None and tier.budget is not None and tier.budget < size:
        text = f"{size_text(tier.budget)} do not hold one checkpoint of {size_text(size)}"
        yield (*path, "budget"), text
