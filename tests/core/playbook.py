"""Playbooks: what a shell tells a Guard and what must come of it, as one expression.

    assert play(guard) >> head() >> data(event) << cancel("abort") << send(event, tail) << end()

`>>` tells the guard something; the `<<` behind it are all the actions that must come of it, in
order. Bytes sent in a row count as one `Send`: how they are portioned is nobody's business. A
playbook runs when it is asserted; one that nobody asserts proves nothing, so a fixture (conftest)
asks `forgotten` after each test.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NoReturn

import msgspec

from streamguard.core.events import Action, Again, Cancel, End, Outcome, Refuse, Send
from streamguard.core.guard import Guard

# --------------------------------------------------------------------------- what is told


@dataclass(frozen=True, slots=True)
class Told:
    """One thing that a shell tells the guard, `after_s` seconds later than the last one."""

    name: str
    tell: Callable[[Guard, float], list[Action]]
    after_s: float = 0.0


def start() -> Told:
    """The request was accepted."""
    return Told("start()", lambda guard, now: guard.start())


def head(
    status: int = 200,
    content_type: str | None = "text/event-stream; charset=utf-8",
    encoding: str | None = None,
    *,
    after_s: float = 0.0,
) -> Told:
    """The upstream's response head."""
    return Told(
        f"head({status}, {content_type!r}, {encoding!r})",
        lambda guard, now: guard.receive_head(status, content_type, encoding, now),
        after_s,
    )


def data(*pieces: bytes, after_s: float = 0.0) -> Told:
    """One read of the body."""
    read = b"".join(pieces)
    return Told(f"data({_short(read)})", lambda guard, now: guard.receive_data(read, now), after_s)


def eof(*, clean: bool = True) -> Told:
    """The body ended."""
    return Told(f"eof({clean=})", lambda guard, now: guard.receive_eof(now, clean=clean))


def fault(outcome: Outcome) -> Told:
    """Something else ended it."""
    return Told(f"fault({outcome!r})", lambda guard, now: guard.receive_error(outcome, now))


def gone() -> Told:
    """The client left."""
    return Told("gone()", lambda guard, now: guard.receive_client_gone(now))


def timer(*, after_s: float) -> Told:
    """The shell's timer fires, that much later."""
    return Told(f"timer({after_s})", lambda guard, now: guard.receive_timer(now), after_s)


# --------------------------------------------------------------------------- what must come of it


def send(*pieces: bytes) -> Send:
    """These bytes go to the client."""
    return Send(b"".join(pieces))


def cancel(reason: str = "abort") -> Cancel:
    """The upstream connection is closed."""
    return Cancel(reason)


def end() -> End:
    """A well-formed end."""
    return End(clean=True)


def broken() -> End:
    """A visibly broken end."""
    return End(clean=False)


def refuse(status: int, code: str, *, retry: bool = False) -> Refuse:
    """An answer of ours instead; of its body only the code is compared."""
    return Refuse(status, code.encode(), retry)


def again(body: bytes) -> Again:
    """A second attempt with this body."""
    return Again(body)


# --------------------------------------------------------------------------- the book


class Playbook:
    """See the module."""

    def __init__(self, guard: Guard, now: float) -> None:
        self._guard = guard
        self._now = now
        self._steps: list[tuple[Told, list[Action]]] = []
        _BOOKS.append(self)

    def __rshift__(self, told: Told) -> Playbook:
        self._steps.append((told, []))
        return self

    def __lshift__(self, action: Action) -> Playbook:
        if not self._steps:
            raise TypeError("an action before anything was told")
        self._steps[-1][1].append(action)
        return self

    def __bool__(self) -> bool:
        steps, self._steps = self._steps, []
        for number, (told, expected) in enumerate(steps, 1):
            self._now += told.after_s
            actual = told.tell(self._guard, self._now)
            if _gathered(actual) != _gathered(expected):
                self._complain(number, told, expected, actual)
        return True

    @property
    def pending(self) -> int:
        """Steps that were written down and not asserted."""
        return len(self._steps)

    def _complain(
        self, number: int, told: Told, expected: list[Action], actual: list[Action]
    ) -> NoReturn:
        diff = difflib.ndiff(_lines(expected), _lines(actual))
        raise AssertionError(
            "\n".join((f"step {number}: {told.name}", "  (- expected, + came)", *diff))
        )


def play(guard: Guard, *, now: float = 0.0) -> Playbook:
    """A playbook for a fresh guard. Its clock stands at `now` until a step takes time."""
    return Playbook(guard, now)


def opened(guard: Guard) -> Playbook:
    """A playbook that has an event stream's head behind it; neither step brings any action."""
    return play(guard) >> start() >> head()


_BOOKS: Final[list[Playbook]] = []


def forgotten() -> int:
    """How many steps nobody has asserted since the last call, over all playbooks."""
    pending = sum(book.pending for book in _BOOKS)
    _BOOKS.clear()
    return pending


def _gathered(actions: Iterable[Action]) -> list[Action]:
    out: list[Action] = []
    for action in actions:
        last = out[-1] if out else None
        if isinstance(action, Send) and isinstance(last, Send):
            out[-1] = Send(last.data + action.data)
        elif isinstance(action, Refuse):
            out.append(Refuse(action.status, _code(action.body), action.retry))
        else:
            out.append(action)
    return out


def _code(body: bytes) -> bytes:
    """The code in an error body; what is no such body (an expectation is a bare code) stays."""
    try:
        return msgspec.json.decode(body, type=_Failure).error.code.encode()
    except msgspec.DecodeError:
        return body


class _Error(msgspec.Struct):
    code: str


class _Failure(msgspec.Struct):
    error: _Error


def _lines(actions: list[Action]) -> list[str]:
    """One line an action, and one for each event that is sent."""
    lines: list[str] = []
    for action in _gathered(actions):
        if isinstance(action, Send):
            pieces = re.split(rb"(?<=\n\n)|(?<=\r\n\r\n)|(?<=\r\r)", action.data)
            lines += [f"Send({piece!r})" for piece in pieces if piece]
        else:
            lines.append(repr(action))
    return lines


def _short(text: bytes) -> str:
    return repr(text) if len(text) <= 120 else f"{text[:80]!r}...{len(text)} bytes"
