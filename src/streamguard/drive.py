"""Drive a Guard with real IO: the async loop for anyone who is no proxy, on any anyio backend.

Everything that decides is in `core.guard`; this file only moves bytes, keeps the one deadline the
guard asks for, and keeps two promises: an upstream that was opened is closed on every way out,
cancellation included, and `Cancel` closes it before anything that follows is sent.

The proxy does not use it (its bytes go from transport to transport, without a task switch per
read); it obeys the same actions in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol, TypeAlias, assert_never

import anyio

from streamguard.core.events import Action, Again, Cancel, End, Refuse, Send
from streamguard.core.guard import Guard

CLOSE_S: Final = 1.0
"""How long a close may take before it is left to itself; no close should wait for anybody."""
_BROKEN: Final = (OSError, EOFError, anyio.BrokenResourceError, anyio.ClosedResourceError)


class Upstream(Protocol):
    """One open response of the provider."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    @property
    def content_type(self) -> str | None:
        """The header of that name."""

    @property
    def content_encoding(self) -> str | None:
        """The header of that name."""

    async def receive(self) -> bytes:
        """The next bytes of the body, empty at its end.

        Raises:
            OSError, EOFError, anyio.BrokenResourceError: the body broke off.
        """

    async def aclose(self) -> None:
        """Close the connection now, without waiting for a graceful end. May be called twice."""


class Sink(Protocol):
    """Where the guarded answer goes. What it raises of `OSError` and anyio's kind means: gone."""

    async def send(self, data: bytes) -> None:
        """Body bytes; the first ones let the upstream's status and headers go out."""

    async def refuse(self, refusal: Refuse) -> None:
        """Instead of everything else: this status and body."""

    async def end(self, *, clean: bool) -> None:
        """The body is over, well-formed or visibly broken off."""


OpenUpstream: TypeAlias = Callable[[bytes], Awaitable[Upstream]]
"""Sends the given request body and returns the response once its head is there. May raise
`TimeoutError` (no connection in time) and `OSError` (none at all)."""


async def relay(open_upstream: OpenUpstream, guard: Guard, sink: Sink) -> None:
    """Run one guarded request to its end.

    When this returns or raises, the guard has ended and no upstream is open. Cancelling it means
    that the client has left.

    Args:
        open_upstream: called once, and once more after a refusal of logprobs.
        guard: fresh; made with `now=anyio.current_time()`.
        sink: takes the answer.
    """
    driver = _Driver(open_upstream, guard, sink)
    try:
        await driver.perform(guard.start())
        while not guard.ended:
            await driver.attempt()
    except _ClientGoneError:
        pass
    except Exception:
        guard.receive_error("internal_error", anyio.current_time())
        raise
    finally:
        guard.receive_client_gone(anyio.current_time())  # nothing, if the guard has ended
        await driver.close()


class _ClientGoneError(Exception):
    """The sink takes nothing more."""


class _Driver:
    """Performs actions, and remembers which upstream `Cancel` means."""

    def __init__(self, open_upstream: OpenUpstream, guard: Guard, sink: Sink) -> None:
        self._open = open_upstream
        self._guard = guard
        self._sink = sink
        self._upstream: Upstream | None = None

    async def attempt(self) -> None:
        """Open the upstream and relay it, until the guard ends or wants another attempt."""
        guard = self._guard
        actions: list[Action] = []
        with self._deadline():
            try:
                self._upstream = await self._open(guard.body)
            except TimeoutError:
                actions = guard.receive_error("timeout_connect", anyio.current_time())
            except _BROKEN:
                actions = guard.receive_error("upstream_refused", anyio.current_time())
        upstream = self._upstream
        if upstream is None:
            await self.perform(actions or guard.receive_timer(anyio.current_time()))
            return
        now = anyio.current_time()
        await self.perform(
            guard.receive_head(
                upstream.status, upstream.content_type, upstream.content_encoding, now
            )
        )
        while self._upstream is upstream and not guard.ended:
            await self.perform(await self._receive(upstream))
        await self.close()

    async def perform(self, actions: Iterable[Action]) -> None:
        """Do what the guard says, in its order."""
        try:
            for action in actions:
                match action:
                    case Cancel() | Again():
                        await self.close()
                    case Send(data):
                        await self._sink.send(data)
                    case Refuse():
                        await self._sink.refuse(action)
                    case End(clean):
                        await self._sink.end(clean=clean)
                    case _:
                        assert_never(action)
        except _BROKEN as error:
            raise _ClientGoneError from error

    async def close(self) -> None:
        """Close the upstream, whatever is going on around."""
        upstream, self._upstream = self._upstream, None
        if upstream is None:
            return
        with anyio.move_on_after(CLOSE_S, shield=True):
            try:
                await upstream.aclose()
            except _BROKEN:
                pass  # it is as closed as it will get

    async def _receive(self, upstream: Upstream) -> list[Action]:
        data: bytes | None = None
        with self._deadline():
            try:
                data = await upstream.receive()
            except _BROKEN:
                return self._guard.receive_eof(anyio.current_time(), clean=False)
        now = anyio.current_time()
        if data is None:
            return self._guard.receive_timer(now)
        return self._guard.receive_data(data, now) if data else self._guard.receive_eof(now)

    def _deadline(self) -> anyio.CancelScope:
        due = self._guard.next_timer
        return anyio.CancelScope(deadline=math.inf if due is None else due)
