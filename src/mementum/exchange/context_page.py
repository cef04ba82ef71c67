"""What a checkpoint knows besides its weights and moments, as JSON for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mementum.format import typed_json
from mementum.records import Manifest

NAME = "context.json"


def render(manifest: Manifest, context: Mapping[str, Any], *, order: Mapping[str, Any] | None = None) -> bytes:
    """Plain JSON where the values are plain; all else as it stands in a context: `{"$tuple": [1, 2]}`. `order` has
    the names of each optimizer's parameters, group by group, where an export has numbered them."""
    fields = {
        "checkpoint": manifest.id,
        "task": manifest.task,
        "step": manifest.step,
        "epoch": manifest.epoch,
        "time": manifest.time,
        "reason": manifest.reason,
        "granularity": manifest.granularity.name.lower(),
        "metrics": typed_json.encode(dict(manifest.metrics)),
        "versions": dict(manifest.versions),
        "user": typed_json.encode(dict(manifest.user)),
        "components": {name: _component(held) for name, held in context["components"].items()},
        "context": typed_json.encode(
            {key: value for key, value in context.items() if key not in ("components", "step", "epoch", "format")}
        ),
        **({} if order is None else {"order": dict(order)}),
    }
    return json.dumps(fields, indent=1, allow_nan=False).encode()


def _component(held: Mapping[str, Any]) -> dict[str, Any]:
    kind, state = held["kind"], held["state"]
    if kind == "module":  # its names stand in the file of its weights
        return {"kind": kind}
    if kind == "optimizer":  # its moments are tensors, by parameter; they would drown the settings
        state = {key: value for key, value in state.items() if key != "state"}
    return {"kind": kind, "state": typed_json.encode(state)}
