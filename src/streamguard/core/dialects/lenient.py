"""The cold path: events that the typed decoder refuses, read with the standard library.

Real servers write NaN, Infinity and 1e999, strings for numbers, lone surrogates, invalid UTF-8.
None of it may blind the guard, so such an event is read again, value by value, and whatever is no
usable number becomes an entry without one. This is the only place in `core` that uses `json`.

Bounded on purpose: `MAX_BYTES`, the interpreter's own recursion limit (100,000 brackets cost some
milliseconds, then a refusal), and integers of more than `MAX_DIGITS` digits are not computed.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from streamguard.core.events import Alternative, ChoiceDelta, DialectName, Entry

MAX_BYTES: Final = 1024 * 1024
"""About 10 ms of parsing; larger events of a shape that no decoder takes are passed on unread."""
MAX_INDEX: Final = 1 << 31
"""A choice's number beyond this is nonsense; what it says counts for choice 0."""
MAX_DIGITS: Final = 400
"""Beyond this an integer exceeds the largest float anyway (1.8e308)."""


def load(payload: bytes) -> Any:
    """The payload as plain Python values, or None if it is no JSON (or is JSON's null)."""
    if len(payload) > MAX_BYTES:
        return None
    try:
        return json.loads(
            payload.decode("utf-8", "replace"), parse_int=_int, parse_constant=lambda _: None
        )
    except (ValueError, RecursionError):
        return None


def dump(value: Any) -> bytes:
    """What `load` gave as strict JSON again: null where it holds a number beyond all floats.

    A lone surrogate becomes a question mark: no decoder would take it back.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return b"null"
    return text.encode("utf-8", "replace")


def is_error(event: Any) -> bool:
    """Whether this is an error object: `error` says something, or `object` is "error"."""
    return isinstance(event, dict) and (bool(event.get("error")) or event.get("object") == "error")


def choices_of(event: Any) -> tuple[tuple[ChoiceDelta, ...], DialectName | None] | None:
    """The choices of a chunk and its shape, or None where the event has no choices."""
    listed = event.get("choices") if isinstance(event, dict) else None
    if not isinstance(listed, list):
        return None
    dialect: DialectName | None = None
    choices: list[ChoiceDelta] = []
    for choice in listed:
        if not isinstance(choice, dict):
            continue
        if dialect is None and ("delta" in choice or "message" in choice):
            dialect = "chat"
        elif dialect is None and "text" in choice:
            dialect = "completions"
        finish = choice.get("finish_reason")
        choices.append(
            ChoiceDelta(
                index_of(choice),
                tuple(_entries(choice.get("logprobs"))),
                _string(finish),
                _has_text(choice),
            )
        )
    return tuple(choices), dialect


def index_of(choice: Any) -> int:
    """The choice's number; 0 where it has none that makes sense."""
    index = choice.get("index", 0) if isinstance(choice, dict) else 0
    return index if type(index) is int and 0 <= index < MAX_INDEX else 0


def _entries(found: Any) -> list[Entry]:
    if isinstance(found, (int, float)) and not isinstance(found, bool):
        return [Entry(None, _number(found))]  # one provider's chat chunks carry a bare number
    if not isinstance(found, dict):
        return []
    lists = [found.get("content"), found.get("refusal")]
    records = [r for listed in lists if isinstance(listed, list) for r in listed if r is not None]
    if records:
        return [_entry(record) for record in records]
    tokens = _list(found.get("tokens"))
    logprobs = _list(found.get("token_logprobs"))
    tops = _list(found.get("top_logprobs"))
    entries: list[Entry] = []
    for at in range(max(len(tokens), len(logprobs))):
        token = tokens[at] if at < len(tokens) else None
        logprob = logprobs[at] if at < len(logprobs) else None
        if token is None and logprob is None:
            continue
        top = tops[at] if at < len(tops) else None
        listed = (
            [Alternative(_string(t), _number(value)) for t, value in top.items()]
            if isinstance(top, dict)
            else None
        )
        entries.append(Entry(_string(token), _number(logprob), None, listed))
    return entries


def _entry(record: Any) -> Entry:
    if not isinstance(record, dict):
        return Entry()
    top = record.get("top_logprobs")
    return Entry(
        _string(record.get("token")),
        _number(record.get("logprob")),
        _bytes(record.get("bytes")),
        [_alternative(item) for item in top if isinstance(item, dict)]
        if isinstance(top, list)
        else None,
    )


def _alternative(record: dict[str, Any]) -> Alternative:
    return Alternative(
        _string(record.get("token")), _number(record.get("logprob")), _bytes(record.get("bytes"))
    )


def _int(digits: str) -> int | float:
    return int(digits) if len(digits) <= MAX_DIGITS else math.inf


def _number(value: Any) -> float | None:
    """A finite float, or None for everything that is no usable number (a bool included)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _string(value: Any) -> str | None:
    """Text that can be written again: a lone surrogate becomes a question mark."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _bytes(value: Any) -> list[int] | None:
    if isinstance(value, list) and all(type(item) is int for item in value):
        return value
    return None


def _has_text(choice: dict[str, Any]) -> bool:
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    names = ("content", "refusal", "reasoning_content", "reasoning", "tool_calls")
    return isinstance(delta, dict) and any(delta.get(name) for name in names)
