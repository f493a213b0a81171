"""The figures of one choice by textbook formula, over plain lists. Natural logs; p = exp(logprob).

Part of the oracle: imports nothing of the product. Sources: quantile by linear interpolation as
numpy defines it; group confidence by arXiv 2508.15260; entropy over the renormalised top k.
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

from tests.reference.reader import CEILING, FLOOR, Choice, Token, is_number

WINDOW = 8
QUANTILE = 0.1


def figures(choice: Choice, asked: int | None) -> dict[str, Any]:
    """What a report says of a choice, verdict left aside."""
    tokens = [token for _, token in choice.scorable(asked)]
    logs = [float(token.logprob) for token in tokens]
    return {
        "index": choice.index,
        "entries": len(choice.entries),
        "scorable": len(tokens),
        "unscorable": len(choice.entries) - len(tokens),
        "mean_logprob": fmean(logs) if logs else None,
        "min_logprob": min(logs) if logs else None,
        "signals": signals(tokens, asked),
        "finish_reason": choice.finish_reason,
    }


def signals(tokens: list[Token], asked: int | None) -> dict[str, float | None]:
    """All eight; None where there is nothing to say it from."""
    logs = [min(0.0, float(token.logprob)) for token in tokens]
    probs = sorted(math.exp(log) for log in logs)
    margins = [m for token in tokens if (m := _margin(token)) is not None]
    ranked = [_top(token, asked) for token in tokens]
    sure = [1 - _entropy(top) / math.log(len(top)) for top in ranked if len(top) >= 2]
    groups = [-fmean(top) for top in ranked if top][-WINDOW:]
    windows = [fmean(logs[at : at + WINDOW]) for at in range(len(logs) - WINDOW + 1)]
    return {
        "first_prob": math.exp(logs[0]) if logs else None,
        "mean_prob": math.exp(fmean(logs)) if logs else None,
        "min_prob": probs[0] if logs else None,
        "quantile_prob": _quantile(probs) if logs else None,
        "window_prob": math.exp(min(windows)) if windows else None,
        "margin": fmean(margins) if margins else None,
        "entropy_confidence": fmean(sure) if sure else None,
        "group_confidence": fmean(groups) if groups else None,
    }


def verdict(
    choice: Choice,
    asked: int | None,
    *,
    signal: str,
    below: float,
    first: int,
    start: int | None = None,
    tolerance: float = 0.001,
    ended: bool = True,
) -> tuple[str | None, int | None]:
    """(verdict, position) of one rule without skips, with a patience of one.

    Args:
        ended: the answer came to its end: a short one has one look there. A finish is an end too.
    """
    counted = choice.scorable(asked)
    start = first if start is None else start
    value: float | None = None
    looked = 0
    for look in range(start, first + 1):
        if look > len(counted):
            break
        looked = counted[look - 1][0]
        value = signals([token for _, token in counted[:look]], asked)[signal]
        if value is not None and value < below - tolerance:
            return "abort", looked
    if len(counted) >= first:
        return ("commit", looked) if value is not None else (None, None)
    if not counted or not (ended or choice.finish_reason is not None):
        return None, None
    last = len(choice.entries)
    if len(counted) < start:
        value = signals([token for _, token in counted], asked)[signal]
        if value is not None and value < below - tolerance:
            return "abort", last
    return ("commit", last) if value is not None else (None, None)


def _quantile(ranked: list[float]) -> float:
    place = QUANTILE * (len(ranked) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)


def _is_usable(value: Any) -> bool:
    return is_number(value) and FLOOR < value <= CEILING


def _is_emitted(token: Token, listed: tuple[Any, Any, Any]) -> bool:
    """By bytes and value; the string stands in only where bytes are missing."""
    name, value, octets = listed
    if not _is_usable(value) or abs(value - token.logprob) > 1e-6:
        return False
    if _are_octets(token.octets) and _are_octets(octets):
        return bool(token.octets == octets)
    return token.token is not None and token.token == name


def _are_octets(value: Any) -> bool:
    return isinstance(value, list) and all(type(octet) is int for octet in value)


def _margin(token: Token) -> float | None:
    others = [
        min(0.0, float(listed[1]))
        for listed in token.alternatives
        if _is_usable(listed[1]) and not _is_emitted(token, listed)
    ]
    if not others:
        return None
    return math.exp(min(0.0, float(token.logprob))) - math.exp(max(others))


def _top(token: Token, asked: int | None) -> list[float]:
    """The listed alternatives, best first; one appended beyond what was asked for is left out."""
    usable = [listed for listed in token.alternatives if _is_usable(listed[1])]
    usable.sort(key=lambda listed: -listed[1])
    if asked is not None and len(usable) > asked:
        for place, listed in enumerate(usable):
            if _is_emitted(token, listed):
                if place >= asked:
                    del usable[place]
                break
    return [min(0.0, float(listed[1])) for listed in usable]


def _entropy(logs: list[float]) -> float:
    weights = [math.exp(log) for log in logs]
    mass = math.fsum(weights)
    return -math.fsum(w / mass * math.log(w / mass) for w in weights if w > 0)
