"""Health: what the signs of a divergence mean for the state of a run, from when on, and when it is clean again."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from math import log
from statistics import median
from typing import Any

from mementum.perceive.rated import Rated
from mementum.perceive.signs import Limits, Sign
from mementum.perceive.spikes import Persistence
from mementum.records import Diagnosis, Health, Trouble, Vitals

STATE_VERSION = 2  # of what `state` gives: another one is not taken up
REMEMBERED = 1024  # looks: a drift of a spread in 100 steps is noticed after 150, and is fitted with what was before it
RECENT = 16  # losses whose median is compared with the level of before: their noise is then a third of a spread
RECENT_MIN = 4  # of finite ones among them: fewer prove nothing
NEWEST = 5  # losses, each of which must be above as well for it to be confirmed: the recent ones hold older ones
NEAR = 1.0  # spreads above that level that count as back: three times the noise of that median
LOWEST_MIN = 8  # losses, where nothing is known of before: the lowest of their medians stands for it
STEADY_HOLDS = 10  # times the hold, without any sign: a level that has come to stay
LOSS_STEPS = 2  # of the last `within_steps` above `loss_z_stays`: with a gradient spike, more than one bad batch
EXPECTED = "expected"  # the event by which a program says that what follows may have another loss
DIVERGENCE = frozenset({Trouble.NON_FINITE, Trouble.LOSS_SPIKE, Trouble.GRAD_SPIKE, Trouble.DRIFT})
NAN = float("nan")

Row = tuple[int, float, float]  # step, loss, logarithm of the gradient norm; NaN for what is not known


class Judge:
    """Makes a `Diagnosis` of each look. A trouble opens when a loss spike, a drift, something that is not finite or a
    gradient spike that lasts is told; it is worse when the loss has not come back `confirm` steps later; it ends after
    `hold` steps that were as before it, by the step's number. Steps that come again, after a rollback, replace those
    that they repeat: with `apply`, or without."""

    def __init__(self, *, hold: int = 100, confirm: int = 50, limits: Limits | None = None) -> None:
        self._hold, self._confirm = hold, confirm
        self._limits = limits = limits or Limits()
        self._rows: deque[Row] = deque(maxlen=REMEMBERED)
        self._grads = Persistence(limits.within_steps)
        self._losses = Persistence(limits.within_steps)
        self._rated = Rated()
        self._clean = Diagnosis(hold=hold)
        self._told = self._clean
        self._level: float | None = None  # of the loss before the onset, and
        self._spread: float | None = None  # its spread
        self._calm_since: int | None = None  # the first step of those in a row that were as before
        self._still_since: int | None = None  # the first step of those in a row without a sign
        self._above_since: int | None = None  # the first step of those in a row with the loss above its level
        self._meant_since: int | None = None  # the onset of what was no trouble, as the program has said just now
        self._unsound: tuple[int, int, str] | None = None  # what was found in a saved state, and not looked at yet

    def look(self, vitals: Vitals, signs: Sequence[Sign]) -> Diagnosis:
        """What the state after this step is. `signs`: all that the detectors have found at this step. Call it once a
        step, in order; steps may be missing, or go back."""
        if self._rows and vitals.step <= self._rows[-1][0]:
            self._rewind(vitals.step)
        self._remember(vitals)
        self._rated.look(vitals.lr, vitals.loss, learns=self._told.health is Health.CLEAN)
        sign = self._worst(vitals, signs)
        if self._told.health is not Health.CLEAN:
            self._told = self._followed(vitals, signs, sign)
        elif sign is not None:
            self._told = self._opened(vitals.step, sign)
        else:
            self._told = self._clean if self._meant_since is None else self._meant(vitals.step, self._meant_since)
        self._meant_since = None
        unsound, self._unsound = self._unsound, None
        if unsound is not None:
            self._told = self._spoilt(vitals.step, *unsound)
        return self._told

    def found(self, step: int, after_step: int, why: str) -> None:
        """The state after `step`, which was saved, is not finite, and that after `after_step` was. It counts at the
        next look; on any thread."""
        self._unsound = (step, after_step, why)

    def expect(self) -> None:
        """What follows may have another level than what was, and the program means it. A loss that is suspect is so no
        more, from the onset on; a state that has diverged is clean after the hold, whatever the level is then."""
        told = self._told
        self._rows.clear()
        self._rated = Rated()
        self._grads.bits = self._losses.bits = 0
        self._level = self._spread = None
        if told.health is Health.SUSPECT:
            self._told, self._meant_since = self._clean, told.onset

    def state(self) -> dict[str, Any]:
        """All that it remembers, as plain values and bytes."""
        told = self._told
        return {
            "version": STATE_VERSION,
            "steps": array("q", [row[0] for row in self._rows]).tobytes(),
            "losses": array("d", [row[1] for row in self._rows]).tobytes(),
            "log_norms": array("d", [row[2] for row in self._rows]).tobytes(),
            "rated": self._rated.state(),
            "bits": [self._grads.bits, self._losses.bits],
            "told": [told.health.value, told.onset, told.seen, told.why, told.calm, told.episode],
            "before": [self._level, self._spread],
            "since": [self._calm_since, self._still_since, self._above_since],
        }

    def apply(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave. Troubles are counted on: one that a rollback has left behind was one."""
        if state.get("version") != STATE_VERSION:
            return
        steps, losses, norms = array("q"), array("d"), array("d")
        steps.frombytes(state["steps"])
        losses.frombytes(state["losses"])
        norms.frombytes(state["log_norms"])
        health, onset, seen, why, calm, episode = state["told"]
        self._clean = replace(self._clean, episode=max(self._clean.episode, episode))
        told = replace(self._clean, health=Health(health), onset=onset, seen=seen, why=why, calm=calm)
        self._rows = deque(zip(steps, losses, norms, strict=True), maxlen=REMEMBERED)
        self._rated.apply(state["rated"])
        self._grads.bits, self._losses.bits = state["bits"]
        self._told, self._unsound = told, None
        self._level, self._spread = state["before"]
        self._calm_since, self._still_since, self._above_since = state["since"]

    def _rewind(self, step: int) -> None:
        """Forget what is to come again, from `step` on. A trouble that has not begun by then is none yet."""
        while self._rows and self._rows[-1][0] >= step:
            self._rows.pop()
        self._grads.bits = self._losses.bits = 0
        told = self._told
        if told.onset is not None and step <= told.onset:
            self._told = self._clean
        self._calm_since = self._still_since = self._above_since = None

    def _remember(self, vitals: Vitals) -> None:
        loss, norm = vitals.loss, vitals.grad_norm
        row = (vitals.step, NAN if loss is None else loss, log(norm) if norm is not None and norm > 0.0 else NAN)
        self._rows.append(row)

    def _worst(self, vitals: Vitals, signs: Sequence[Sign]) -> Sign | None:
        """The sign that is worth a quarantine: of a gradient, one that lasts or that the loss confirms."""
        limits, gradient, found = self._limits, None, None
        for sign in signs:
            if sign.trouble is Trouble.GRAD_SPIKE:
                gradient = sign
            elif sign.trouble is Trouble.NON_FINITE or (_spoils(sign) and found is None):
                found = sign
        grads = self._grads.add(gradient is not None)
        high = self._losses.add(vitals.loss_z is not None and vitals.loss_z > limits.loss_z_stays)
        if self._is_rated(signs):  # a gradient too
            return None
        if found is not None or gradient is None:
            return found
        return gradient if grads >= limits.stays_steps or high >= LOSS_STEPS else None

    def _opened(self, step: int, sign: Sign) -> Diagnosis:
        """A trouble is noticed."""
        import numpy as np  # only here: most runs are never in trouble

        from mementum.perceive.onset import onset

        steps, losses, norms = zip(*self._rows, strict=True)
        began = onset(np.array(steps, dtype=np.int64), np.array(losses), np.array(norms), rising=sign.rising)
        self._level, self._spread = began.level, began.spread
        if began.level is None:
            self._level, self._spread = self._lowest(), 0.0
        self._calm_since = self._still_since = None
        self._above_since = step
        self._clean = replace(self._clean, episode=self._clean.episode + 1)
        health = Health.DIVERGED if sign.trouble is Trouble.NON_FINITE else Health.SUSPECT
        return replace(self._clean, health=health, onset=min(began.step, step), seen=step, why=sign.text)

    def _followed(self, vitals: Vitals, signs: Sequence[Sign], sign: Sign | None) -> Diagnosis:
        """The trouble goes on, or ends."""
        told, step = self._told, vitals.step
        bad = any(map(_spoils, signs)) and not self._is_rated(signs)
        near = self._is_near()
        calm = not bad and near is True
        self._calm_since = _since(self._calm_since, step, calm)
        self._still_since = _since(self._still_since, step, not bad and vitals.loss_finite)
        if near is not None:
            self._above_since = _since(self._above_since, step, not near)
        if _count(self._calm_since, step) >= self._hold:
            return replace(self._clean, calm=_count(self._calm_since, step))
        if (still := _count(self._still_since, step)) >= STEADY_HOLDS * self._hold:
            why = f"the loss has stayed at its new level for {still} steps without any sign: it is taken as normal"
            return replace(self._clean, calm=still, why=why)
        told = replace(told, calm=_count(self._calm_since, step))
        if sign is not None and sign.trouble is Trouble.NON_FINITE:
            return told if told.health is Health.DIVERGED else replace(told, health=Health.DIVERGED, why=sign.text)
        above = _count(self._above_since, step) - 1  # steps since the first
        if told.health is Health.SUSPECT and above >= self._confirm and near is False and self._stays():
            why = f"{told.why}; the loss has stayed above {self._level:.4g}, its level before, for {above} steps"
            return replace(told, health=Health.DIVERGED, why=why)
        return told

    def _meant(self, step: int, onset: int) -> Diagnosis:
        """All since what was taken for an onset is clean."""
        return replace(self._clean, calm=step - onset + 1, why="another level is expected")

    def _spoilt(self, step: int, unsound_step: int, after_step: int, why: str) -> Diagnosis:
        """The vital signs may show nothing of it: the states since the last one that was finite are in doubt."""
        told, since = self._told, after_step + 1
        if told.health is Health.CLEAN:
            told = self._opened(step, Sign(trouble=Trouble.NON_FINITE, value=NAN, limit=0.0, text=why))
        self._calm_since = self._still_since = None
        onset = since if told.onset is None else told.onset
        if told.seen == step and not self._spread:  # too little was seen for an estimate from the vital signs
            onset = since
        elif told.seen == step or onset > unsound_step:
            onset = min(onset, since)
        return replace(told, health=Health.DIVERGED, onset=onset, why=why, calm=0)

    def _is_near(self) -> bool | None:
        """Whether the loss, since the trouble was seen, is at its level from before. None: too few are known yet. True
        where nothing is known that could say otherwise."""
        losses = self._newest(RECENT)
        if self._level is None or self._spread is None or not losses:
            return True
        return median(losses) <= self._near() if len(losses) >= RECENT_MIN else None

    def _stays(self) -> bool:
        """Whether each of the newest losses is above the level from before."""
        return min(self._newest(NEWEST), default=0.0) > self._near()

    def _newest(self, count: int) -> list[float]:
        """The last losses since the trouble was seen, newest first."""
        recent = takewhile(lambda row: row[0] >= (self._told.seen or 0), reversed(self._rows))
        return list(islice(_known(recent), count))

    def _near(self) -> float:
        """The highest loss that counts as being at the level from before."""
        near, usual = (self._level or 0.0) + NEAR * (self._spread or 0.0), self._rated.usual()
        return near if usual is None else max(near, usual)

    def _is_rated(self, signs: Sequence[Sign]) -> bool:
        """Whether what is seen is what the learning rate of now did to the loss before."""
        usual = self._rated.usual() if signs else None
        if usual is None or any(sign.trouble is Trouble.NON_FINITE for sign in signs):
            return False
        losses = list(islice(_known(reversed(self._rows)), RECENT_MIN))
        return bool(losses) and median(losses) <= usual

    def _lowest(self) -> float | None:
        """The lowest level of the losses so far, by medians; None where there are too few."""
        losses = list(_known(self._rows))
        medians = [median(losses[end - LOWEST_MIN : end]) for end in range(LOWEST_MIN, len(losses) + 1)]
        return min(medians, default=None)


def over(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a judge's `state` is where the state of the run that was saved with it is known to be clean: a trouble that
    was still held then has ended since, and is one that was. What was seen stays."""
    if state.get("version") != STATE_VERSION:
        return state
    return {
        **state,
        "told": [Health.CLEAN.value, None, None, "", 0, state["told"][-1]],
        "before": [None, None],
        "since": [None, None, None],
    }


def _spoils(sign: Sign) -> bool:
    return sign.spoils and sign.trouble in DIVERGENCE


def _known(rows: Iterable[Row]) -> Iterator[float]:
    return (loss for _, loss, _ in rows if loss == loss)  # of NaN, no comparison is true


def _since(since: int | None, step: int, goes_on: bool) -> int | None:
    """The first step of a stretch that goes on or has just begun; None where there is none."""
    if not goes_on:
        return None
    return step if since is None else since


def _count(since: int | None, step: int) -> int:
    return 0 if since is None else step - since + 1
