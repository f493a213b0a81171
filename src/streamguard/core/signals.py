"""The signals: each a number from the scorable entries of one choice. Higher = surer, always.

A signal sees scorable entries only (`Watch` sorts out the rest) and never yields NaN or an
infinity. Logprobs are natural logs; p = exp(logprob). A value just above 0, which rounding on the
way produces, counts as 0, so p never exceeds 1. State is bounded whatever the length of the
stream.

For the five plain signals, lowering one logprob never raises the value, in floating point too:
sums only ever add (no sliding sum subtracts), and interpolation uses non-negative weights.

Not here: bounds, positions, patience, skips. Those are rules (`core.rules`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from bisect import insort
from typing import Final, Literal, TypeAlias, get_args

from streamguard.core.alternatives import (
    HIGHEST_LOGPROB,
    SAME_VALUE,
    SENTINEL_FLOOR,
    TopK,
    is_emitted,
)
from streamguard.core.events import Entry

SignalName: TypeAlias = Literal[
    "first_prob",
    "mean_prob",
    "min_prob",
    "quantile_prob",
    "window_prob",
    "margin",
    "entropy_confidence",
    "group_confidence",
]
SIGNALS: Final[tuple[SignalName, ...]] = get_args(SignalName)

DEFAULT_K: Final = 5
"""Alternatives that a rule on the top k uses, and asks for, where it names no k."""

QUANTILE_ENTRIES: Final = 8192
"""`quantile_prob` covers this many entries (64 KiB of doubles) and is exact over them."""


class Signal(ABC):
    """One number that grows with the model's confidence."""

    __slots__ = ()

    @abstractmethod
    def push(self, entry: Entry) -> None:
        """Take the next scorable entry."""

    @abstractmethod
    def value(self) -> float | None:
        """The signal over what was pushed; None while there is nothing to say it from."""


def _log(entry: Entry) -> float:
    logprob = entry.logprob
    if logprob is None:
        raise ValueError("a signal takes scorable entries only")
    return logprob if logprob < 0.0 else 0.0


class FirstProb(Signal):
    """p of the first entry."""

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: float | None = None

    def push(self, entry: Entry) -> None:
        if self._first is None:
            self._first = _log(entry)

    def value(self) -> float | None:
        return None if self._first is None else math.exp(self._first)


class MeanProb(Signal):
    """exp(mean logprob), the geometric mean of p."""

    __slots__ = ("_count", "_total")

    def __init__(self) -> None:
        self._count = 0
        self._total = 0.0

    def push(self, entry: Entry) -> None:
        self._total += _log(entry)
        self._count += 1

    def value(self) -> float | None:
        return math.exp(self._total / self._count) if self._count else None


class MinProb(Signal):
    """The lowest p."""

    __slots__ = ("_lowest",)

    def __init__(self) -> None:
        self._lowest: float | None = None

    def push(self, entry: Entry) -> None:
        log = _log(entry)
        if self._lowest is None or log < self._lowest:
            self._lowest = log

    def value(self) -> float | None:
        return None if self._lowest is None else math.exp(self._lowest)


class QuantileProb(Signal):
    """The q-quantile of p, linearly interpolated (arXiv 2404.10136; numpy's default method).

    Exact over the first `QUANTILE_ENTRIES` entries; later ones add nothing, because an exact
    quantile needs every value and a stream may bring 200,000. A rule may not look beyond.
    """

    __slots__ = ("_q", "_sorted")

    def __init__(self, q: float) -> None:
        self._q = q
        self._sorted: array[float] = array("d")

    def push(self, entry: Entry) -> None:
        if len(self._sorted) < QUANTILE_ENTRIES:
            insort(self._sorted, math.exp(_log(entry)))

    def value(self) -> float | None:
        ranked = self._sorted
        if not ranked:
            return None
        place = self._q * (len(ranked) - 1)
        below = int(place)
        share = place - below
        if not share:
            return ranked[below]
        low, high = ranked[below], ranked[below + 1]
        return min(high, max(low, low * (1.0 - share) + high * share))


class _SlidingSum:
    """The sum of the last w numbers, by addition alone: it cannot drift and costs O(1) amortised.

    The window is a tail of the last full block of w plus the head of the block being filled; the
    sums of all tails are made once per block.
    """

    __slots__ = ("_block", "_head", "_tails", "_width", "count")

    def __init__(self, width: int) -> None:
        self._width = width
        self._block: list[float] = []
        self._head = 0.0
        self._tails: list[float] | None = None
        self.count = 0
        """How many numbers the sum covers now, at most w."""

    def push(self, number: float) -> float:
        block, width = self._block, self._width
        if self.count < width:
            self.count += 1
        block.append(number)
        self._head += number
        filled = len(block)
        if filled < width:
            return self._head if self._tails is None else self._tails[filled] + self._head
        total, tail = self._head, 0.0
        tails = block  # same length: reuse it in place
        for i in range(width - 1, -1, -1):
            tail += block[i]
            tails[i] = tail
        self._tails = tails
        self._block = []
        self._head = 0.0
        return total


class WindowProb(Signal):
    """The lowest exp(mean logprob) over full windows of w entries; None before the first one."""

    __slots__ = ("_lowest", "_sum", "_width")

    def __init__(self, width: int) -> None:
        self._width = width
        self._sum = _SlidingSum(width)
        self._lowest: float | None = None

    def push(self, entry: Entry) -> None:
        total = self._sum.push(_log(entry))
        if self._sum.count == self._width and (self._lowest is None or total < self._lowest):
            self._lowest = total

    def value(self) -> float | None:
        return None if self._lowest is None else math.exp(self._lowest / self._width)


# --------------------------------------------------------------------------- from alternatives


class Margin(Signal):
    """The mean of p(emitted) - p(best other listed), -1..1.

    An entry that lists no other alternative adds nothing; None while none did.
    """

    __slots__ = ("_count", "_floor", "_total")

    def __init__(self, floor: float) -> None:
        self._floor = floor
        self._count = 0
        self._total = 0.0

    def push(self, entry: Entry) -> None:
        best = -math.inf
        for other in entry.top_logprobs or ():
            log = other.logprob
            if (
                log is not None
                and best < log <= HIGHEST_LOGPROB
                and log > self._floor
                and not is_emitted(entry, other)
            ):
                best = log
        if best > -math.inf:
            self._total += math.exp(_log(entry)) - math.exp(min(best, 0.0))
            self._count += 1

    def value(self) -> float | None:
        return self._total / self._count if self._count else None


class EntropyConfidence(Signal):
    """The mean of 1 - H/ln k over the top k, renormalised, 0..1 (UQLM). Never exact.

    k is the number of alternatives used, at least 2: an entry with fewer adds nothing. The
    renormalised entropy is never above the true one, and the gap grows with the mass that is not
    listed: it hides doubt where there is most of it. `bounds` says how much may be hidden.
    """

    __slots__ = ("_count", "_least_k", "_lower", "_top", "_total", "_unseen", "_upper")

    def __init__(self, top: TopK) -> None:
        self._top = top
        self._count = 0
        self._total = 0.0
        self._lower = 0.0
        self._upper = 0.0
        self._unseen = 0.0
        self._least_k = 0

    def push(self, entry: Entry) -> None:
        logs = self._top.logs(entry)
        k = len(logs)
        if k < 2:
            return
        best = logs[0]
        # Relative to the best: a list of tiny probabilities must not underflow to a zero sum.
        weights = [math.exp(log - best) for log in logs]
        mass = sum(weights)
        dot = sum(w * log for w, log in zip(weights, logs, strict=True))
        entropy = math.log(mass) + best - dot / mass
        self._total += min(1.0, max(0.0, 1.0 - entropy / math.log(k)))
        self._count += 1
        self._least_k = min(self._least_k or k, k)
        self._widen(entry, logs, math.exp(best), mass, dot)

    def _widen(
        self, entry: Entry, logs: list[float], scale: float, mass: float, dot: float
    ) -> None:
        """Add one entry to both bounds: A - r ln min(r, p_k) and A - r ln(r / (V - k))."""
        seen = -scale * dot
        unseen = max(0.0, 1.0 - scale * mass)
        self._lower += seen
        self._upper += seen
        if unseen > 0.0:
            # An unseen token is at most as likely as the last *ranked* one, and the emitted token
            # may be listed without having earned its place.
            emitted = _log(entry)
            last = logs[-2] if abs(logs[-1] - emitted) <= SAME_VALUE else logs[-1]
            self._lower -= unseen * min(math.log(unseen), last)
            self._upper -= unseen * math.log(unseen)
            self._unseen += unseen

    def value(self) -> float | None:
        return self._total / self._count if self._count else None

    def bounds(self, vocabulary: int) -> tuple[float, float] | None:
        """Between which values the true mean token entropy lies, given the mass not listed.

        With M the listed mass, r = 1 - M and A = -sum p ln p over the list, every unseen token has
        p <= min(r, p_k), so A - r ln min(r, p_k) <= H <= A - r ln(r / (V - k)). Holds where the
        list is the top of the distribution, with or without the emitted token in it.

        Args:
            vocabulary: V, the number of tokens the model chooses from; above k.

        Returns:
            (lowest, highest) in nats per token over the full vocabulary, or None while no entry
            listed two alternatives.

        Raises:
            ValueError: the vocabulary is not larger than a list that was seen.
        """
        if not self._count:
            return None
        if vocabulary <= self._least_k:
            raise ValueError("the vocabulary must be larger than the number of alternatives")
        # The smallest k gives the widest bound: it holds for every entry.
        upper = self._upper + self._unseen * math.log(vocabulary - self._least_k)
        return min(self._lower, upper) / self._count, upper / self._count


class GroupConfidence(Signal):
    """The mean over the last w entries of -(1/k) sum of the top k logprobs (arXiv 2508.15260).

    Never negative. High = peaked: the others are unlikely. The scale depends on k, so a bound
    belongs to its k. Before w entries it is the mean of those there are, as DeepConf's own code
    does for short answers. An entry that lists nothing adds nothing.
    """

    __slots__ = ("_sum", "_top", "_total")

    def __init__(self, top: TopK, width: int) -> None:
        self._top = top
        self._sum = _SlidingSum(width)
        self._total = 0.0

    def push(self, entry: Entry) -> None:
        logs = self._top.logs(entry)
        if logs:
            self._total = self._sum.push(-sum(logs) / len(logs))

    def value(self) -> float | None:
        count = self._sum.count
        return self._total / count + 0.0 if count else None


# --------------------------------------------------------------------------- by name


def needed_alternatives(name: str, k: int | None = None) -> int:
    """How many alternatives per token a signal needs; 0: the emitted token's logprob is enough."""
    match name:
        case "margin":
            return 2
        case "entropy_confidence" | "group_confidence":
            return DEFAULT_K if k is None else k
        case _:
            return 0


def make(
    name: str,
    *,
    window: int = 8,
    quantile: float = 0.1,
    k: int | None = None,
    asked: int | None = None,
    floor: float = SENTINEL_FLOOR,
) -> Signal:
    """Build a signal; each takes what it needs and ignores the rest.

    Args:
        name: one of `SIGNALS`.
        window: entries per window (`window_prob`, `group_confidence`).
        quantile: 0..1 (`quantile_prob`).
        k: alternatives used per entry; None: all that are listed.
        asked: alternatives that were asked for per token; None: not known.
        floor: an alternative's logprob at or below it is a sentinel.

    Raises:
        ValueError: no signal has that name.
    """
    match name:
        case "first_prob":
            return FirstProb()
        case "mean_prob":
            return MeanProb()
        case "min_prob":
            return MinProb()
        case "quantile_prob":
            return QuantileProb(quantile)
        case "window_prob":
            return WindowProb(window)
        case "margin":
            return Margin(floor)
        case "entropy_confidence":
            return EntropyConfidence(TopK(k, asked, floor))
        case "group_confidence":
            return GroupConfidence(TopK(k, asked, floor), window)
        case _:
            raise ValueError(f"{name!r} is no signal")
