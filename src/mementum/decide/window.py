"""The window policy: an interval in steps, from how steady the loss is and how high the risk."""

from __future__ import annotations

from mementum.records import Decision, Save, Situation, Skip, record

BASE_STEPS = 2000
SPREAD_FULL = 0.1  # a loss whose deviation is this or more is as unsteady as it gets
UNSTEADY_MOST = 0.8  # the most that unsteadiness takes off the interval
KAPPA = 4.27  # fits the interval to the three published examples by least squares: -10 %, 0 % and +4 %
RISK_THRESHOLD = 0.68  # above it a rising risk saves at once
CALM = "the interval of the window policy has not passed"


def steadiness(loss_std: float | None) -> float:
    """Alpha, 0.2 to 1: 1 - min(0.8, std / 0.1) of the newest losses; 1 where there are none, 0.2 where they are not
    numbers."""
    if loss_std is None:
        return 1.0
    unsteady = loss_std / SPREAD_FULL
    return 1.0 - (unsteady if unsteady < UNSTEADY_MOST else UNSTEADY_MOST)


def interval_steps(base_steps: float, *, alpha: float, beta: float) -> float:
    """T = T_base x alpha / (1 + 4.27 beta), in steps, with alpha and beta from 0 to 1.

    Alpha .95 with T_base 2000 gives 1750, 418 and 1331 whole steps at beta .02, .83 and .10."""
    return base_steps * alpha / (1.0 + KAPPA * beta)


@record
class Window:
    """Save when T_base x alpha / (1 + 4.27 beta) steps have passed, and at once when the risk has just risen.

    Alpha comes from the spread of the newest losses, beta is the mean risk of ten steps. `decay` (0 to below 1) lets
    T_base fall with progress, where the run's length is known: T_base x (1 - decay x step / total), so that late work,
    of which more is done, is saved oftener."""

    base_steps: int = BASE_STEPS
    risk_threshold: float = RISK_THRESHOLD
    decay: float = 0.0

    def decide(self, situation: Situation) -> Decision:
        risk = min(max(situation.risk, 0.0), 1.0)
        alpha = steadiness(situation.loss_std)
        interval = interval_steps(self._base(situation), alpha=alpha, beta=risk)
        numbers = {"interval_steps": interval, "alpha": alpha, "beta": risk}
        if situation.since_save_steps < 1:
            return Skip(reason=CALM, numbers=numbers)
        if situation.risk_rose and risk > self.risk_threshold:
            return Save(
                reason=f"the risk rose to {risk:.2f}, above {self.risk_threshold:g}", numbers=numbers, cause="alarm"
            )
        if situation.since_save_steps < interval:
            return Skip(reason=CALM, numbers=numbers)
        return Save(
            reason=f"{situation.since_save_steps} steps since the last save, interval {int(interval)}"
            f" (alpha {alpha:.2f}, beta {risk:.2f})",
            numbers=numbers,
        )

    def _base(self, situation: Situation) -> float:
        if not situation.total_steps or not self.decay:
            return float(self.base_steps)
        return self.base_steps * (1.0 - self.decay * min(situation.step / situation.total_steps, 1.0))
