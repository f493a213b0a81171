"""A client on a raw socket: exact bytes out, raw answer in, every read with its time.

It leaves by FIN or RST when told to, and tells a clean end from a broken one.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self, TypeAlias

from tests.support.wire import Dechunker, Head, reset

Ending: TypeAlias = Literal["complete", "fin", "rst"]
READ_S = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, read to its end.

    Attributes:
        head: start line and fields.
        body: without transfer framing.
        ending: `complete` if the framing says so; else how the connection broke off.
        reads: (monotonic time, payload) of each read that brought payload.
    """

    head: Head
    body: bytes
    ending: Ending
    reads: list[tuple[float, bytes]]

    @property
    def status(self) -> int:
        """The status code."""
        return int(self.head.start.split(" ")[1])


@dataclass(slots=True)
class _Body:
    """The payload of one answer, whatever the framing."""

    head: Head
    no_body: bool
    dechunker: Dechunker = field(default_factory=Dechunker)
    plain: bytearray = field(default_factory=bytearray)
    length: int | None = None

    def __post_init__(self) -> None:
        length = self.head.get("content-length")
        self.length = 0 if self.no_body else int(length) if length is not None else None

    @property
    def chunked(self) -> bool:
        return not self.no_body and self.head.get("transfer-encoding") == "chunked"

    @property
    def complete(self) -> bool:
        if self.chunked:
            return self.dechunker.done
        return self.length is not None and len(self.plain) >= self.length

    def feed(self, data: bytes) -> bytes:
        if self.chunked:
            return self.dechunker.feed(data)
        self.plain += data
        return data

    @property
    def payload(self) -> bytes:
        return bytes(self.dechunker.body if self.chunked else self.plain)


class Client:
    """One connection.

    Attributes:
        requests: how many were sent; a test that writes one by hand counts it itself.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.host, self.port = host, port
        self.sock = socket.create_connection((host, port), timeout=READ_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pending = b""
        self._body: _Body | None = None
        self._reads: list[tuple[float, bytes]] = []
        self._broken: Ending | None = None
        self._method = ""
        self.requests = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sock.close()

    # ------------------------------------------------------------------ out

    def send(self, data: bytes) -> None:
        """Exactly these bytes."""
        self.sock.sendall(data)

    def request(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        fields: Iterable[str] = (),
        *,
        host: str | None = None,
    ) -> None:
        """A plain request with a Content-Length."""
        self._method = method
        self.requests += 1
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host or f'127.0.0.1:{self.port}'}"]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        self.send("\r\n".join([*lines, *fields]).encode("latin-1") + b"\r\n\r\n" + body)

    # ------------------------------------------------------------------ in

    def head(self) -> Head:
        """Read up to the end of the next head."""
        while b"\r\n\r\n" not in self._pending:
            data = self._receive()
            assert data, f"{self._broken} before the end of a head: {self._pending!r}"
            self._pending += data
        end = self._pending.index(b"\r\n\r\n") + 4
        raw, self._pending = self._pending[:end], self._pending[end:]
        head = Head.parse(raw)
        status = int(head.start.split(" ")[1])
        if status == 100:
            return self.head()
        self._body = _Body(head, self._method == "HEAD" or status in (204, 304))
        self._reads = []
        self._take(self._pending)
        return head

    def read_events(self, count: int) -> list[bytes]:
        """Read until that many events (ended by LF LF) are there, the head first if need be."""
        if self._body is None:
            self.head()
        while self.payload.count(b"\n\n") < count:
            data = self._receive()
            assert data, f"{self._broken} after {self.payload!r}"
            self._take(data)
        return [part + b"\n\n" for part in self.payload.split(b"\n\n")[:count]]

    @property
    def payload(self) -> bytes:
        """The body read so far."""
        assert self._body is not None, "read the head first"
        return self._body.payload

    def answer(self) -> Answer:
        """Read the whole answer."""
        if self._body is None:
            self.head()
        assert self._body is not None
        while not self._body.complete:
            data = self._receive()
            if not data:
                break
            self._take(data)
        body = self._body
        self._body = None
        ending = "complete" if body.complete else self._broken
        assert ending is not None
        return Answer(body.head, body.payload, ending, self._reads)

    def read_all(self) -> bytes:
        """Everything until the other side closes, framing and all."""
        found = self._pending
        while data := self._receive():
            found += data
        return found

    @property
    def broken(self) -> Ending | None:
        """How the other side closed the connection, None while it is open."""
        return self._broken

    def wait_closed(self, within_s: float = READ_S) -> Ending:
        """Wait until the other side closes; what it still says is dropped."""
        deadline = time.monotonic() + within_s
        while self._broken is None:
            assert time.monotonic() < deadline, f"still open after {within_s} s"
            self._receive()
        return self._broken

    def _take(self, data: bytes) -> None:
        assert self._body is not None
        payload = self._body.feed(data)
        self._pending = b""
        if self._body.chunked and self._body.dechunker.done:
            self._pending = self._body.dechunker.rest
        elif not self._body.chunked and self._body.length is not None:
            extra = len(self._body.plain) - self._body.length
            if extra > 0:
                self._pending = bytes(self._body.plain[-extra:])
                del self._body.plain[-extra:]
        if payload:
            self._reads.append((time.monotonic(), payload))

    def _receive(self) -> bytes:
        try:
            data = self.sock.recv(65536)
        except ConnectionResetError:
            self._broken = "rst"
            return b""
        if not data:
            self._broken = "fin"
        return data

    # ------------------------------------------------------------------ leaving

    def leave(self, how: Literal["fin", "rst"]) -> None:
        """Close now."""
        if how == "rst":
            reset(self.sock)
        else:
            self.sock.close()
