"""The documents' own `checkpoint_config.yaml`: each of its keys as a setting of ours, or the reason why it is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from mementum.config.checking import Line, checked
from mementum.config.policies import BASE_INTERVAL, RISK_THRESHOLD, STABILITY_WINDOW, WINDOW_MAX
from mementum.config.presets import Said
from mementum.config.reading import Finding, Path
from mementum.config.section import Count, Name, Part, Section
from mementum.config.tiers import DAYS_MAX
from mementum.records import record

ZSTD_LEVEL = 3  # zstandard's own, where none is given
NO_TIER = "checkpoints lie in the root folder, whatever device that is; further places are `tiers`, each with its url"
NO_LADDER = (
    "the ladder of recovery comes with a later part: until then a run resumes from an exact state only, from an older "
    "one where the newest is damaged"
)
LEVEL_2 = "the context is JSON of a few KB, which is kept as it is: compressed, no other program could read it"
LEVELS = ("level_0", "level_1", "level_2")


class Level(Section):
    """How one level of the state is stored."""

    compression: Literal["none", "zstd", "gzip"] = "none"
    """Level 1: zstd chooses the codec. Weights (level 0) are always raw, the context (level 2) is plain JSON."""
    compression_level: Annotated[int, Field(strict=True, ge=1, le=22)] | None = None
    """Of zstd."""
    device: Name | None = None
    """No effect: checkpoints lie in the root folder; further places are `tiers`, each with its url."""
    retention_days: Annotated[int, Field(strict=True, ge=1, le=DAYS_MAX)] | None = None
    """After how many days the level is dropped: retention_days of ours."""


class Levels(Section):
    """The levels of the state."""

    level_0: Level | None = None
    """Weights."""
    level_1: Level | None = None
    """Optimizer state."""
    level_2: Level | None = None
    """Context."""


class Documents(Section):
    """The keys of the documents' file. They may stand beside ours."""

    base_interval: Count | None = None
    """Chooses the window policy: steps between saves of a calm run."""
    stability_window: Annotated[int, Field(strict=True, ge=2, le=WINDOW_MAX)] | None = None
    """Chooses the window policy: how many of the newest losses tell whether the loss is stable."""
    risk_threshold: Part | None = None
    """Chooses the window policy: the risk, 0 to 1, from which on its rise saves at once."""
    storage_levels: Levels | None = None
    """How each level of the state is stored."""
    recovery_timeout_ms: Count | None = None
    """No effect yet: a resume takes the time that it takes."""
    fallback_strategy: Literal["exact", "full", "level_0_1", "level_0_only"] | None = None
    """No effect yet, but for `exact`, which always holds."""


WINDOW: Mapping[str, Any] = {
    "base_interval": BASE_INTERVAL,
    "stability_window": STABILITY_WINDOW,
    "risk_threshold": RISK_THRESHOLD,
}
MEANT: Mapping[str, str] = {
    "base_interval": "the window policy's interval of a calm run, in steps",
    "stability_window": "how many losses the window policy looks at",
    "risk_threshold": "the risk from which on the window policy saves at once",
}


@record
class Translated:
    """Ours: values of settings. `source`: from which of their keys each of ours came."""

    values: Mapping[str, Any]
    source: Mapping[Path, Path]
    said: tuple[Said, ...] = ()
    findings: tuple[Finding, ...] = ()


def translated(values: Mapping[str, Any], line: Line) -> Translated:
    """The values with their keys taken out, and put in as ours."""
    theirs = {key: value for key, value in values.items() if key in Documents.model_fields}
    ours = {key: value for key, value in values.items() if key not in theirs}
    if not theirs:
        return Translated(values=ours, source={})
    found, findings = checked(Documents, theirs, line)
    if found is None:
        return Translated(values=ours, source={}, findings=findings)
    said: list[Said] = []
    source: dict[Path, Path] = {}
    clashes: list[Finding] = []

    def put(key: str, value: Any, path: Path, beside: tuple[str, ...]) -> None:
        taken = [other for other in beside if other in values]
        if taken:
            name = ".".join(map(str, path))
            clashes.append(Finding(key=name, line=line(path), what=f"it chooses the {key}, and {taken[0]} does too"))
            return
        ours[key] = value
        source[(key,)] = path

    window = {key: theirs[key] for key in WINDOW if theirs.get(key) is not None}
    if window:
        said += [_works(key, MEANT[key]) for key in window]
        put("policy", ["before_stop", {"window": window}], (next(iter(window)),), ("policy", "every_steps", "every_s"))
        source |= {("policy", 1, "window", key): (key,) for key in window}
    levels = found.storage_levels or Levels()
    codec = _codec(levels.level_1)
    if codec is not None:
        put("codec", codec, ("storage_levels", "level_1", "compression"), ("codec",))
    days = {name: level.retention_days for name in LEVELS if (level := getattr(levels, name)) is not None}
    days = {name: count for name, count in days.items() if count is not None}
    if days:
        put("retention_days", days, ("storage_levels", next(iter(days)), "retention_days"), ("retention_days",))
        source |= {("retention_days", name): ("storage_levels", name, "retention_days") for name in days}
    for name in LEVELS:
        said += _level(name, getattr(levels, name), codec)
    said += _recovery(found)
    return Translated(values=ours, source=source, said=tuple(said), findings=tuple(clashes))


def _works(key: str, text: str) -> Said:
    return Said(key=key, text=text, effective=True)


def _idle(key: str, text: str) -> Said:
    return Said(key=key, text=text, effective=False)


def _codec(level: Level | None) -> str | None:
    """That of optimizer state, as level 1 wants it."""
    if level is None or "compression" not in level.model_fields_set or level.compression == "gzip":
        return None
    return "raw" if level.compression == "none" else f"zstd:{level.compression_level or ZSTD_LEVEL}"


def _level(name: str, level: Level | None, codec: str | None) -> list[Said]:
    """What becomes of the keys of one level."""
    if level is None:
        return []
    said: list[Said] = []
    given, above = level.model_fields_set, f"storage_levels.{name}."
    if "compression" in given:
        said.append(_compression(name, level, codec))
    if "compression_level" in given:
        text = f"part of the codec {codec}" if name == "level_1" and level.compression == "zstd" else "nothing uses it"
        said.append(Said(key=f"{above}compression_level", text=text, effective=text != "nothing uses it"))
    if "device" in given:
        said.append(_idle(f"{above}device", NO_TIER))
    if level.retention_days is not None:
        text = f"{name} of a checkpoint that need not stay is dropped after {level.retention_days} days"
        said.append(_works(f"{above}retention_days", text))
    return said


def _compression(name: str, level: Level, codec: str | None) -> Said:
    key = f"storage_levels.{name}.compression"
    if name == "level_2":
        return _works(key, "the context is plain JSON") if level.compression == "none" else _idle(key, LEVEL_2)
    if name == "level_0":
        if level.compression == "none":
            return _works(key, "weights are always raw, so that every reader of safetensors opens them")
        return _idle(key, "weights are always raw: compressing them gains little, and no other program could map them")
    if codec is None:
        return _idle(key, "optimizer state is compressed by zstd or not at all: there is no codec gzip here")
    return _works(key, f"the codec of optimizer state: {codec}")


def _recovery(found: Documents) -> list[Said]:
    said: list[Said] = []
    if found.recovery_timeout_ms is not None:
        said.append(_idle("recovery_timeout_ms", NO_LADDER))
    if found.fallback_strategy == "exact":
        said.append(_works("fallback_strategy", "a run resumes from an exact state only"))
    elif found.fallback_strategy is not None:
        said.append(_idle("fallback_strategy", NO_LADDER))
    return said
