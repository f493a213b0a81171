"""The alternatives that a server lists for a token: which of them count, which is the emitted one.

The emitted token's own `logprob` is the truth. In the list it may be absent, first, ranked, or
appended as one more than was asked for; this module is the only place that knows.
"""

from __future__ import annotations

from typing import Final

from streamguard.core.events import Alternative, Entry

HIGHEST_LOGPROB: Final = 1e-6
"""Rounding on the way may lift a certain token this far above 0; more is no logprob."""

SENTINEL_FLOOR: Final = -9000.0
"""At or below: a server's way to say "no number" (-9999, -3.4e38)."""

SAME_VALUE: Final = 1e-6
"""Two logprobs this close are one number, written twice."""


def is_emitted(entry: Entry, other: Alternative) -> bool:
    """Whether a listed alternative is the emitted token: same bytes and same value.

    The string decides only where bytes are missing: different tokens that are halves of
    characters share one string. The value decides as well, because then only it tells them apart.
    """
    if entry.logprob is None or other.logprob is None:
        return False
    if not abs(entry.logprob - other.logprob) <= SAME_VALUE:  # so that NaN is never the same
        return False
    if entry.bytes is not None and other.bytes is not None:
        return entry.bytes == other.bytes
    return entry.token is not None and entry.token == other.token


class TopK:
    """Which listed alternatives count: the scorable ones, best first, the k best of them.

    A server that was asked for `asked` may append the emitted token as one more, from outside the
    top: that one is left out. `k` None: all that are left.
    """

    __slots__ = ("_asked", "_floor", "_k")

    def __init__(self, k: int | None, asked: int | None, floor: float) -> None:
        self._k = k
        self._asked = asked
        self._floor = floor

    def logs(self, entry: Entry) -> list[float]:
        """Their logprobs, highest first; may be empty."""
        listed = entry.top_logprobs
        if not listed:
            return []
        floor, asked = self._floor, self._asked
        # A NaN fails both comparisons.
        logs = [
            min(log, 0.0)
            for other in listed
            if (log := other.logprob) is not None and floor < log <= HIGHEST_LOGPROB
        ]
        logs.sort(reverse=True)
        if asked is not None and len(logs) > asked:
            for other in listed:
                if is_emitted(entry, other):
                    log = min(other.logprob or 0.0, 0.0)
                    if log <= logs[asked] and log in logs:
                        logs.remove(log)
                    break
        return logs if self._k is None else logs[: self._k]
