"""Quarantine: which saved states are not trusted while a run is in trouble, and which of those before it is kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from mementum.records import Diagnosis, Health, record

PINS_KEPT = 2  # of troubles that are over: one to look at beside the newest, and no disk fills with old ones
WORSE = (Health.CLEAN, Health.SUSPECT, Health.DIVERGED)


@record
class State:
    """A state of the run that was saved, or is being saved. `durable`: whether a disk has it. `unsound`: something in
    it is not finite, whatever the vital signs say. `pinned`: why the flight recorder lets it stay, if it does."""

    id: str
    step: int
    exact: bool = True
    durable: bool = False
    health: Health = Health.CLEAN
    unsound: bool = False
    pinned: str | None = None


@record
class Mark:
    """What is known of a state's health from now on, and why."""

    id: str
    step: int
    health: Health
    why: str


@record
class Kept:
    """The state that is kept for a trouble, and why."""

    state: State
    why: str


def changed(before: Diagnosis, after: Diagnosis) -> bool:
    """Whether there is news, besides that steps go by."""
    if before.health is Health.CLEAN and after.health is Health.CLEAN:
        return False
    return (before.health, before.onset, before.episode) != (after.health, after.onset, after.episode)


def health_at(diagnosis: Diagnosis, step: int) -> Health:
    """Of the state after this step."""
    if diagnosis.health is Health.CLEAN or (diagnosis.onset is not None and step < diagnosis.onset):
        return Health.CLEAN
    return diagnosis.health


def marks(before: Diagnosis, after: Diagnosis, step: int, states: Iterable[State]) -> tuple[Mark, ...]:
    """Whose health is another one by the diagnosis that was made after this step, oldest step first.

    In trouble: all from the onset on are as the run is, and none becomes better. When it is over, those of the calm
    stretch that has ended it become clean; those between the onset and that stretch stay as they are."""
    in_order = sorted(states, key=lambda state: state.step)
    if after.health is not Health.CLEAN:
        why = f"from step {after.onset} on: {after.why}"
        return tuple(
            Mark(id=state.id, step=state.step, health=after.health, why=why)
            for state in in_order
            if WORSE.index(health_at(after, state.step)) > WORSE.index(state.health)
        )
    if before.health is Health.CLEAN or before.onset is None:
        return ()
    began = max(step - after.calm + 1, before.onset)
    why = f"the run was calm again from step {began} on"
    return tuple(
        Mark(id=state.id, step=state.step, health=Health.CLEAN, why=why)
        for state in in_order
        if state.step >= began and state.health is not Health.CLEAN and not state.unsound
    )


def to_keep(diagnosis: Diagnosis, states: Iterable[State], within_reach: Collection[str]) -> Kept | None:
    """The newest clean state from before the onset that can be had: one on a disk, or one that is `within_reach`, in
    memory or on its way. None where there is none, or no trouble."""
    if diagnosis.health is Health.CLEAN or diagnosis.onset is None:
        return None
    before = [
        state
        for state in states
        if state.exact
        and state.health is Health.CLEAN
        and state.step < diagnosis.onset
        and (state.durable or state.id in within_reach)
    ]
    if not before:
        return None
    newest = max(before, key=lambda state: (state.step, state.durable, state.id))
    return Kept(state=newest, why=f"the newest state before step {diagnosis.onset}, where {diagnosis.why}")


def given_up(states: Sequence[State]) -> tuple[State, ...]:
    """Those whose pin is given up now that a trouble has ended: all that were pinned for one but the newest few."""
    pinned = [state for state in states if state.pinned is not None]
    return tuple(sorted(pinned, key=lambda state: state.id, reverse=True)[PINS_KEPT:])
