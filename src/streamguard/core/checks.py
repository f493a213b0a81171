"""Checks on what an operator wrote: each returns the value or raises a `ConfigError` with a mend.

Specs are built from Python, from TOML and from flags; the three meet here, so that one mistake has
one message. A bool is never a number, and NaN and infinities are never bounds.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from streamguard.errors import ConfigError


def suggestion(word: str, allowed: Iterable[str]) -> str:
    """What to write instead: the near miss if there is one, else all that is allowed."""
    names = list(allowed)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return "use one of " + ", ".join(names)


def word(field: str, value: object, allowed: Sequence[str]) -> str:
    """A string from a closed list."""
    if not isinstance(value, str):
        raise ConfigError(field, "is not a string", "use one of " + ", ".join(allowed))
    if value not in allowed:
        raise ConfigError(field, f"{value[:64]!r} is not known", suggestion(value, allowed))
    return value


def whole(field: str, value: object, low: int, high: int) -> int:
    """A whole number in low..high."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(field, "is not a whole number in range", f"give one from {low} to {high}")
    return value


def number(field: str, value: object, low: float, high: float, mend: str) -> float:
    """A finite number in low..high."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(field, "is not a number", mend)
    if not low <= value <= high:  # false for NaN; no conversion, so no overflow
        raise ConfigError(field, f"{value!r} is out of range", mend)
    return float(value)
