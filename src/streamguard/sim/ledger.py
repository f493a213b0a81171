"""The provider's books: what was sent for each request, and when the close was seen."""

from __future__ import annotations

from collections import deque
from typing import Any, Final, Literal

import msgspec

KEPT: Final = 100_000
"""Requests remembered; the oldest go first."""


class Line(msgspec.Struct, kw_only=True):
    """One request.

    Attributes:
        id: the provider's own; it is the answer's `x-request-id` too.
        tokens_sent: tokens of the events that were handed to the kernel whole.
        tokens_recorded: tokens of the whole answer.
        closed_by: who ended the exchange; None while it runs. `server` if the answer came to the
            end that was planned for it, a fault included.
        closed_after_ms: from the writing of the last event to the moment the client's close was
            seen; None where the client did not close, or no event had been written.
    """

    id: str
    model: str
    path: str
    tokens_sent: int = 0
    tokens_recorded: int = 0
    closed_by: Literal["client", "server"] | None = None
    closed_after_ms: float | None = None
    last_event_at: float | None = None

    def sent(self, tokens: int, now: float) -> None:
        """An event was written; `now` in seconds, on the clock of every other `now`."""
        self.tokens_sent += tokens
        self.last_event_at = now

    def close(self, by: Literal["client", "server"], now: float) -> None:
        """The exchange is over. Only the first word counts."""
        if self.closed_by is not None:
            return
        self.closed_by = by
        if by == "client" and self.last_event_at is not None:
            self.closed_after_ms = round((now - self.last_event_at) * 1000, 3)


class Ledger:
    """All requests of the two answering paths, in order of arrival."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque(maxlen=KEPT)
        self._count = 0

    def open(self, *, model: str, path: str) -> Line:
        """A request has arrived."""
        self._count += 1
        line = Line(id=f"sim-{self._count}", model=model, path=path)
        self._lines.append(line)
        return line

    def as_list(self) -> list[dict[str, Any]]:
        """What `GET /sim/requests` answers."""
        fields = [name for name in Line.__struct_fields__ if name != "last_event_at"]
        return [{name: getattr(line, name) for name in fields} for line in self._lines]
