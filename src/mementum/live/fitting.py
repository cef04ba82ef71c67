"""Fitting: how a stored state goes into objects that have changed since, by names, with a list of what did not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from mementum.errors import UsageError
from mementum.records import record


@record
class Fit:
    """What the caller allows. The default is strict: everything fits, or nothing is touched.

    partial: load what fits by name, shape and dtype; list the rest.
    rename: stored names to live ones, `model.encoder.` to `model.backbone.` (a prefix ends with a dot), or a whole
        component, `model` to `net`. Names are those of parameters with their component before them.
    lr_wins: whose learning rates hold after the load, those that were `stored` or those of the program (`new`).
    """

    partial: bool = False
    rename: Mapping[str, str] = field(default_factory=dict)
    lr_wins: Literal["stored", "new"] = "stored"
    fresh: frozenset[str] = frozenset()  # parameters that were not loaded: their optimizer state is not either

    def renamed(self, name: str) -> str:
        """The live name of a stored one. Components go first, then the longest rule that applies to the name."""
        return self._ruled(self.renamed_component(name))

    def renamed_component(self, name: str) -> str:
        """The name with its component as it is called now."""
        component, dot, rest = name.partition(".")
        return f"{self.rename[component]}.{rest}" if component in self.rename and dot else name

    def _ruled(self, name: str) -> str:
        for old in sorted(self.rename, key=len, reverse=True):
            if name == old:
                return self.rename[old]
            if old.endswith(".") and name.startswith(old):
                return self.rename[old] + name[len(old) :]
        return name

    def key(self, component: str, key: str) -> str:
        """The live key, within its component (by its live name), of a stored key."""
        name = self._ruled(f"{component}.{key}")
        if not name.startswith(f"{component}."):
            raise UsageError(
                f"rename: {component}.{key} to {name} would leave its component {component}",
                next_command=f'rename a whole component by its name alone: {{"{component}": "…"}}',
            )
        return name.removeprefix(f"{component}.")


STRICT = Fit()


@record
class Fitted:
    """A tree that can be applied, what forbids it, and what of the stored or the live state it leaves out."""

    tree: object
    problems: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    fresh: frozenset[str] = frozenset()


def whole(tree: object, problems: list[str], fit: Fit) -> Fitted:
    """For what fits as it is or not at all: a partial load leaves it as it is where it does not."""
    if problems and fit.partial:
        return Fitted(tree=LEFT, left_out=tuple(problems))
    return Fitted(tree=tree, problems=tuple(problems))


LEFT = object()  # stands for a tree that is not to be applied
