"""What is known of when to save: the formulas of the field, in seconds and rates a second."""

from __future__ import annotations

import math


def young(cost_s: float, mtbf_s: float) -> float:
    """Seconds of work between saves that lose least: sqrt(2 C M), with C seconds lost to a save, M between failures.

    Source: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; restated
    in arXiv 2410.18124. It is right to first order, where C is small beside M."""
    return math.sqrt(2 * cost_s * mtbf_s)


def daly(cost_s: float, mtbf_s: float) -> float:
    """Young's interval to higher order, in seconds; the mean time between failures where a save costs twice that.

    sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C. Source: J. T. Daly, "A higher order estimate of the optimum
    checkpoint interval for restart dumps", FGCS 22(3), 2006, doi 10.1016/j.future.2004.11.016, whose own figures for
    C = 5 min are 117, 57 and 9.1 min at M = 24 h, 6 h and 15 min."""
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    part = cost_s / (2 * mtbf_s)
    return young(cost_s, mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9) - cost_s


def local_interval(cost_s: float, rate: float) -> float:
    """Seconds between saves at a moment where failures come at `rate` a second: sqrt(2 C / rate); inf where none come.

    Source: Y. Ling, J. Mi, X. Lin, "A variational calculus approach to optimal checkpoint placement", IEEE TC 50(7),
    2001: the best frequency is proportional to the square root of the failure rate."""
    return math.sqrt(2 * cost_s / rate) if rate > 0 else math.inf


def waste(interval_s: float, *, cost_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """The part of the time that is no progress, to first order: C / T + (T / 2 + R) / M. Least at Young's interval."""
    return cost_s / interval_s + (interval_s / 2 + restart_s) / mtbf_s
