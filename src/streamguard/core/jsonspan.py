"""Where a value stands inside JSON text, so that it can be replaced and nothing else touched.

Not a parser: the text has been accepted by one before it comes here. What is kept: every byte
outside the spans returned. Strings are skipped as wholes, so nothing inside one can be taken for
structure. Used off the hot path; the dialects find the usual case by a plain search.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

# Possessive quantifiers: linear time on any input, an unclosed string included.
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},:]', re.DOTALL)
_BLANK: Final = b" \t\r\n"

Pattern = tuple[str | None, ...]
"""Keys from the outside in; None stands for any element of an array."""


class _Frame:
    __slots__ = ("is_object", "key", "on_path", "start")

    def __init__(self, *, is_object: bool, on_path: bool, start: int) -> None:
        self.is_object = is_object
        self.on_path = on_path  # the keys outside this container match the pattern
        self.key: str | None = None  # the member being read (objects)
        self.start = start  # where the member's value begins, -1 while a key is read


def find_spans(data: bytes, pattern: Pattern) -> list[tuple[int, int]]:
    """All places of the values that `pattern` names, in order.

    Args:
        data: JSON text that a decoder has accepted (bare NaN and Infinity included).
        pattern: for example `("choices", None, "logprobs")`.

    Returns:
        Half-open byte ranges, blanks around the value not included. A key given twice gives two.
    """
    spans: list[tuple[int, int]] = []
    stack: list[_Frame] = []
    goal = len(pattern)
    for token in _TOKEN.finditer(data):
        match data[token.start()]:
            case 0x22:  # a string: a key where an object waits for one, else (part of) a value
                if stack and stack[-1].is_object and stack[-1].start < 0:
                    stack[-1].key = _text(token.group())
            case 0x3A:  # ':'
                if stack:
                    stack[-1].start = token.end()
            case 0x7B | 0x5B:  # '{' '['
                outer = stack[-1] if stack else None
                on_path = outer is None or _matches(outer, pattern, len(stack))
                is_object = data[token.start()] == 0x7B
                start = -1 if is_object else token.end()
                stack.append(_Frame(is_object=is_object, on_path=on_path, start=start))
            case _:  # ',' '}' ']': a member ends
                if not stack:
                    continue
                frame = stack[-1]
                if frame.start >= 0 and len(stack) == goal and _matches(frame, pattern, goal):
                    span = _trim(data, frame.start, token.start())
                    if span[0] < span[1]:
                        spans.append(span)
                if data[token.start()] == 0x2C:
                    frame.start = -1 if frame.is_object else token.end()
                else:
                    stack.pop()
    return spans


def replace_spans(data: bytes, spans: list[tuple[int, int]], value: bytes) -> bytes:
    """`data` with each span (ascending, disjoint) replaced by `value`."""
    pieces: list[bytes] = []
    last = 0
    for start, end in spans:
        pieces += (data[last:start], value)
        last = end
    pieces.append(data[last:])
    return b"".join(pieces)


def _matches(frame: _Frame, pattern: Pattern, depth: int) -> bool:
    """Whether the frame's current member is `pattern[:depth]`."""
    if not frame.on_path or depth > len(pattern):
        return False
    want = pattern[depth - 1]
    return want is None if not frame.is_object else want is not None and frame.key == want


def _text(literal: bytes) -> str | None:
    try:
        return msgspec.json.decode(literal, type=str)
    except msgspec.DecodeError:  # a lone surrogate: no key of ours
        return None


def _trim(data: bytes, start: int, end: int) -> tuple[int, int]:
    while start < end and data[start] in _BLANK:
        start += 1
    while end > start and data[end - 1] in _BLANK:
        end -= 1
    return start, end
