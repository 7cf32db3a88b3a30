"""How much neighbours of a row resemble each other: samples that do tell less than their number."""

from __future__ import annotations

import numpy as np

from harness.analysis.table import Bools


def neighbours_alike(shown: Bools) -> float | None:
    """Correlation of each of a row of yes and no with the next one; None where all are alike."""
    centred = shown.astype(np.float64) - shown.mean() if shown.size else np.empty(0)
    power = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / power if power > 0 else None
