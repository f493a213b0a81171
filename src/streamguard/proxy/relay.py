"""A guarded stream: does what the Guard says, in the callback that brought the bytes.

Score first, forward second. `Cancel` closes the upstream socket before anything else of the same
list is done, and one upstream read leads to at most one write to the client. The relay decides
nothing: it translates HTTP to the Guard's five events and the Guard's actions back to HTTP.

The upstream's head is held until the first `Send` or `End`, since until then the answer may still
become a refusal or a second attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from streamguard.core.events import Action, Again, Cancel, End, Outcome, Refuse, Send
from streamguard.core.guard import Guard
from streamguard.proxy.bridge import Bridge, Failures
from streamguard.proxy.headers import OWN_PREFIX, Header, end_to_end
from streamguard.proxy.pool import Pool
from streamguard.proxy.upstream import Ending, ResponseHead
from streamguard.serving.answers import ANSWERS, Code
from streamguard.serving.reply import Reply

_UNFRAMED = frozenset((b"content-length",))


class Relay(Bridge):
    """Carries one guarded request.

    Args:
        guard: decides.
        reply: the answer to the client.
        pool: opens upstream connections.
        request: makes the bytes of an attempt out of its body.
        marks: our own fields for the answer, asked for when its head goes out.
        connect_s: how long a connection may take.
        failures: told of exceptions.
    """

    def __init__(
        self,
        guard: Guard,
        reply: Reply,
        pool: Pool,
        *,
        request: Callable[[bytes], bytes],
        marks: Callable[[], list[Header]],
        connect_s: float,
        failures: Failures,
    ) -> None:
        super().__init__(reply, pool, connect_s=connect_s, failures=failures)
        self._guard = guard
        self._request = request
        self._marks = marks
        self._head: ResponseHead | None = None
        self._end_follows = False

    async def run(self) -> None:
        """Carry the request to its end; returns when the reply is finished."""
        self._act(self._guard.start())
        again = False
        while not self.over:
            connection = await self._open(fresh=again)
            again = True
            if connection is None:
                return
            self._head = None
            self._turn = self._loop.create_future()
            connection.exchange(self._request(self._guard.body), self, bodiless=False, whole=True)
            await self._turn

    # ------------------------------------------------------------------ Downstream

    def head(self, head: ResponseHead) -> None:
        """See `Downstream`."""
        self._head = head
        kind, coding = head.first(b"content-type"), head.first(b"content-encoding")
        self._step(lambda now: self._guard.receive_head(head.status, kind, coding, now))

    def data(self, data: bytes, *, last: bool) -> None:
        """See `Downstream`. The hot path: no closure, no coroutine, no log line."""
        self._end_follows = last
        try:
            actions = self._guard.receive_data(data, self._loop.time())
            if len(actions) == 1 and type(actions[0]) is Send and self._reply.begun:
                # Nearly always. The timer may stay: with data its time only moves later.
                self._reply.write(actions[0].data, more=last)
            else:
                self._act(actions)
        except Exception as error:
            self._broken(error)

    def done(self, ending: Ending) -> None:
        """See `Downstream`."""
        self._connection = None
        if self._head is None:
            self._fail("upstream_truncated")
            return
        self._step(lambda now: self._guard.receive_eof(now, clean=ending == "clean"))

    # ------------------------------------------------------------------ Bridge

    def _fail(self, outcome: Outcome) -> None:
        if outcome == "client_gone":
            self._drop()  # before the Guard is asked: nobody is left to be careful for
            self._step(self._guard.receive_client_gone)
        else:
            self._step(lambda now: self._guard.receive_error(outcome, now))

    def _deadline(self) -> float | None:
        return self._guard.next_timer

    def _late(self, now: float) -> None:
        self._step(self._guard.receive_timer)

    # ------------------------------------------------------------------ the actions

    def _step(self, event: Callable[[float], list[Action]]) -> None:
        """Feed one event and do what comes back. Nothing may be raised into the event loop."""
        try:
            self._act(event(self._loop.time()))
        except Exception as error:
            self._broken(error)

    def _act(self, actions: list[Action]) -> None:
        out: list[bytes] = []
        for action in actions:
            match action:
                case Send(data):
                    out.append(data)
                case Cancel():
                    self._drop()
                case End(clean):
                    self._end(b"".join(out), clean=clean)
                    out.clear()
                case Refuse(status, body, retry):
                    self._refuse(status, body, retry=retry)
                case Again():
                    self._drop()
                    self._wake()
                case _:
                    assert_never(action)
        if out:
            if not self._reply.begun:
                self._begin()
            data = out[0] if len(out) == 1 else b"".join(out)
            self._reply.write(data, more=self._end_follows)
        self._rearm()

    def _begin(self) -> None:
        """Choose the answer's head: the upstream's, with our marks."""
        head = self._head
        if head is None:
            raise RuntimeError("bytes to send before the upstream answered")
        keep_length = self._guard.verbatim and head.length is not None
        fields = [
            pair
            for pair in end_to_end(head.headers, drop=frozenset() if keep_length else _UNFRAMED)
            if not pair[0].lower().startswith(OWN_PREFIX)
        ]
        self._reply.begin(
            head.status,
            head.reason,
            fields + self._marks(),
            length=head.length if keep_length else None,
            empty=head.status in (204, 304),
        )

    def _end(self, data: bytes, *, clean: bool) -> None:
        if not self._reply.begun and (clean or data):
            self._begin()
        if self._reply.begun:
            self._reply.finish(clean=clean, data=data)
        elif self._guard.outcome != "client_gone":
            self._reply.error(self._code(), self._marks())
        self._stop()

    def _refuse(self, status: int, body: bytes, *, retry: bool) -> None:
        fields = self._marks()
        if not retry:
            fields.append((b"x-should-retry", b"false"))
        self._reply.answer(status, body, fields)
        self._stop()

    def _code(self) -> Code:
        """The fixed answer for an end that came before any byte."""
        outcome = self._guard.outcome
        for code in ANSWERS:
            if code == outcome:
                return code
        return "internal_error"

    def _broken(self, error: Exception) -> None:
        """A bug of ours: the stream ends visibly broken, and the upstream is let go."""
        self._failures.failed(error)
        self._drop()
        try:
            self._act(self._guard.receive_error("internal_error", self._loop.time()))
        except Exception as second:
            self._failures.failed(second)
        if not self._reply.ended:
            if self._reply.begun:
                self._reply.finish(clean=False)
            else:
                self._reply.error("internal_error", self._marks())
        self._stop()
