"""How many needles a predicate's questions yield, and when it is time to stop asking them.

The *outcomes* of a predicate are its judged questions in the order of their first answers: True for
a needle, False for any other. Questions that were only skipped, or whose segment is faulty, are
not judged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from haystack.errors import InputError

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Outcomes = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class YieldCurve:
    """Needles over questions.

    Args:
        judged: int64 [K], numbers of judged questions, ascending; the last is all of them.
        needles: int64 [K], needles among the first ``judged``.
        per_100: float64 [K], needles per 100 questions among the first ``judged``.
        recent: float64 [K], the same among the last :attr:`window` of them; NaN where there are
            fewer.
        window: see ``recent``.
    """

    judged: Counts
    needles: Counts
    per_100: Floats
    recent: Floats
    window: int


def yield_curve(outcomes: Outcomes, *, window: int = 100, points: int = 100) -> YieldCurve:
    """The curve of a predicate.

    Args:
        outcomes: bool [N], needle or not, in the order of first answers.
        window: how many questions a recent yield is of.
        points: the curve is given at no more than so many places, evenly spaced.

    Returns:
        The curve, empty where nothing is judged.

    Raises:
        InputError: a window or a number of points below 1.
    """
    if window < 1 or points < 1:
        raise InputError(f"expected a window and points of 1 or more, got {window} and {points}")
    total = len(outcomes)
    found = np.concatenate([[0], np.cumsum(outcomes, dtype=np.int64)])
    places = min(points, total)
    judged = -(-np.arange(1, places + 1, dtype=np.int64) * total // max(places, 1))
    needles = found[judged]
    recent = np.full(places, np.nan)
    full = judged >= window
    recent[full] = (needles[full] - found[judged[full] - window]) * (100 / window)
    return YieldCurve(judged, needles, 100 * needles / judged, recent, window)


@dataclass(frozen=True)
class StopAdvice:
    """What a :class:`StopRule` says.

    Args:
        stop: whether it is time to stop.
        target: the yield that the recent questions are compared with, needles per question.
        judged: questions in the block that decided, or in the one under way.
        needles: needles among them.
        needed: judged questions that the block under way takes.
        upper: upper confidence bound of the yield in the block that decided; NaN while none has.
    """

    stop: bool
    target: float
    judged: int
    needles: int
    needed: int
    upper: float


@dataclass(frozen=True)
class StopRule:
    """When a predicate's queue is worth no more time.

    Judged questions are cut into consecutive blocks. At the end of block j = 1, 2, ... the rule
    says stop, and stays with it, if the upper confidence bound of the block's yield (exact, Clopper
    and Pearson 1934, one-sided, at confidence 1 - risk_j) is below the target, with ::

        risk_j = risk · 6 / (π² j²)

    These risks add up to ``risk``, however long one goes on. So a queue whose questions are needles
    with at least the target's probability, whatever was answered before, is stopped wrongly with
    at most that probability, although it is looked at again and again. A block has as many
    questions as it takes for the bound to get below the target if no needle is among them,
    ``ln risk_j / ln(1 - target)``, and no fewer than ``shortest``. That is 348 for one needle in a
    hundred: fewer cannot tell.

    Args:
        target: needles per question that are worth asking for.
        risk: probability of stopping wrongly, for a predicate and a round of proposals.
        shortest: questions of a block, at least.

    Raises:
        InputError: a target or a risk that is not between 0 and 1, or ``shortest`` below 1.
    """

    target: float = 0.01
    risk: float = 0.05
    shortest: int = 100

    def __post_init__(self) -> None:
        for name in ("target", "risk"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(
                    f"expected a {name} between 0 and 1 (needles per question, and a probability), "
                    f"got {getattr(self, name)}"
                )
        if self.shortest < 1:
            raise InputError(f"expected shortest to be 1 or more questions, got {self.shortest}")

    def at_least(self, baseline: float | None) -> StopRule:
        """The rule with a target no lower than what asking at random would yield.

        Args:
            baseline: needles per question drawn at random; None or NaN where it is not known.
        """
        if baseline is None or not baseline > self.target:
            return self
        return StopRule(min(baseline, 0.99), self.risk, self.shortest)

    def advise(self, outcomes: Outcomes) -> StopAdvice:
        """Advice on a predicate.

        Args:
            outcomes: bool [N], needle or not, in the order of first answers; of the current round
                of proposals, since a new round is a new queue.
        """
        found = np.concatenate([[0], np.cumsum(outcomes, dtype=np.int64)])
        start, block = 0, 1
        while True:
            risk = self.risk * 6 / (math.pi * block) ** 2
            needed = max(self.shortest, math.ceil(math.log(risk) / math.log1p(-self.target)))
            end = min(start + needed, len(outcomes))
            judged, needles = end - start, int(found[end] - found[start])
            if judged < needed:
                return StopAdvice(False, self.target, judged, needles, needed, math.nan)
            # The bound is below the target exactly where so few needles are this unlikely.
            if binomial_tail(needles, needed, self.target) <= risk:
                upper = upper_bound(needles, needed, risk)
                return StopAdvice(True, self.target, judged, needles, needed, upper)
            start, block = end, block + 1


def binomial_tail(hits: int, trials: int, probability: float) -> float:
    """Probability of at most ``hits`` in ``trials``, each with ``probability`` in (0, 1)."""
    k = np.arange(min(hits, trials) + 1)
    chances = (
        _log_factorial(trials)
        - np.array([_log_factorial(int(i)) + _log_factorial(trials - int(i)) for i in k])
        + k * math.log(probability)
        + (trials - k) * math.log1p(-probability)
    )
    return min(1.0, float(np.exp(chances).sum()))


def upper_bound(hits: int, trials: int, risk: float) -> float:
    """Clopper and Pearson's upper bound: the probability with which so few hits have ``risk``.

    C. J. Clopper, E. S. Pearson, *The use of confidence or fiducial limits illustrated in the case
    of the binomial*, Biometrika 26 (1934), 404-413.

    Args:
        hits: of the trials.
        trials: all, at least 1.
        risk: probability that the bound is too low, in (0, 1).
    """
    if hits >= trials:
        return 1.0
    low, high = hits / trials, 1.0
    for _ in range(60):  # halving: beyond the last bit of a float
        middle = (low + high) / 2
        if middle >= 1.0 or binomial_tail(hits, trials, middle) <= risk:
            high = middle
        else:
            low = middle
    return high


def _log_factorial(number: int) -> float:
    return math.lgamma(number + 1)
