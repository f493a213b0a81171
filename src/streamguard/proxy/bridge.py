"""What a guarded stream and a request passing through have in common: the two ends, and their ends.

A `Bridge` is the `Downstream` of an upstream exchange and the `Flow` of a client connection at
once. It owns the one timer, the pauses between the two sockets, and the rule that whichever side
goes first takes the other with it. What the bytes mean is for the subclasses.

Everything after the connection is opened happens in callbacks; the handler's coroutine sleeps on
one future per attempt. Invariant: after `_drop()` nothing of the exchange arrives any more, and
after `over` no further connection is opened.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Protocol

from streamguard.core.events import Outcome
from streamguard.proxy.pool import Pool
from streamguard.proxy.upstream import Connection, Ending, ResponseHead
from streamguard.serving.reply import Reply

RESUME_GRACE_S = 1.0
"""After a client has caught up, what waits in our socket may be read before silence is judged."""


class Failures(Protocol):
    """Where exceptions are reported (counted and located, never quoted)."""

    def failed(self, error: BaseException | None) -> None:
        """An exception that should not have been."""


class Bridge(ABC):
    """Joins one client request to one upstream exchange at a time.

    Args:
        reply: the answer to the client.
        pool: opens upstream connections.
        connect_s: how long that may take.
        failures: told of exceptions.
    """

    def __init__(self, reply: Reply, pool: Pool, *, connect_s: float, failures: Failures) -> None:
        self._loop = asyncio.get_running_loop()
        self._reply = reply
        self._pool = pool
        self._connect_s = connect_s
        self._failures = failures
        self._connection: Connection | None = None
        self._patience: asyncio.Timeout | None = None
        self._turn: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0.0
        self._client_paused = False
        self._not_before = 0.0
        self.over = False

    # ------------------------------------------------------------------ for the handler

    def shutdown(self) -> None:
        """The server stops and the drain time is up."""
        self._fail("shutdown")

    def close(self) -> None:
        """Release everything; called once, in the handler's `finally`. Idempotent."""
        self._stop()

    # ------------------------------------------------------------------ Flow: the client's side

    def client_paused(self) -> None:
        """Back-pressure: what the client does not read is not read from the upstream either."""
        self._client_paused = True
        if self._connection is not None:
            self._connection.pause_reading()

    def client_resumed(self) -> None:
        """See `Flow`."""
        self._client_paused = False
        self._not_before = self._loop.time() + RESUME_GRACE_S
        if self._connection is not None:
            self._connection.resume_reading()

    def client_stalled(self) -> None:
        """See `Flow`."""
        self._fail("timeout_write")

    def client_gone(self) -> None:
        """See `Flow`."""
        self._fail("client_gone")

    # ------------------------------------------------------------------ Downstream

    @abstractmethod
    def head(self, head: ResponseHead) -> None:
        """See `Downstream`."""

    @abstractmethod
    def data(self, data: bytes, *, last: bool) -> None:
        """See `Downstream`."""

    def pause(self) -> None:  # noqa: B027 - nothing to do is a good default
        """See `Downstream`; a body that was read whole has nothing to hold back."""

    def resume(self) -> None:  # noqa: B027
        """See `Downstream`."""

    @abstractmethod
    def done(self, ending: Ending) -> None:
        """See `Downstream`."""

    # ------------------------------------------------------------------ for subclasses

    @abstractmethod
    def _fail(self, outcome: Outcome) -> None:
        """Something outside the exchange ended it."""

    @abstractmethod
    def _deadline(self) -> float | None:
        """When `_late` is due, on the loop's clock; it may move either way at any time."""

    @abstractmethod
    def _late(self, now: float) -> None:
        """The deadline has come."""

    async def _open(self, *, fresh: bool = False) -> Connection | None:
        """Connect. None: it failed (and `_fail` was told), or the request is over meanwhile."""
        outcome: Outcome = "upstream_refused"
        try:
            async with asyncio.timeout(self._connect_s) as self._patience:
                connection = await self._pool.open(fresh=fresh)
        except TimeoutError:
            outcome = "timeout_connect"
        except OSError:
            pass
        else:
            if not self.over:
                self._connection = connection
                if self._client_paused:
                    connection.pause_reading()
                return connection
            connection.abort()
        finally:
            self._patience = None
        if not self.over:
            self._fail(outcome)
        return None

    def _drop(self) -> None:
        """Close the upstream now."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def _stop(self) -> None:
        """Nothing more happens here: both the upstream and the waiting coroutine are let go."""
        self.over = True
        self._drop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._patience is not None:
            # The coroutine still waits for a connection: let that end at once, as a timeout.
            self._patience.reschedule(self._loop.time())
        self._wake()

    def _wake(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    def _rearm(self) -> None:
        """Keep one timer. It fires early rather than being moved with every chunk."""
        due = self._deadline()
        if due is None or self.over:
            return
        if self._timer is not None:
            if self._armed_for <= due:
                return
            self._timer.cancel()
        self._armed_for = due
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        due = self._deadline()
        if due is None or self.over:
            return
        now = self._loop.time()
        # A client that does not read makes the upstream look silent; its own clock runs then.
        wait_until = now + RESUME_GRACE_S if self._client_paused else max(due, self._not_before)
        if now < wait_until:
            self._armed_for = wait_until
            self._timer = self._loop.call_at(wait_until, self._tick)
            return
        self._late(now)
        self._rearm()
