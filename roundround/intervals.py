"""How sure a mean over seeds is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]


def half_width(values: Array, confidence: float = 0.95) -> Array:
    """Half the interval of the mean over the first axis by Student's t, [S, ...] -> [...]; NaN for one seed."""
    n_seeds = len(values)
    if n_seeds < 2:
        return np.full(values.shape[1:], np.nan)
    error = values.std(0, ddof=1) / np.sqrt(n_seeds)
    return np.asarray(stats.t.ppf((1 + confidence) / 2, n_seeds - 1) * error, dtype=np.float64)
