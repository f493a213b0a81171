"""The listening side: aiohttp's server, with clocks for what it leaves open and a muted voice.

`web.Server` is used without `web.Application`: there is one handler and no route, and the
application's router, match info and signals cost a fifth of a short request. Everything here
overrides public methods of `web.Server` and `web.RequestHandler`.

What it adds: a deadline for request heads (aiohttp waits for ever), a clock for clients that stop
reading, word of a client that leaves (in the same callback, before the handler's cancellation
comes round), and fixed texts where aiohttp would quote the bytes it could not parse into an answer
and a log.

A client that closes only its sending side counts as gone: asyncio closes such a connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractAccessLogger, AbstractStreamWriter
from aiohttp.http import RawRequestMessage

from streamguard.serving.answers import Code
from streamguard.serving.reply import Reply

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

EARLY_MAX_BYTES: Final = 64 * 1024
"""What a client may send behind a request that is being answered; more, and it is let go."""
STOP_S: Final = 0.2

LINGER_S: Final = 5.0
"""How long a rejected body is read and thrown away, so that the client can read the answer."""


class Flow(Protocol):
    """What a connection tells whoever answers on it."""

    def client_paused(self) -> None:
        """The client reads slower than we write; stop giving."""

    def client_resumed(self) -> None:
        """It has caught up."""

    def client_stalled(self) -> None:
        """It has read nothing for the whole write clock; the connection is aborted after this."""

    def client_gone(self) -> None:
        """The connection is lost."""


class ListenerEvents(Protocol):
    """What a listener reports; implementations count and log, and never raise."""

    def rejected(self, code: Code) -> None:
        """A connection or request was turned away before any handler saw it."""

    def failed(self, error: BaseException | None) -> None:
        """aiohttp caught an exception."""


class _NoAccessLog(AbstractAccessLogger):
    """aiohttp's access log prints request targets, and with them `?key=`."""

    @property
    def enabled(self) -> bool:
        return False

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        raise AssertionError("disabled")


class Listener(web.Server):
    """A factory of `Door`s.

    Args:
        handler: answers each request.
        events: told what went wrong before a handler.
        head_s: for a request head to arrive, from the first byte (or the connection).
        write_s: for a client that stopped reading.
        keepalive_s: an idle connection is kept this long.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        events: ListenerEvents,
        head_s: float,
        write_s: float,
        keepalive_s: float,
    ) -> None:
        super().__init__(handler, request_factory=self.make_request, handler_cancellation=True)
        self.events = events
        self.head_s = head_s
        self.write_s = write_s
        self.keepalive_s = keepalive_s

    def __call__(self) -> Door:
        return Door(self)

    async def stop(self) -> None:
        """Close what is left, without waiting for clients that do not read."""
        for door in self.connections:
            if door.transport is not None:
                door.transport.abort()
        await self.shutdown(STOP_S)

    def make_request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        """A request is parsed: its head has arrived."""
        assert isinstance(protocol, Door)
        protocol.head_arrived()
        return web.BaseRequest(message, payload, protocol, writer, task, asyncio.get_running_loop())


class Door(web.RequestHandler):
    """One client connection."""

    __slots__ = (
        "_early",
        "_early_bytes",
        "_flow",
        "_head_timer",
        "_listener",
        "_serving",
        "_whole",
        "_write_timer",
    )

    def __init__(self, listener: Listener) -> None:
        super().__init__(
            listener,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=listener.keepalive_s,
            logger=logging.getLogger("aiohttp.server"),
            access_log_class=_NoAccessLog,
            lingering_time=LINGER_S,
            auto_decompress=False,
        )
        self._listener = listener
        self._flow: Flow | None = None
        self._serving = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._whole = False
        self._early: list[bytes] = []
        self._early_bytes = 0

    # ------------------------------------------------------------------ for the handler

    def attach(self, flow: Flow, *, whole: bool = False) -> None:
        """From now on `flow` hears of the client.

        Args:
            flow: is told.
            whole: the request's body has been read. What the client sends now is for later, and
                waits here, where it can't stop us from reading: only a reader hears a client leave.
        """
        self._flow = flow
        self._whole = whole
        if whole and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()  # aiohttp stops it where many requests wait
        if self.writing_paused:
            flow.client_paused()

    def request_over(self) -> None:
        """The request is answered: the next one has its own clocks."""
        self._flow = None
        self._serving = False
        self._watch_writing()
        self._whole = False
        early = b"".join(self._early)
        self._early.clear()
        self._early_bytes = 0
        if early and self.transport is not None:
            self.data_received(early)

    def head_arrived(self) -> None:
        """A request head is whole."""
        self._serving = True
        self._stop_head_clock()
        self._stop_write_clock()

    # ------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._start_head_clock()

    def data_received(self, data: bytes) -> None:
        if self._whole:
            self._early.append(data)
            self._early_bytes += len(data)
            if self._early_bytes > EARLY_MAX_BYTES and self.transport is not None:
                self.transport.abort()
            return
        if data and not self._serving and self._head_timer is None:
            self._start_head_clock()
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_head_clock()
        self._stop_write_clock()
        flow, self._flow = self._flow, None
        if flow is not None:
            flow.client_gone()
        super().connection_lost(exc)

    def close(self) -> None:
        """Close after the current request; at once where there is none (aiohttp only stops)."""
        super().close()
        if not self._serving and self.transport is not None:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()
        if self._flow is not None:
            self._flow.client_paused()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_clock()
        if self._flow is not None:
            self._flow.client_resumed()

    # ------------------------------------------------------------------ aiohttp's voice

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What aiohttp answers to what it cannot parse, with its message left out."""
        if request.writer.output_size > 0:
            raise ConnectionError  # the answer has begun: aiohttp closes the connection
        code: Code = "malformed_request" if status < 500 else "internal_error"
        if status >= 500:
            self._listener.events.failed(exc)
        self._listener.events.rejected(code)
        reply = Reply(request)
        reply.error(code)
        self._serving = False
        return reply

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Count it; its text may quote a header."""
        error = kw.get("exc_info")
        self._listener.events.failed(error if isinstance(error, BaseException) else None)

    # ------------------------------------------------------------------ clocks

    def _start_head_clock(self) -> None:
        loop = asyncio.get_running_loop()
        self._head_timer = loop.call_later(self._listener.head_s, self._head_late)

    def _stop_head_clock(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        self._listener.events.rejected("head_timeout")
        if self.transport is not None:
            self.transport.abort()

    def _watch_writing(self) -> None:
        """Start the write clock if bytes wait for the client."""
        self._stop_write_clock()
        transport = self.transport
        if transport is not None and (unsent := transport.get_write_buffer_size()):
            loop = asyncio.get_running_loop()
            self._write_timer = loop.call_later(
                self._listener.write_s, self._write_late, transport, unsent
            )

    def _stop_write_clock(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _write_late(self, transport: asyncio.Transport, unsent: int) -> None:
        """Nothing is written meanwhile, so any shrinking is progress: slow is not dead."""
        self._write_timer = None
        if transport.get_write_buffer_size() < unsent:
            self._watch_writing()
            return
        flow, self._flow = self._flow, None
        if flow is not None:
            flow.client_stalled()
        transport.abort()
