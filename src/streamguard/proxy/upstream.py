"""The upstream leg: one connection, one exchange at a time.

llhttp (through httptools) reads along as a strict observer; its leniencies stay off. What it
accepts is handed on as decoded body bytes, one call per socket read, and framed anew for the
client, so that upstream framing never has to mean the same to two readers. Parse first, hand on
second.

`Connection` knows nothing of guards, clients or aiohttp: it talks to a `Downstream` of five
methods. Whatever drives it (the relay of a guarded stream, a request passing through, a second
door one day) implements those. Invariants: nothing is delivered after `abort()` or `done()`; a
connection goes back to the pool only after a clean message end with nothing left over; a body that
breaks off is never reported as clean.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, cast

import httptools

from streamguard.proxy.headers import Header, tokens, values

HEAD_MAX_BYTES: Final = 64 * 1024
HEAD_MAX_FIELDS: Final = 300
READ_BYTES: Final = 64 * 1024

# One read buffer for all connections. The loop fills it and calls `buffer_updated` before it
# touches another socket, and nothing keeps a view of it beyond that call.
_BUFFER: Final = memoryview(bytearray(READ_BYTES))

Ending: TypeAlias = Literal["clean", "truncated", "malformed"]
"""How a response ended: whole, broken off, or in bytes that are not HTTP as we accept it."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """A final response head, as received.

    Attributes:
        status: never 1xx.
        reason: the phrase, possibly empty.
        headers: raw pairs in order.
        version: `1.0` or `1.1`.
        length: the declared body length; None where framing says otherwise.
        chunked: the body comes in chunks.
    """

    status: int
    reason: bytes
    headers: tuple[Header, ...]
    version: str
    length: int | None
    chunked: bool

    def first(self, name: bytes) -> str | None:
        """The first value of a field (lower-case name) as text, or None."""
        found = values(self.headers, name)
        return found[0].decode("latin-1") if found else None


class Downstream(Protocol):
    """What an exchange talks to. All calls come from the loop, in this order: head, data…, done."""

    def head(self, head: ResponseHead) -> None:
        """The response begins."""

    def data(self, data: bytes, *, last: bool) -> None:
        """Body bytes, free of transfer framing; never empty.

        `last` says that the body ends with them and `done` follows in this very callback, so
        that bytes and end may go out in one write.
        """

    def pause(self) -> None:
        """The upstream takes no more of the request body for now."""

    def resume(self) -> None:
        """It takes more again."""

    def done(self, ending: Ending) -> None:
        """The response is over. Nothing follows."""


class Keeper(Protocol):
    """Where a connection goes between exchanges (`proxy.pool.Pool`)."""

    def keep(self, connection: Connection) -> None:
        """An exchange ended cleanly; the connection may serve another one."""

    def forget(self, connection: Connection) -> None:
        """The connection is closed, or about to be."""


class Connection(asyncio.BufferedProtocol):
    """One socket to the upstream."""

    def __init__(self, pool: Keeper) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._downstream: Downstream | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._eof = False
        self._reset()

    def _reset(self, *, bodiless: bool = False) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._bodiless = bodiless
        self._sent_whole = False
        self._head: ResponseHead | None = None
        self._head_announced = False
        self._head_bytes = 0  # read before the head was whole
        self._barren_bytes = 0  # read after it and after the last body byte
        self._field_bytes = 0
        self._fields = 0
        self._headers: list[Header] = []
        self._reason = b""
        self._body: list[bytes] = []
        self._tail = b""
        self._interim = False
        self._refused = False
        self._complete = False
        self._surplus = False
        self._persistent = False

    # ------------------------------------------------------------------ for the one who drives it

    @property
    def is_open(self) -> bool:
        """Whether a request may still be written."""
        return self._transport is not None and not self._transport.is_closing()

    def exchange(
        self, request: bytes, downstream: Downstream, *, bodiless: bool, whole: bool
    ) -> None:
        """Send a request and deliver the response.

        Args:
            request: head, and as much of the body as there is.
            downstream: gets the response.
            bodiless: the response has no body whatever its head says (the method was HEAD).
            whole: nothing more of the request follows.
        """
        self._reset(bodiless=bodiless)
        self._downstream = downstream
        self._sent_whole = whole
        self.write(request)

    def write(self, data: bytes) -> None:
        """Send more of the request; a connection that is closing swallows it."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def request_sent(self) -> None:
        """The request is whole; without this the connection is never used again."""
        self._sent_whole = True

    def pause_reading(self) -> None:
        """Stop reading the response (the client cannot take more)."""
        if self.is_open:
            assert self._transport is not None
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self.is_open:
            assert self._transport is not None
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close now, in both directions, without a graceful TLS end. Nothing is delivered any more.

        A graceful end would wait for the peer, and the peer would go on generating.
        """
        self._downstream = None
        self._pool.forget(self)
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------ for the pool

    def park(self, idle_s: float) -> None:
        """Wait, idle, for the next exchange, but no longer than this."""
        loop = asyncio.get_running_loop()
        self._idle_timer = loop.call_later(idle_s, self.abort)

    def unpark(self) -> None:
        """Leave the pool."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    # ------------------------------------------------------------------ asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from it

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        downstream = self._downstream
        if downstream is None:
            self.abort()  # bytes that nobody asked for: an idle connection that is not idle
            return
        data = _BUFFER[:nbytes]
        malformed = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            malformed = True
        if not self._head_announced:
            self._head_bytes += nbytes
            if self._head is None and self._head_bytes > HEAD_MAX_BYTES:
                self._refused = True
        if self._refused:
            self._finish(downstream, "malformed")
            return
        tail = bytes(data[-5:])
        self._tail = tail if nbytes >= 5 else (self._tail + tail)[-5:]
        if self._head is not None and not self._head_announced:
            self._head_announced = True
            downstream.head(self._head)
        if self._body:
            self._barren_bytes = 0
        elif self._head_announced and not self._complete:
            # Trailers and chunk extensions are read by nobody and bounded by nothing else.
            self._barren_bytes += nbytes
            if self._barren_bytes > HEAD_MAX_BYTES:
                self._finish(downstream, "malformed")
                return
        # Every call may have led to abort(): the downstream decides what to do with what it saw.
        if self._body and self._downstream is downstream:
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self._body.clear()
            downstream.data(body, last=self._complete)
        if self._downstream is not downstream:
            return
        if self._complete:
            self._surplus |= malformed
            self._finish(downstream, "clean")
        elif malformed:
            self._finish(downstream, "malformed")

    def eof_received(self) -> None:
        self._eof = not _tls_truncated(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.forget(self)
        self._transport = None
        downstream = self._downstream
        if downstream is None:
            return
        self._downstream = None
        head = self._head
        until_close = head is not None and head.length is None and not head.chunked
        clean = until_close and self._eof and exc is None
        downstream.done("clean" if clean else "truncated")

    def pause_writing(self) -> None:
        if self._downstream is not None:
            self._downstream.pause()

    def resume_writing(self) -> None:
        if self._downstream is not None:
            self._downstream.resume()

    # ------------------------------------------------------------------ httptools callbacks
    # They only take notes: an exception raised in them would surface as a parser error.

    def on_message_begin(self) -> None:
        if self._complete:
            self._surplus = True  # a second response nobody asked for

    def on_status(self, reason: bytes) -> None:
        if not self._complete:
            self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        if self._fields > HEAD_MAX_FIELDS:
            self._refused = True
        elif self._head is None:
            self._headers.append((name, value))
            self._field_bytes += len(name) + len(value)
            if self._field_bytes > HEAD_MAX_BYTES:
                self._refused = True
        # else a trailer: dropped, since the client gets our framing

    def on_headers_complete(self) -> None:
        if self._complete or self._refused:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            # 101 would hand the connection to another protocol; we never ask for one.
            self._interim = True
            self._refused = status == 101
            return
        version = self._parser.get_http_version()
        coding = tokens(self._headers, b"transfer-encoding")
        # llhttp reads a body of any other coding up to the close, framing included, and takes
        # `chunked` from HTTP/1.0 peers; what the client would make of either is anybody's guess.
        if version not in ("1.0", "1.1") or (
            coding and (coding != [b"chunked"] or version != "1.1")
        ):
            self._refused = True
            return
        stated = values(self._headers, b"content-length")
        self._head = ResponseHead(
            status=status,
            reason=self._reason,
            headers=tuple(self._headers),
            version=version,
            length=int(stated[0]) if stated else None,
            chunked=bool(coding),
        )
        self._complete = self._bodiless

    def on_body(self, data: bytes) -> None:
        if self._complete:
            self._surplus = True
        else:
            self._body.append(data)

    def on_message_complete(self) -> None:
        if self._complete:
            return
        if self._interim:
            self._interim = False
            self._headers.clear()
            self._reason = b""
            return
        self._complete = True
        self._persistent = self._parser.should_keep_alive()

    # ------------------------------------------------------------------ the end

    def _finish(self, downstream: Downstream, ending: Ending) -> None:
        self._downstream = None
        if ending == "clean" and self._reusable():
            self._pool.keep(self)
        else:
            self.abort()
        downstream.done(ending)

    def _reusable(self) -> bool:
        """Whether the next response on this connection would surely be the next answer."""
        head = self._head
        if head is None or self._surplus or not self._persistent or not self._sent_whole:
            return False
        # llhttp swallows a stray CRLF after the end, and trailers; neither is worth trusting.
        return not head.chunked or self._tail == b"0\r\n\r\n"


def _tls_truncated(transport: asyncio.Transport | None) -> bool:
    """Whether the byte stream ended without TLS saying so (RFC 8446, section 6.1).

    The event loop reports both ends alike. Asked for more, OpenSSL tells them apart: after
    close_notify it has reached the end, without it it wants to read on.
    """
    tls = transport.get_extra_info("ssl_object") if transport is not None else None
    if tls is None:
        return False
    try:
        tls.read(1)
    except ssl.SSLWantReadError:
        return True
    except ssl.SSLError:
        return False
    return False
