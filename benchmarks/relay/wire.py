"""The bytes of the bench: answers rendered once, framed as chunks, and the requests for them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from streamguard.sim.generate import generate
from streamguard.sim.script import Generated
from streamguard.sim.stream import Ask

HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
LAST_CHUNK: Final = b"0\r\n\r\n"
END: Final = b"data: [DONE]\n\n\r\n" + LAST_CHUNK
"""How an answer ends on the wire, whoever framed it."""
PLAN_HEADER: Final = b"x-plan"
ALTERNATIVES: Final = 5
DIP_AT: Final = 5
"""The token that lets a doubtful answer be cut."""
TOKENS: Final = 64
"""So many different token events; longer answers repeat them."""

_ASK: Final = Ask("chat", "bench", True, ALTERNATIVES, None, False)
_FIRST_TOKEN: Final = 1  # the first event carries the role


@dataclass(frozen=True, slots=True)
class Course:
    """An answer: its events as chunks. An endless one repeats its token events."""

    chunks: tuple[bytes, ...]
    endless: bool = False

    @property
    def length(self) -> int:
        """How many events; one more than there will be if it is endless."""
        return 1 << 60 if self.endless else len(self.chunks)

    def chunk(self, number: int) -> bytes:
        """The bytes of an event, 0 the first."""
        if number < len(self.chunks):
            return self.chunks[number]
        tokens = len(self.chunks) - _FIRST_TOKEN
        return self.chunks[_FIRST_TOKEN + (number - _FIRST_TOKEN) % tokens]


@dataclass(slots=True, eq=False)
class Plan:
    """One answer to come, and what sender and caller note about it (seconds, monotonic).

    Attributes:
        pace_s: from event to event; 0: as fast as they are taken.
        asks: the client asks for the logprobs itself.
        leave_after: the client leaves after so many events; None: it stays.
        sent_at: when each event was written.
        left_at: when the client closed. closed_at: when the sender saw a close.
    """

    course: Course
    pace_s: float = 0.0
    asks: bool = True
    leave_after: int | None = None
    sent_at: list[float] = field(default_factory=list)
    left_at: float | None = None
    closed_at: float | None = None

    @property
    def runs(self) -> bool:
        """The sender has begun, has more to send, and has seen no close."""
        return 0 < len(self.sent_at) < self.course.length and self.closed_at is None


def long_answer(tokens: int) -> Course:
    """An answer of so many tokens, all of them sure."""
    chunks = _render(Generated(length=TOKENS, course="list", probabilities=_sure()))
    *head, finish, done = chunks
    role, words = head[0], head[1:]
    middle = [words[n % TOKENS] for n in range(tokens)]
    return Course((role, *middle, finish, done + LAST_CHUNK))


def endless_answer() -> Course:
    """An answer that ends only when somebody leaves."""
    chunks = _render(Generated(length=TOKENS, course="list", probabilities=_sure()))
    return Course(chunks[:-2], endless=True)


def short_answer() -> Course:
    """One token, the finish and the end mark in one write."""
    _, token, finish, done = _render(Generated(length=1))
    return Course((token + finish + done + LAST_CHUNK,))


def doubtful_answer() -> Course:
    """An endless answer with one token that no rule forgives."""
    chunks = _render(Generated(length=TOKENS, course="dip", at=DIP_AT, low=1e-12))
    return Course(chunks[:-2], endless=True)


def request(plan_number: int, *, asks: bool) -> bytes:
    """A streaming chat request; the plan's number travels in a header."""
    logprobs = b',"logprobs":true,"top_logprobs":%d' % ALTERNATIVES if asks else b""
    body = (
        b'{"model":"bench","messages":[{"role":"user","content":"Is this the one?"}],"stream":true'
        + logprobs
        + b"}"
    )
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Type: application/json\r\nAuthorization: Bearer none\r\n"
        b"%b: %d\r\nContent-Length: %d\r\n\r\n%b" % (PLAN_HEADER, plan_number, len(body), body)
    )


def _sure() -> tuple[float, ...]:
    """Probabilities with as many digits as real ones have."""
    dice = random.Random(1)  # noqa: S311  # no secret: every run sends the same bytes
    return tuple(dice.uniform(0.6, 0.99) for _ in range(TOKENS))


def _render(spec: Generated) -> tuple[bytes, ...]:
    return tuple(
        b"%x\r\n%b\r\n" % (len(event.data), event.data)
        for event in generate(spec, _ASK, stream_id="bench").events
    )
