"""How fast a count grows."""

from collections import deque


class Rate:
    """The growth of a count over the last ``span_s`` seconds in which it changed.

    Where it changes less often than that, it is the growth from the change before the last.
    """

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._changes: deque[tuple[float, float]] = deque()  # (time in seconds, count)
        self._falls = False  # at times, as that of a cache in which segments come and go

    def note(self, now_s: float, count: float) -> None:
        """``count`` is what there is at ``now_s``; times do not go back."""
        changes = self._changes
        if not changes or count != changes[-1][1]:
            self._falls |= bool(changes) and count < changes[-1][1]
            changes.append((now_s, count))
        while len(changes) > 2 and changes[1][0] <= changes[-1][0] - self._span_s:
            changes.popleft()

    def per_s(self, now_s: float) -> float:
        """0 before the count has changed; falls while a change is overdue."""
        if len(self._changes) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._changes[0], self._changes[-1]
        return (last - first) / max(last_s - first_s, now_s - last_s)

    def seconds_to(self, total: float, now_s: float) -> float | None:
        """Until the count is ``total`` at this rate; None where it does not grow, or ever fell."""
        per_s = self.per_s(now_s)
        if self._falls or per_s <= 0:
            return None
        last_s, last = self._changes[-1]
        return max(0.0, (total - last) / per_s - (now_s - last_s))
