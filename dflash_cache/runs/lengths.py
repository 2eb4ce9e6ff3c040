"""How long rows are."""

from typing import Any

import numpy as np

from dflash_cache.types import Int64Array


def length_figures(lengths: Int64Array) -> dict[str, Any] | None:
    """Shortest, median and longest, and how many lie between powers of two."""
    if not len(lengths):
        return None
    powers = np.ceil(np.log2(lengths)).astype(int)
    histogram = [
        {"from": (1 << power >> 1) + 1, "to": 1 << power, "rows": int((powers == power).sum())}
        for power in range(int(powers.min()), int(powers.max()) + 1)
    ]
    return {
        "shortest": int(lengths.min()),
        "median": int(np.quantile(lengths, 0.5, method="inverted_cdf")),
        "longest": int(lengths.max()),
        "histogram": histogram,
    }
