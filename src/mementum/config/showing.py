"""Showing: settings as the YAML that gives them, with where each of them is from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from mementum.config.checking import SWITCHED
from mementum.config.loading import Configured
from mementum.config.reading import plain
from mementum.config.section import Section
from mementum.config.settings import Settings
from mementum.masking import veiled

BARE = re.compile(r"[A-Za-z0-9_](?:[\w .%/+-]*[\w%])?", re.ASCII)  # texts that YAML needs no quotes for
COMMENT_COLUMN = 40  # where comments begin, if the value leaves room


def rendered(configured: Configured) -> str:
    """A YAML text that `load` reads as the same settings, but for secrets, which are hidden. Comments say where each
    value is from, and at the end what becomes of keys that are not ours or wait for a later part."""
    lines = [f"# {configured.source}", *_section(plain_settings(configured.settings), (), configured)]
    for said in configured.said:
        lines.append(f"# {said.key}: {'' if said.effective else 'no effect: '}{said.text}")
    return "".join(f"{line}\n" for line in lines)


def plain_settings(settings: Settings) -> dict[str, Any]:
    """Plain values as a file would have them: policies by names, amounts with units, of tiers what was said. Secrets
    are hidden."""
    values: dict[str, Any] = settings.model_dump(mode="json")
    if settings.policy is not None:
        values["policy"] = [_policy(policy) for policy in settings.policy]
    values["catalog"] = veiled("catalog", settings.catalog)
    values["tiers"] = [
        {key: veiled(key, value) for key, value in tier.model_dump(mode="json", exclude_defaults=True).items()}
        for tier in settings.tiers
    ]
    return values


def _policy(policy: Section) -> Any:
    kind: str = getattr(policy, "kind")  # noqa: B009 - every policy has one, sections in general have none
    values = policy.model_dump(mode="json")
    return {kind: values} if values else kind


def _section(values: dict[str, Any], above: tuple[str, ...], configured: Configured) -> Iterator[str]:
    indent = "  " * len(above)
    for key, value in values.items():
        path = ".".join((*above, key))
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _section(value, (*above, key), configured)
            continue
        origin = configured.origins.get(path, "default")
        if path in ("policy", "tiers") and value:
            yield _commented(f"{indent}{key}:", origin)
            yield from (f"{indent}  - {_flow(one, outermost=path == 'policy')}" for one in value)
        else:
            off = value is None and path in SWITCHED
            yield _commented(f"{indent}{key}: {'off' if off else _flow(value)}", origin)


def _commented(text: str, origin: str) -> str:
    return f"{text.ljust(COMMENT_COLUMN)}  # {origin}"


def _flow(value: Any, *, outermost: bool = False) -> str:
    """A value on one line."""
    if isinstance(value, dict):
        text = ", ".join(f"{key}: {_flow(one)}" for key, one in value.items())
        return text if outermost else f"{{{text}}}"
    if isinstance(value, list):
        return f"[{', '.join(_flow(one) for one in value)}]"
    if isinstance(value, str):
        return value if BARE.fullmatch(value) and plain(value) == value else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)
