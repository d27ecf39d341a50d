"""A share of hits and how sure it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist


@dataclass(frozen=True)
class Proportion:
    """How many of how many.

    Args:
        hits: of them.
        trials: all.
    """

    hits: int
    trials: int

    @property
    def value(self) -> float:
        """Share of hits; NaN without trials."""
        return self.hits / self.trials if self.trials else math.nan

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Wilson's score interval; both ends NaN without trials.

        With z the normal quantile of (1 + confidence) / 2, these are the shares p that solve
        (p̂ - p)² = z² p (1 - p) / n. E. B. Wilson, *Probable inference, the law of succession, and
        statistical inference*, Journal of the American Statistical Association 22 (1927), 209-212.
        """
        if not self.trials:
            return math.nan, math.nan
        z = NormalDist().inv_cdf((1 + confidence) / 2)
        shrunk = 1 + z * z / self.trials
        centre = (self.value + z * z / (2 * self.trials)) / shrunk
        spread = self.value * (1 - self.value) / self.trials + (z / (2 * self.trials)) ** 2
        half = z * math.sqrt(spread) / shrunk
        # Rounding must not exclude what was seen.
        return max(0.0, min(self.value, centre - half)), min(1.0, max(self.value, centre + half))
