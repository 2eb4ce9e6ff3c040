"""Figures as people read them."""


def shown_bytes(count: int) -> str:
    """``count`` bytes in the unit that a reader expects, such as ``1.25 GB``."""
    for unit, size in (("TB", 1e12), ("GB", 1e9)):
        if count >= size:
            return f"{count / size:,.2f} {unit}"
    return f"{count / 1e6:,.1f} MB"


def shown_time(seconds: float) -> str:
    """``seconds`` in the unit that a reader expects, such as ``1.5 h``."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"
