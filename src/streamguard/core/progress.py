"""How far a stream has come: what was read of it, when, and whether that is a whole answer."""

from __future__ import annotations

import msgspec

from streamguard.core.dialects import Reading
from streamguard.core.events import Outcome
from streamguard.core.watch import Watch


class Progress:
    """Counts, marks and times of one request.

    Attributes:
        opened_at, first_at, verdict_at, ended_at: seconds on the shell's clock.
        events: events with data. unparsable: those among them that nothing could read.
        done: the end mark came. failed: an error object came. foreign: JSON of another shape came.
        payload: data of the last chunk: our own events speak like it.
    """

    __slots__ = (
        "attempts",
        "done",
        "ended_at",
        "events",
        "failed",
        "first_at",
        "foreign",
        "opened_at",
        "payload",
        "unparsable",
        "verdict_at",
    )

    def __init__(self, now: float) -> None:
        self.opened_at = now
        self.first_at: float | None = None
        self.verdict_at: float | None = None
        self.ended_at: float | None = None
        self.attempts = 1
        self.payload: bytes | None = None
        self._forget()

    def again(self) -> None:
        """A second attempt begins: nothing of the first one counts."""
        self.attempts += 1
        self.first_at = None
        self._forget()

    def _forget(self) -> None:
        self.events = 0
        self.unparsable = 0
        self.done = False
        self.failed = False
        self.foreign = False

    def note(self, reading: Reading, payload: bytes) -> None:
        """One more event with data was read."""
        self.events += 1
        match reading.kind:
            case "chunk":
                self.payload = payload
            case "done":
                self.done = True
            case "error":
                self.failed = True
            case "foreign":
                self.foreign = True
            case "unparsable":
                self.unparsable += 1

    def is_whole(self, watch: Watch, *, clean: bool) -> bool:
        """Whether an event stream that ends now was a whole answer.

        It was if an end mark or an error object came, or a finish for every choice seen. A clean
        end of events of another shape is one too; comments alone are not.
        """
        if self.done or self.failed:
            return True
        if not watch.seen:
            return clean and self.foreign
        return watch.seen <= watch.finished

    @property
    def said(self) -> Outcome:
        """The outcome of a whole answer."""
        return "upstream_error" if self.failed else "complete"

    @property
    def upstream_id(self) -> str | None:
        """The provider's id of the answer."""
        try:
            return msgspec.json.decode(self.payload or b"{}", type=_Id).id
        except (msgspec.DecodeError, RecursionError):
            return None

    def since_opened_ms(self, at: float | None) -> float | None:
        """A time as milliseconds from the beginning of the request."""
        return None if at is None else round((at - self.opened_at) * 1000, 3)


class _Id(msgspec.Struct):
    id: str | None = None
