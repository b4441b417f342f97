"""With what probability an error goes unnoticed."""

from __future__ import annotations

import math
from typing import NamedTuple


class Escape(NamedTuple):
    """With what probability an error goes unnoticed if only a sample of the entries was looked at."""

    entries: int  # of all `size` entries, how many were looked at one by one
    size: int
    directions: int  # random directions along which the whole gradient was projected
    threshold: float  # a projection of the error that is smaller goes unnoticed, by the noise floor along a direction
    norm: float  # of the gradient, times the least size by which directions count an entry

    def probability(self, relative_error: float, wrong_entries: int = 1) -> float:
        r"""Of not noticing an error of `relative_error` times the norm of the gradient, in so many entries.

        Along a direction of independent standard normal components an error e shows as a number of :math:`N(0, |e|^2)`,
        which is smaller than the threshold t with the probability :math:`\mathrm{erf}(t / (\sqrt 2 |e|))`. None of the
        n entries drawn out of N is one of the w wrong ones with that of :math:`\binom{N - w}{n} / \binom{N}{n}`.
        """
        error = relative_error * self.norm if relative_error else 0.0  # though the norm be infinite
        below_threshold = math.erf(self.threshold / error / math.sqrt(2)) if error else 1.0
        right = self.size - wrong_entries
        if self.entries > right:
            return 0.0
        choices = ((right, 1), (right - self.entries, -1), (self.size, -1), (self.size - self.entries, 1))
        not_drawn = math.exp(sum(sign * math.lgamma(n + 1) for n, sign in choices))  # (gradcheck.80)
        return below_threshold**self.directions * min(not_drawn, 1.0)  # (gradcheck.79)
