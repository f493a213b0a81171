"""The clients: each asks, counts the events that come, and notes how late they are."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NoReturn

from benchmarks.relay.load import READ_BYTES, LoadError, Loop, now
from benchmarks.relay.sender import Sender
from benchmarks.relay.wire import END, Plan, request

_OK: Final = b"HTTP/1.1 200 "
_LF: Final = 0x0A
_numbers: Final[Iterator[int]] = itertools.count(1)


@dataclass(slots=True, eq=False)
class Tally:
    """What a group of clients has seen; cleared where a measurement begins.

    Attributes:
        events, answers: how many came, and how many ended.
        lags: from the sender's write to the client's read, per event, in seconds.
        firsts: from the request to the first event, in seconds.
    """

    events: int = 0
    answers: int = 0
    lags: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)

    def clear(self) -> None:
        """Begin anew."""
        self.events = self.answers = 0
        self.lags.clear()
        self.firsts.clear()


class Caller:
    """One client connection, kept from answer to answer where the subject lets it.

    Args:
        loop, sender: of this bench.
        port: the subject's, or the sender's own.
        tally: where to count.
    """

    def __init__(self, loop: Loop, sender: Sender, port: int, tally: Tally) -> None:
        self._loop = loop
        self._sender = sender
        self._port = port
        self._tally = tally
        self._sock: socket.socket | None = None
        self._plan: Plan | None = None
        self._number = 0
        self._over: Callable[[], None] | None = None
        self._asked_at = 0.0
        self._seen = 0
        self._tail = b""
        self.dismissed = False

    @property
    def events(self) -> int:
        """Events of the running answer that came."""
        return self._seen

    @property
    def plan(self) -> Plan | None:
        """The answer that is running."""
        return self._plan

    def ask(self, plan: Plan, over: Callable[[], None] | None = None) -> None:
        """Send a request.

        Args:
            plan: what will be answered.
            over: called when the answer has ended, or this client has left.
        """
        self._plan, self._over = plan, over
        self._seen, self._tail = 0, b""
        self._number = next(_numbers)
        self._sender.plans[self._number] = plan
        if self._sock is None:
            self._sock = socket.create_connection(("127.0.0.1", self._port))
            self._sock.setblocking(False)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._loop.watch(self._sock, self._readable)
        self._asked_at = now()
        self._sock.sendall(request(self._number, asks=plan.asks))

    def dismiss(self) -> None:
        """Leave for good."""
        self.dismissed = True
        self.leave()

    def leave(self) -> None:
        """Close the connection, in the middle of an answer or not."""
        if self._sock is None:
            return
        self._loop.forget(self._sock)
        self._sock.close()
        self._sock = None
        if self._plan is not None:
            self._plan.left_at = now()
            self._ended()

    def _readable(self, mask: int) -> None:
        assert self._sock is not None
        try:
            data = self._sock.recv(READ_BYTES)
        except ConnectionError:
            data = b""
        at = now()
        plan = self._plan
        if plan is None:
            if data:
                self._complain("sent bytes that nobody asked for")
            self.leave()
            return
        if not data:
            self._complain(f"closed after {self._seen} events")
        if not self._tail and not data.startswith(_OK):
            self._complain(f"answered {data[:60]!r}")
        came = data.count(b"\n\n")
        if data[0] == _LF and self._tail.endswith(b"\n"):
            came += 1
        self._tail = (self._tail + data)[-len(END) :]
        if came:
            tally = self._tally
            if not self._seen:
                tally.firsts.append(at - self._asked_at)
            tally.events += came
            if plan.pace_s:
                tally.lags += [at - t for t in plan.sent_at[self._seen : self._seen + came]]
            self._seen += came
            if plan.leave_after is not None and self._seen >= plan.leave_after:
                self.leave()
                return
        if self._tail == END:
            self._tally.answers += 1
            self._ended()

    def _complain(self, what: str) -> NoReturn:
        assert self._sock is not None
        self._loop.forget(self._sock)
        self._sock.close()
        self._sock = None
        raise LoadError(f"the subject {what}")

    def _ended(self) -> None:
        del self._sender.plans[self._number]
        self._plan = None
        over, self._over = self._over, None
        if over is not None:
            over()
