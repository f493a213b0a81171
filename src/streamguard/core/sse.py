"""Server-sent events over bytes: where one event ends, and what its data is.

The parser never rewrites anything: every event keeps its exact source bytes, and the raws joined
are the input. It is incremental and linear in the input (each byte is searched once, fragments
are joined once), bounded by `max_event_bytes`, and its output depends on the bytes alone, never
on how they were cut into reads.

Follows the HTML standard, section 9.2.6 "Interpreting an event stream": lines end with CR, LF or
CRLF and nothing else (U+2028 inside JSON is no line end); one leading BOM is skipped.

Two decisions the standard leaves to us, because it never has to relay:

* A comment or blank line between events is handed out at once, as a filler without data, so that
  a keep-alive is not held back until the next event.
* A CR that ends an event may still be followed by the LF that belongs to it. If the line end
  before it was CRLF (or there was none) the parser waits for the next byte; otherwise the stream
  is known to use lone CR or LF, the event ends there, and a late LF becomes a filler.
"""

from __future__ import annotations

import re
from typing import Final

from streamguard.core.events import SseEvent

DEFAULT_MAX_EVENT_BYTES: Final = 4 * 1024 * 1024
"""One event with 20 alternatives and byte arrays is about 2 kB; echoed tool results reach 1 MB.
httpx2 stops at 1 MiB, aiohttp's line reader at 512 KiB; 4 MiB leaves room and still bounds."""

_LF: Final = 0x0A
_CR: Final = 0x0D
_COLON: Final = 0x3A
_BOM: Final = b"\xef\xbb\xbf"
_LINE_END: Final = re.compile(rb"[\r\n]")
_LINE_ENDS: Final = re.compile(rb"\r\n|\r|\n")


class SseParser:
    """Incremental event splitter.

    Args:
        max_event_bytes: the largest event, raw; beyond it `oversize` becomes true, nothing more
            is parsed, and `rest()` gives every byte not handed out yet.
    """

    __slots__ = (
        "_await_lf",
        "_fresh",
        "_in_event",
        "_last_end",
        "_line_first",
        "_max",
        "_parts",
        "_size",
        "_swallow_lf",
        "oversize",
    )

    def __init__(self, *, max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._parts: list[bytes] = []  # raw bytes held back, in order
        self._size = 0
        self._fresh = True  # no byte of the stream settled yet: a BOM may come
        self._in_event = False  # the block has a field line
        self._line_first: int | None = None  # first byte of a line that began in an earlier read
        self._last_end = 0  # last line end: 0 none yet, _LF, _CR, or _CR + _LF for CRLF
        self._await_lf = False  # a boundary ended in CR; the next byte says whether LF is its own
        self._swallow_lf = False  # the last line ended in CR: an LF right now is part of it
        self.oversize = False

    def feed(self, data: bytes) -> list[SseEvent]:
        """Take one read and return what became complete, in order."""
        if self.oversize:
            self._hold(data)
            return []
        out: list[SseEvent] = []
        if self._fresh:
            data = self._open(data, out)
        if not data:
            return out
        has_cr = b"\r" in data
        length = len(data)
        start = 0  # where the bytes not handed out begin
        pos = 0  # where the current line goes on
        fill = 0  # end of the fillers that were seen but not handed out yet

        if not (has_cr or self._size or self._swallow_lf):
            start = pos = fill = self._take_plain(data, out)
        elif self._await_lf:
            self._await_lf = False
            pos = 1 if data[0] == _LF else 0
            self._last_end = _CR + _LF if pos else _CR
            if self._in_event:
                self._emit(out, data[:pos], is_event=True)
                start = fill = pos
            else:
                fill = pos
                if not pos:
                    self._emit(out, b"", is_event=False)
        elif self._swallow_lf:
            self._swallow_lf = False
            if data[0] == _LF:
                pos = 1
                self._last_end = _CR + _LF
                if not self._in_event and self._line_first is None:
                    fill = 1

        while pos < length and not self.oversize:
            if has_cr:
                found = _LINE_END.search(data, pos)
                at = found.start() if found else -1
            else:
                at = data.find(b"\n", pos)
            if at < 0:
                if self._line_first is None:
                    self._line_first = data[pos]
                break
            first = self._line_first
            if first is None and at > pos:
                first = data[pos]
            self._line_first = None
            blank = first is None
            boundary = blank or (first == _COLON and not self._in_event)
            if not boundary and not self._in_event:
                # The first field line of a block: what came before is filler.
                if fill > start:
                    self._emit(out, data[start:fill], is_event=False)
                    start = fill
                self._in_event = True
            pos = at + 1
            if data[at] == _LF:
                self._last_end = _LF
            elif boundary and self._last_end not in (_LF, _CR):
                if pos == length:
                    self._await_lf = True
                    break
                pos += data[pos] == _LF
                self._last_end = _CR + _LF if data[pos - 1] == _LF else _CR
            else:
                self._last_end = _CR
                self._swallow_lf = pos == length
            if boundary:
                if blank and self._in_event:
                    self._emit(out, data[start:pos], is_event=True)
                    start = pos
                elif fill > start and self._size + pos - start > self._max:
                    # The limit is for one line; how many came in one read must not matter.
                    self._emit(out, data[start:fill], is_event=False)
                    start = fill
                fill = pos
            if self._last_end == _CR and pos < length and data[pos] == _LF:
                # A late LF: no line of its own. Inside an event it is part of the block.
                pos += 1
                self._last_end = _CR + _LF
                if boundary:
                    fill = pos

        if fill > start:
            self._emit(out, data[start:fill], is_event=False)
            start = fill
        if start < length:
            self._hold(data[start:])
            if self._size > self._max:
                self.oversize = True
        return out

    def _take_plain(self, data: bytes, out: list[SseEvent]) -> int:
        """Hand out the events of one `data: ` line each at the front of a read without CR.

        Nearly every read holds nothing else. Returns where they end; what follows is looked at
        line by line.
        """
        pos = 0
        while data.startswith(b"data: ", pos):
            at = data.find(b"\n", pos)
            if at < 0 or at + 2 - pos > self._max or not data.startswith(b"\n", at + 1):
                break
            out.append(SseEvent(data[pos : at + 2], data[pos + 6 : at] or None))
            pos = at + 2
            self._last_end = _LF
        return pos

    def end(self) -> SseEvent | None:
        """The body ended: whatever is held back, as an event without its blank line, or None."""
        raw = self.rest()
        if not raw:
            return None
        name, data = fields_of(raw)
        return SseEvent(raw, data, name)

    def peek(self) -> bytes:
        """Every byte that was fed and not handed out."""
        return b"".join(self._parts)

    def rest(self) -> bytes:
        """Take every byte that was fed and not handed out, and forget it."""
        raw = self.peek()
        self._parts.clear()
        self._size = 0
        return raw

    @property
    def held_bytes(self) -> int:
        """Number of bytes fed and not handed out."""
        return self._size

    def _open(self, data: bytes, out: list[SseEvent]) -> bytes:
        """Hold the stream's first bytes until they are, or are not, a BOM (then a filler)."""
        data = self.rest() + data
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._hold(data)
            return b""
        self._fresh = False
        if data.startswith(_BOM):
            out.append(SseEvent(_BOM, None))
            data = data[len(_BOM) :]
        return data

    def _hold(self, data: bytes) -> None:
        if data:
            self._parts.append(data)
            self._size += len(data)

    def _emit(self, out: list[SseEvent], tail: bytes, *, is_event: bool) -> None:
        raw = self.rest() + tail if self._parts else tail
        self._in_event = False
        if len(raw) > self._max:
            self.oversize = True
            self._hold(raw)
        elif is_event:
            name, data = fields_of(raw)
            out.append(SseEvent(raw, data, name))
        else:
            out.append(SseEvent(raw, None))


def fields_of(raw: bytes) -> tuple[bytes, bytes | None]:
    """The event's name and its data (None where no data line says anything)."""
    if raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2 and b"\r" not in raw:
        return b"", raw[6:-2] or None
    name = b""
    lines: list[bytes] = []
    for line in _LINE_ENDS.split(raw):
        field, colon, value = line.partition(b":")
        if colon and value.startswith(b" "):
            value = value[1:]
        if field == b"data":
            lines.append(value)
        elif field == b"event":
            name = value
    return name, b"\n".join(lines) or None
