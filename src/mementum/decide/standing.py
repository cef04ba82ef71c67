"""Standings, looked up: which of them a save should answer, and how long it would take."""

from __future__ import annotations

from collections.abc import Sequence

from mementum.records import Reach, Situation, Standing


def deepest_first(situation: Situation) -> tuple[Standing, ...]:
    """A save for the deepest reach serves all others too, so it is looked at first."""
    return tuple(sorted(situation.standings, key=lambda standing: standing.reach, reverse=True))


def at_least(standings: Sequence[Standing], reach: Reach) -> Standing | None:
    """The shallowest standing that outlives a loss of `reach`; the deepest there is where none does; None of none."""
    enough = [standing for standing in standings if standing.reach >= reach]
    if enough:
        return min(enough, key=lambda standing: standing.reach)
    return max(standings, key=lambda standing: standing.reach, default=None)


def reach_of(situation: Situation, wanted: Reach) -> Reach:
    """The reach that a save can have here, if `wanted` is asked for: `wanted` itself where nothing is known."""
    found = at_least(situation.standings, wanted)
    return wanted if found is None else found.reach


def ready_s(standing: Standing) -> float:
    """Seconds from the decision until the state outlives the loss: measured, planned before the first save."""
    return max(standing.durable_s, standing.cost_s)
