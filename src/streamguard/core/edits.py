"""The two edits ever made to a provider's event, both by span: everything else stays as it came.

What was injected is taken out again (its value becomes null), and choices that are dead are taken
out of events that also speak for living ones.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Set
from operator import itemgetter
from typing import Final

import msgspec

from streamguard.core.dialects import lenient
from streamguard.core.dialects.base import Index
from streamguard.core.events import SseEvent
from streamguard.core.jsonspan import find_spans, replace_spans
from streamguard.core.sse import fields_of

_DATA_LINE: Final = re.compile(rb"(?:\A|[\r\n])data(?::\x20?([^\r\n]*)|(?=[\r\n]|\Z))")


class _Index(msgspec.Struct, gc=False):
    index: Index = 0


def line_end(raw: bytes) -> bytes:
    """The line ending an event uses: CRLF, CR or LF."""
    if raw.endswith(b"\r\n"):
        return b"\r\n"
    return b"\r" if raw.endswith(b"\r") else b"\n"


def put_null(event: SseEvent, spans: tuple[tuple[int, int], ...]) -> bytes:
    """The event's bytes with these places of its data replaced by `null`.

    Args:
        event: an event with data.
        spans: half-open ranges of `event.data`, ascending, each a whole JSON value.
    """
    raw, data = event.raw, event.data
    if data is None:
        return raw
    at = 6 if raw.startswith(b"data: ") else 5
    if raw.startswith(data, at):  # one data line, first in its event: nearly always
        if len(spans) == 1:
            ((start, end),) = spans
            return b"%bnull%b" % (raw[: start + at], raw[end + at :])
        return replace_spans(raw, [(start + at, end + at) for start, end in spans], b"null")
    # Data over several lines, or behind other fields: each of its bytes is found in its line.
    places: list[tuple[int, int, int]] = []  # place in data, place in raw, length
    seen = 0
    for line in _DATA_LINE.finditer(raw):
        start, end = line.span(1) if line[1] is not None else (line.end(), line.end())
        places.append((seen, start, end - start))
        seen += end - start + 1  # lines are joined by one LF
    return replace_spans(
        raw,
        [(_to_raw(places, start), _to_raw(places, end - 1) + 1) for start, end in spans],
        b"null",
    )


def _to_raw(places: list[tuple[int, int, int]], at: int) -> int:
    in_data, in_raw, _ = places[bisect_right(places, at, key=itemgetter(0)) - 1]
    return in_raw + at - in_data


def without_choices(raw: bytes, dead: Set[int]) -> bytes:
    """The event without the dead choices; empty if it spoke for nothing else."""
    _, data = fields_of(raw)
    if data is None:
        return raw
    elements = find_spans(data, ("choices", None))
    kept = [(start, end) for start, end in elements if _index(data[start:end]) not in dead]
    if len(kept) == len(elements):
        return raw
    if not kept:
        return b""
    edited = data
    for first, last in reversed(find_spans(data, ("choices",))):  # a key may be given twice
        living = b",".join(data[start:end] for start, end in kept if first <= start < last)
        edited = edited[:first] + b"[" + living + b"]" + edited[last:]
    # Line ends between JSON tokens are blanks; one data line is as good as several.
    return b"data: " + edited.replace(b"\n", b" ") + line_end(raw) * 2


def _index(element: bytes) -> int:
    try:
        return msgspec.json.decode(element, type=_Index).index
    except (msgspec.DecodeError, RecursionError):
        return lenient.index_of(lenient.load(element))
