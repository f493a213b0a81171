"""One stream of the demo as it goes on: what the client got, what proxy and provider say of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from streamguard.core.sse import SseParser
from streamguard.demo.cases import Case
from streamguard.demo.child import Record

Fate = Literal["cut and wrong", "cut and right", "kept and wrong", "kept and right"]


@dataclass(slots=True)
class Stream:
    """A case under way.

    Attributes:
        guard_id, provider_id: what the two call it.
        body: what the client has received.
        events: how many whole events that is.
        over: the response has ended.
        problem: why the client got no whole response.
        report: the proxy's `stream_finished` record.
        line: the provider's book entry.
    """

    case: Case
    guard_id: str | None = None
    provider_id: str | None = None
    body: bytearray = field(default_factory=bytearray)
    events: int = 0
    over: bool = False
    problem: str | None = None
    report: Record | None = None
    line: Record | None = None
    _parser: SseParser = field(default_factory=SseParser)

    def receive(self, data: bytes) -> None:
        """One read of the response."""
        self.body += data
        self.events += sum(event.data is not None for event in self._parser.feed(data))

    def _choice(self, name: str) -> Any:
        choices = self.report["choices"] if self.report is not None else ()
        return choices[0][name] if choices else None

    @property
    def verdict(self) -> str | None:
        """The proxy's verdict."""
        found = self._choice("verdict")
        return None if found is None else str(found)

    @property
    def position(self) -> int | None:
        """The token it fell on."""
        found = self._choice("position")
        return None if found is None else int(found)

    @property
    def score(self) -> float | None:
        """The signal's value it fell on."""
        found = self._choice("score")
        return None if found is None else float(found)

    @property
    def threshold(self) -> float | None:
        """What the score was held against."""
        found = self._choice("threshold")
        return None if found is None else float(found)

    @property
    def cut(self) -> bool:
        """The proxy says that it stopped the generation."""
        return self._choice("cut") is True

    @property
    def tokens_sent(self) -> int:
        """The provider's count."""
        return 0 if self.line is None else int(self.line["tokens_sent"])

    @property
    def tokens_recorded(self) -> int:
        """The length of the whole answer."""
        return self.case.recording.tokens

    @property
    def closed_ms(self) -> float | None:
        """The provider's figure: from its last event to the close it saw; None if it saw none."""
        found = None if self.line is None else self.line["closed_after_ms"]
        return None if found is None else float(found)

    @property
    def not_generated(self) -> int:
        """Tokens of the recorded answer that the provider did not send any more."""
        return self.tokens_recorded - self.tokens_sent if self.cut else 0

    @property
    def fate(self) -> Fate:
        """Whether it was cut, and whether the whole recorded answer is right."""
        if self.case.recording.correct:
            return "cut and right" if self.cut else "kept and right"
        return "cut and wrong" if self.cut else "kept and wrong"

    def as_dict(self) -> dict[str, Any]:
        """What `--json` says of it."""
        return {
            "id": self.case.recording.name,
            "verdict": self.verdict,
            "position": self.position,
            "score": self.score,
            "threshold": self.threshold,
            "correct": self.case.recording.correct,
            "tokens_sent": self.tokens_sent,
            "tokens_recorded": self.tokens_recorded,
            "upstream_closed_ms": self.closed_ms,
        }
