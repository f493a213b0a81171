"""One answer to a client: our own head bytes and framing, through the request's transport.

aiohttp's `StreamResponse` serialises a head of its own (with its name, a date and a default type)
and hands every chunk through a coroutine. A `Reply` writes from whatever callback has the bytes.
It stays a `StreamResponse` so that aiohttp can finish the request as usual; only public names are
overridden.

Invariants: every byte is added to `request.writer.output_size`, so aiohttp never writes a second
response into a body that is open; a body that is not `finish(clean=True)` never ends in a way that
a client could take for whole; nothing is written past a declared length.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable
from typing import Final, Literal, TypeAlias

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from streamguard.serving.answers import ANSWERS, Code, error_body

Framing: TypeAlias = Literal["chunked", "length", "close", "empty"]

_LAST_CHUNK: Final = b"0\r\n\r\n"
_LINGER_OFF: Final = struct.pack("ii", 1, 0)


class Reply(web.StreamResponse):
    """The answer to one request.

    Args:
        request: the request; its transport is written to.
        draining: asked when the head is written; while true, connections are not kept.
    """

    def __init__(
        self, request: web.BaseRequest, *, draining: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__()
        self._request = request
        self._draining = draining
        self._pending = b""
        self._framing: Framing = "empty"
        self._left = 0
        self._reusable = False
        self._begun = False
        self._ended = False
        self._written = 0

    # ------------------------------------------------------------------ what aiohttp asks

    @property
    def prepared(self) -> bool:
        return self._begun

    @property
    def keep_alive(self) -> bool:
        return self._reusable and self._ended

    @property
    def body_length(self) -> int:
        return self._written

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:
        """Nothing to do: the head is ours. An answer nobody began is a bug, and ends broken."""
        if not self._ended:
            self.finish(clean=False)
        return request.writer

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing to do: the end is ours as well."""

    # ------------------------------------------------------------------ what the shell says

    @property
    def begun(self) -> bool:
        """A head was chosen; no other answer can be given."""
        return self._begun

    @property
    def ended(self) -> bool:
        """`finish` was called."""
        return self._ended

    @property
    def unsent(self) -> int:
        """Bytes that wait in this process for the client to read."""
        transport = self._request.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def begin(
        self,
        status: int,
        reason: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        *,
        length: int | None = None,
        empty: bool = False,
        close: bool = False,
    ) -> None:
        """Choose the head; it goes out with the first bytes, or with `flush`.

        Args:
            status: of the answer.
            reason: its phrase.
            headers: end-to-end fields; `content-length` among them where it is known.
            length: the body's length; None frames it in chunks, or by the close for HTTP/1.0.
            empty: no body follows, whatever the fields say (HEAD, 204, 304).
            close: the connection ends with this answer.
        """
        self.set_status(status, "")
        self._begun = True
        request = self._request
        modern = request.version >= (1, 1)
        fields = list(headers)
        if empty:
            self._framing = "empty"
        elif length is not None:
            self._framing, self._left = "length", length
        elif modern:
            self._framing = "chunked"
            fields.append((b"transfer-encoding", b"chunked"))
        else:
            self._framing = "close"
        self._reusable = modern and request.keep_alive and not close and not self._draining()
        if not self._reusable:
            fields.append((b"connection", b"close"))
        lines = [b"HTTP/1.1 %d %s" % (status, reason)]
        lines += [name + b": " + value for name, value in fields]
        lines += (b"", b"")
        self._pending = b"\r\n".join(lines)

    def write(  # type: ignore[override]  # not a coroutine, on purpose
        self, data: bytes, *, more: bool = False
    ) -> None:
        """Send body bytes now, or (`more`) with what follows in the same callback.

        After the client has gone they are swallowed.
        """
        if not data or self._ended:
            return
        if more:
            self._pending += self._frame(data)
        else:
            self._put(self._frame(data))

    def flush(self) -> None:
        """Send the head, if it still waits for a first byte."""
        if self._pending:
            self._put(b"")

    def finish(self, *, clean: bool, data: bytes = b"") -> None:
        """End the body.

        Args:
            clean: with the mark of a whole body; else the client sees that it is broken off.
            data: last body bytes, sent in the same write.
        """
        if self._ended:
            return
        framed = self._frame(data) if data else b""
        if self._framing == "length" and self._left:
            clean = False
        if clean:
            self._put(framed + (_LAST_CHUNK if self._framing == "chunked" else b""))
            self._ended = True
            return
        self._put(framed)
        self._ended = True
        self._reusable = False
        self._break()

    def answer(
        self,
        status: int,
        body: bytes,
        headers: Iterable[tuple[bytes, bytes]] = (),
        *,
        keep: bool = True,
    ) -> None:
        """A whole JSON answer of our own."""
        empty = self._request.method == "HEAD"
        fields = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            *headers,
        ]
        phrase = _PHRASES.get(status, b"")
        self.begin(status, phrase, fields, length=len(body), empty=empty, close=not keep)
        self.finish(clean=True, data=b"" if empty else body)

    def error(self, code: Code, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """One of our fixed error answers."""
        known = ANSWERS[code]
        extra = list(headers)
        if not known.retry:
            extra.append((b"x-should-retry", b"false"))
        if known.retry_after_s:
            extra.append((b"retry-after", b"%d" % known.retry_after_s))
        self.answer(known.status, error_body(code), extra, keep=not known.close)
        if known.abrupt and self._request.transport is not None:
            self._request.transport.close()

    # ------------------------------------------------------------------ bytes

    def _frame(self, data: bytes) -> bytes:
        match self._framing:
            case "chunked":
                return b"%x\r\n%b\r\n" % (len(data), data)
            case "length":
                if len(data) > self._left:
                    # More than was promised: what follows would be read as another response.
                    self._left = max(self._left, 1)
                    return b""
                self._left -= len(data)
                return data
            case "close":
                return data
            case "empty":
                return b""

    def _put(self, data: bytes) -> None:
        if self._pending:
            data, self._pending = self._pending + data, b""
        transport = self._request.transport
        if not data or transport is None or transport.is_closing():
            return
        self._written += len(data)
        self._request.writer.output_size += len(data)
        transport.write(data)

    def _break(self) -> None:
        """Close so that the client sees it: what was written still goes out, an end does not."""
        transport = self._request.transport
        if transport is None:
            return
        if self._framing == "close" and self._begun:
            # Only a reset tells an HTTP/1.0 client that a body delimited by the close is not whole.
            sock: socket.socket | None = transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_OFF)
        transport.close()


_PHRASES: Final = {
    200: b"OK",
    400: b"Bad Request",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    417: b"Expectation Failed",
    422: b"Unprocessable Content",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
    508: b"Loop Detected",
}
