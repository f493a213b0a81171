"""The wire dialects: reading events, asking for evidence, and ending a stream that was cut.

`base` reads (one reader for both shapes), `chat` and `completions` ask and write; this module
picks between the two.
"""

from __future__ import annotations

from typing import Final, Protocol

from streamguard.core.dialects import chat, completions
from streamguard.core.dialects.base import Reader, Reading
from streamguard.core.dialects.tail import Tail
from streamguard.core.events import DialectName

__all__ = ["DIALECTS", "Dialect", "Reader", "Reading", "Tail", "read_answer"]


class Dialect(Protocol):
    """What a dialect module offers."""

    @property
    def FIELDS(self) -> tuple[str, ...]:
        """The request members that are about logprobs."""

    @property
    def DEFAULT_LIMIT(self) -> int:
        """The most alternatives per token, unless an upstream says otherwise."""

    def evidence_fields(self, alternatives: int) -> bytes:
        """The JSON members that ask for logprobs, without surrounding braces."""

    def asked(self, logprobs: object, top_logprobs: object) -> int | None:
        """Alternatives per token that the client's own fields ask for; None: no logprobs."""

    def empty_choice(self, index: int, finish_reason: str) -> dict[str, object]:
        """A choice that carries nothing but its finish reason."""


DIALECTS: Final[dict[DialectName, Dialect]] = {"chat": chat, "completions": completions}


def read_answer(body: bytes) -> Reading:
    """Read a whole unary JSON answer as one event: all entries and the finish of each choice."""
    return Reader().read(body)
