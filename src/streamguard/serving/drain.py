"""Stopping: first nothing new, then time for what runs, then an end that everybody can see.

aiohttp's own stop waits twice its timeout and cancels without a word to either side. This one is
bounded by `drain_s` plus a moment, and every stream that is still open then gets its error event
and both its sockets closed. A second signal skips the waiting.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Final, Protocol

LAST_WORDS_S: Final = 0.5
"""For the handlers to return once their streams were ended."""


class Stoppable(Protocol):
    """A request in progress."""

    def shutdown(self) -> None:
        """End now, visibly broken."""


class Drain:
    """The life of a server: serving, draining, over.

    Args:
        drain_s: how long requests in progress may take to finish.
        on_drain: called once, when draining begins, with the number of open requests: stop
            accepting, and say so.
    """

    def __init__(self, *, drain_s: float, on_drain: Callable[[int], None]) -> None:
        self._drain_s = drain_s
        self._on_drain = on_drain
        self._open: set[Stoppable] = set()
        self._signalled = asyncio.Event()
        self._settled = asyncio.Event()
        self._empty = asyncio.Event()
        self._up = False
        self.time_is_up = False

    @property
    def ready(self) -> bool:
        """Whether new requests should be sent here."""
        return self._up and not self.draining

    @property
    def draining(self) -> bool:
        """A signal has come."""
        return self._signalled.is_set()

    def serving(self) -> None:
        """The server accepts requests from now on."""
        self._up = True

    def add(self, request: Stoppable) -> None:
        """A request begins."""
        self._open.add(request)
        if self.time_is_up:
            request.shutdown()

    def remove(self, request: Stoppable) -> None:
        """A request is over."""
        self._open.discard(request)
        self._look()

    def signal(self) -> None:
        """Begin to drain; called again, stop waiting."""
        if self.draining:
            self._settled.set()
            return
        self._signalled.set()
        self._on_drain(len(self._open))
        self._look()

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take SIGTERM and SIGINT as `signal`."""
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.signal)

    def deaf(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ignore further signals: the end has begun, and must not be spoilt by impatience."""
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)

    async def finished(self) -> None:
        """Wait for a signal, then for the open requests or the end of their time."""
        await self._signalled.wait()
        await _wait(self._settled, self._drain_s)
        self.time_is_up = True
        for request in tuple(self._open):
            request.shutdown()
        await _wait(self._empty, LAST_WORDS_S)

    def _look(self) -> None:
        if self.draining and not self._open:
            self._settled.set()
            self._empty.set()


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass
