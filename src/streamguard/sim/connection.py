"""One connection of the provider: a protocol that sees a close the moment the kernel tells of it.

Reading never stops, so a FIN or an RST is noticed at once, in the middle of a pause or of a write
that blocks. The exchange that was running is then entered in the books as closed by the client and
its task is cancelled. A FIN counts as leaving, as it does for the model servers: none of them goes
on for a client that has shut down its side.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, Protocol, cast

from streamguard.sim.http import BadRequestError, Request, RequestReader
from streamguard.sim.ledger import Line


class ClosedError(Exception):
    """This side has closed the connection: nothing more can be written."""


class Spawn(Protocol):
    """Starts a task that is looked after."""

    def __call__(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start it."""


class Connection(asyncio.Protocol):
    """Reads requests, hands each to `answer`, writes what that says.

    Args:
        spawn: for the connection's one task.
        answer: called for each request; what it does not close is kept for a further one.
        instead: reset it on accept, or leave it in silence; None serves it.
    """

    def __init__(
        self,
        spawn: Spawn,
        answer: Callable[[Connection, Request], Awaitable[None]],
        *,
        instead: Literal["rst", "silent"] | None = None,
    ) -> None:
        self._spawn = spawn
        self._instead = instead
        self._answer = answer
        self._reader = RequestReader()
        self._loop = asyncio.get_running_loop()
        self._heard = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._over = False
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self.line: Line | None = None
        """The exchange that is running."""

    # ------------------------------------------------------------------ what the loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve it."""
        self._transport = cast(asyncio.Transport, transport)
        # A write is done when the kernel has taken it, not when a buffer of ours has. (Not 0:
        # asyncio's TLS pauses at the mark, not above it, and an empty buffer would never resume.)
        self._transport.set_write_buffer_limits(high=1, low=0)
        self._task = self._spawn(self._serve())

    def data_received(self, data: bytes) -> None:
        """Part of a request."""
        try:
            self._reader.feed(data)
        except BadRequestError:
            self.cut()
        self._heard.set()

    def eof_received(self) -> bool:
        """FIN."""
        self._client_left()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """RST, or the end of a close of our own."""
        self._client_left()

    def pause_writing(self) -> None:
        """The kernel takes no more for now."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The kernel has taken everything."""
        self._writable.set()

    def _client_left(self) -> None:
        if self._over:
            return
        self._over = True
        if self.line is not None:
            self.line.close("client", self.now)
        if self._task is not None:
            self._task.cancel()

    # ------------------------------------------------------------------ what an answer does

    @property
    def now(self) -> float:
        """Seconds on the loop's clock."""
        return self._loop.time()

    @property
    def is_tls(self) -> bool:
        """Whether there is TLS between."""
        return self._open.get_extra_info("ssl_object") is not None

    async def write(self, data: bytes) -> None:
        """Write all of it; back when the kernel has it."""
        if self._over:
            raise ClosedError
        self._open.write(data)
        await self._writable.wait()

    async def silence(self) -> None:
        """Nothing, until the client leaves."""
        await asyncio.Event().wait()

    def finish(self) -> None:
        """Close in an orderly way: FIN (over TLS: close-notify first)."""
        self._end()
        self._open.close()

    def shut_writing(self) -> None:
        """FIN, and go on reading."""
        self._open.write_eof()

    def reset(self) -> None:
        """RST."""
        self._end()
        sock = cast(socket.socket, self._open.get_extra_info("socket"))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._open.abort()

    def cut(self) -> None:
        """Close the socket under whatever runs on it; over TLS without a close-notify."""
        self._end()
        self._open.abort()

    def _end(self) -> None:
        self._over = True
        if self.line is not None:
            self.line.close("server", self.now)

    @property
    def _open(self) -> asyncio.Transport:
        assert self._transport is not None, "only used once the connection is made"
        return self._transport

    # ------------------------------------------------------------------ the task

    async def _serve(self) -> None:
        try:
            if self._instead == "rst":
                self.reset()
            elif self._instead == "silent":
                await self.silence()
            while not self._over:
                request = await self._request()
                await self._answer(self, request)
                if self.line is not None:
                    self.line.close("server", self.now)
                    self.line = None
                if not request.keep_alive and not self._over:
                    self.finish()
        except (BadRequestError, ClosedError):
            pass
        finally:
            if not self._open.is_closing():
                self.cut()

    async def _request(self) -> Request:
        while True:
            request = self._reader.take()
            if request is not None:
                return request
            self._heard.clear()
            await self._heard.wait()
