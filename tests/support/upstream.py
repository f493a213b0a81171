"""A scriptable provider on a raw socket. It can do everything a provider must not do.

It knows no HTTP library and runs in threads of its own, one a connection, so that it notices a
close at once, whatever it is doing: each wait is a poll on the socket. What it records (bytes
received, bytes written and when, how and when the peer left) is the evidence of the tests.

A *script* is a function of one `Exchange`. It writes what it likes and returns; the connection is
then kept for a further request, unless the script closed it.
"""

from __future__ import annotations

import gzip
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn, TypeAlias

from tests.support.wire import LAST_CHUNK, Dechunker, Head, chunk, reset

SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)

# How long one write may block before the connection is looked at again.
_BLOCKED_WRITE_S = 0.02


class PeerGoneError(Exception):
    """The subject closed the connection; ends the script that was running."""


@dataclass(frozen=True, slots=True)
class Closed:
    """How the peer's end of the connection came to an end, and when (monotonic seconds)."""

    how: Literal["fin", "rst"]
    at: float


@dataclass(slots=True)
class Request:
    """One request as it came over the wire."""

    raw_head: bytes
    raw_body: bytes
    body: bytes
    at: float
    method: str = field(init=False)
    target: str = field(init=False)
    head: Head = field(init=False)

    def __post_init__(self) -> None:
        """Split the start line."""
        self.head = Head.parse(self.raw_head)
        self.method, self.target, _ = self.head.start.split(" ", 2)


class Connection:
    """One accepted connection, owned by one thread."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.sock = sock
        self.number = number
        self.received = bytearray()
        self.sent_bytes = 0
        self.last_write_at = 0.0
        self.closed: Closed | None = None
        self.we_closed = False
        self._pending = bytearray()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    # ------------------------------------------------------------------ reading

    def request(self) -> Request | None:
        """Wait for a whole request; None when the peer closed without one."""
        try:
            while b"\r\n\r\n" not in self._pending:
                self._receive()
            end = self._pending.index(b"\r\n\r\n") + 4
            raw_head = bytes(self._pending[:end])
            del self._pending[:end]
            raw_body, body = self._body(Head.parse(raw_head))
        except PeerGoneError:
            return None
        return Request(raw_head, raw_body, body, time.monotonic())

    def _body(self, head: Head) -> tuple[bytes, bytes]:
        if head.get("transfer-encoding") is not None:
            dechunker = Dechunker()
            raw = bytearray()
            while True:
                raw += self._pending
                dechunker.feed(bytes(self._pending))
                self._pending.clear()
                if dechunker.done:
                    break
                self._receive()
            self._pending += dechunker.rest
            return bytes(raw[: len(raw) - len(dechunker.rest)]), bytes(dechunker.body)
        length = int(head.get("content-length") or 0)
        while len(self._pending) < length:
            self._receive()
        raw_body = bytes(self._pending[:length])
        del self._pending[:length]
        return raw_body, raw_body

    def _receive(self) -> None:
        """One read; raises `PeerGoneError` at the end of the peer's bytes."""
        if not (isinstance(self.sock, ssl.SSLSocket) and self.sock.pending()):
            self._poll.poll()
        try:
            data = self.sock.recv(65536)
        except TimeoutError:
            return  # a TLS record that has not arrived whole
        except (ConnectionResetError, BrokenPipeError):
            self._gone("rst")
        except OSError:  # TLS ended without a close-notify, or the bench is being taken down
            self._gone("fin")
        else:
            if not data:
                self._gone("fin")
            self.received += data
            self._pending += data

    def _gone(self, how: Literal["fin", "rst"]) -> NoReturn:
        if self.closed is None:
            self.closed = Closed(how, time.monotonic())
        raise PeerGoneError

    # ------------------------------------------------------------------ writing

    def send(self, data: bytes) -> None:
        """Write all of it, noticing a close before and while it blocks."""
        view = memoryview(data)
        while view:
            self.pause(0)
            try:
                written = self.sock.send(view)
            except (ConnectionResetError, BrokenPipeError):
                self._gone("rst")
            except TimeoutError:
                continue  # the peer does not read: look whether it has left, then try again
            except OSError:
                self._gone("fin")
            else:
                self.sent_bytes += written
                self.last_write_at = time.monotonic()
                view = view[written:]

    def pause(self, seconds: float) -> None:
        """Do nothing for a while; raises `PeerGoneError` the moment the peer leaves."""
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            if self._poll.poll(left * 1000):
                self._receive()
            if time.monotonic() >= deadline:
                return

    def wait_closed(self, seconds: float = 20.0) -> None:
        """Stay silent until the peer leaves."""
        self.pause(seconds)

    def closed_within(self, seconds: float) -> Closed:
        """The close seen by this side, asked from another thread; fails if none comes in time."""
        deadline = time.monotonic() + seconds
        while self.closed is None:
            assert time.monotonic() < deadline, f"upstream still open after {seconds} s"
            time.sleep(0.001)
        return self.closed

    # ------------------------------------------------------------------ closing

    def fin(self) -> None:
        """Close in an orderly way."""
        self.we_closed = True
        self._shut()
        self.sock.close()

    def half_close(self) -> None:
        """No more bytes from here; keep reading."""
        self.sock.shutdown(socket.SHUT_WR)

    def rst(self) -> None:
        """Reset the connection."""
        self.we_closed = True
        reset(self.sock)

    def take_down(self) -> None:
        """End the connection from outside its thread."""
        self._shut()

    def _shut(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the peer was faster


@dataclass(slots=True)
class Exchange:
    """One request and what the script wrote in answer."""

    connection: Connection
    request: Request
    events_written: list[tuple[float, bytes]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def send(self, data: bytes) -> None:
        """Raw bytes."""
        self.connection.send(data)

    def event(self, data: bytes, *, slice_bytes: int | None = None) -> None:
        """One event in one HTTP chunk, in segments of `slice_bytes` if given."""
        framed = chunk(data)
        step = slice_bytes or len(framed)
        for at in range(0, len(framed), step):
            self.send(framed[at : at + step])
        self.events_written.append((time.monotonic(), data))

    def pause(self, seconds: float) -> None:
        """Wait, watching the peer."""
        self.connection.pause(seconds)

    def closed_within(self, seconds: float) -> Closed:
        """The close seen by this side; fails if none comes in time."""
        return self.connection.closed_within(seconds)


Script: TypeAlias = Callable[[Exchange], None]
AcceptScript: TypeAlias = Callable[[Connection], None]


class Upstream:
    """The listening end. Plain or TLS; on 127.0.0.1, on ::1, or called `localhost`.

    Args:
        host: the name used in `url`; `localhost` listens on 127.0.0.1 only, so that a client
            which tries ::1 first has to fall back.
        tls: the server's certificate and key.
    """

    def __init__(self, host: str = "127.0.0.1", *, tls: ssl.SSLContext | None = None) -> None:
        self.host = host
        self.tls = tls
        family = socket.AF_INET6 if host == "::1" else socket.AF_INET
        self._listener = socket.create_server(
            ("::1" if host == "::1" else "127.0.0.1", 0), family=family, backlog=512
        )
        self.port: int = self._listener.getsockname()[1]
        self.exchanges: list[Exchange] = []
        self.connections: list[Connection] = []
        self.accepted = 0
        self.errors: list[BaseException] = []
        self._scripts: deque[Script] = deque()
        self._default: Script = sse([])
        self._accept_script: AcceptScript | None = None
        self._lock = threading.Lock()
        self._all: list[Connection] = []
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, name="upstream-accept", daemon=True)
        self._accepting.start()

    @property
    def url(self) -> str:
        """The base address, without a path."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{name}:{self.port}"

    @property
    def authority(self) -> str:
        """What a correct Host field says."""
        return self.url.partition("//")[2]

    # ------------------------------------------------------------------ what tests say

    def answers(self, *scripts: Script) -> None:
        """The scripts of the next requests, in order; the last one serves all further ones."""
        with self._lock:
            self._scripts = deque(scripts[:-1])
            self._default = scripts[-1]

    def on_accept(self, script: AcceptScript | None) -> None:
        """What to do with a new connection instead of serving it."""
        self._accept_script = script

    def forget(self) -> None:
        """Start a new record. Pooled connections stay open."""
        with self._lock:
            self.exchanges = []
            self.connections = []
            self.accepted = 0
            self._scripts.clear()
            self._default = sse([])
            self._accept_script = None

    def exchange(self, number: int = 0, *, within_s: float = 5.0) -> Exchange:
        """The n-th exchange since the last `forget`, waiting for it."""
        deadline = time.monotonic() + within_s
        while len(self.exchanges) <= number:
            assert time.monotonic() < deadline, f"no exchange {number} within {within_s} s"
            time.sleep(0.001)
        return self.exchanges[number]

    def connection(self, *, within_s: float = 5.0) -> Connection:
        """The newest connection accepted since the last `forget`, waiting for one."""
        deadline = time.monotonic() + within_s
        while not self.connections:
            assert time.monotonic() < deadline, f"no connection within {within_s} s"
            time.sleep(0.001)
        return self.connections[-1]

    def drop_idle(self) -> None:
        """Close every connection that waits for a request, as a provider does after a while."""
        for connection in self._all:
            connection.take_down()

    def close(self) -> None:
        """Take everything down; raises what a script raised."""
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # never connected: not an error on every system
        self._listener.close()
        self._accepting.join(5)
        for connection in self._all:
            connection.take_down()
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive(), f"{thread.name} hangs"
        if self.errors:
            raise self.errors[0]

    # ------------------------------------------------------------------ threads

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return  # closed
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.accepted += 1
            thread = threading.Thread(
                target=self._serve, args=(sock, self.accepted), name="upstream", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _serve(self, raw: socket.socket, number: int) -> None:
        accept_script = self._accept_script
        sock = raw
        try:
            if self.tls is not None and accept_script is None:
                raw.settimeout(5)
                sock = self.tls.wrap_socket(raw, server_side=True)
            sock.settimeout(_BLOCKED_WRITE_S)
        except OSError:  # a handshake that fails is what some tests want
            raw.close()
            return
        connection = Connection(sock, number)
        self._all.append(connection)
        self.connections.append(connection)
        try:
            if accept_script is not None:
                accept_script(connection)
            else:
                self._serve_requests(connection)
        except PeerGoneError:
            pass  # recorded in connection.closed
        except BaseException as error:  # reported by close(), in the test's own thread
            self.errors.append(error)
        finally:
            if not connection.we_closed:
                connection.take_down()
                sock.close()

    def _serve_requests(self, connection: Connection) -> None:
        while not connection.we_closed:
            request = connection.request()
            if request is None:
                return
            exchange = Exchange(connection, request)
            with self._lock:
                script = self._scripts.popleft() if self._scripts else self._default
                self.exchanges.append(exchange)
            try:
                script(exchange)
            finally:
                exchange.ended.set()


# --------------------------------------------------------------------------- scripts


def sse(
    events: Iterable[bytes],
    *,
    pace_s: float = 0.0,
    head: bytes = SSE_HEAD,
    slice_bytes: int | None = None,
    after: Callable[[Exchange], None] | None = None,
) -> Script:
    """Events at a pace, one HTTP chunk each; then `after`, or a clean end."""

    def script(exchange: Exchange) -> None:
        exchange.send(head)
        for data in events:
            exchange.event(data, slice_bytes=slice_bytes)
            exchange.pause(pace_s)
        if after is None:
            exchange.send(LAST_CHUNK)
        else:
            after(exchange)

    return script


def pieces(parts: Sequence[bytes], *, pace_s: float = 0.0, head: bytes = SSE_HEAD) -> Script:
    """A body cut anywhere: one HTTP chunk a part, without regard to events."""

    def script(exchange: Exchange) -> None:
        exchange.send(head)
        for part in parts:
            exchange.send(chunk(part))
            exchange.pause(pace_s)
        exchange.send(LAST_CHUNK)

    return script


def answer(
    status: str, body: bytes = b"", *fields: str, content_type: str = "application/json"
) -> Script:
    """One whole answer with a Content-Length."""

    def script(exchange: Exchange) -> None:
        lines = [
            f"HTTP/1.1 {status}",
            f"Content-Type: {content_type}",
            f"Content-Length: {len(body)}",
            *fields,
        ]
        exchange.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    return script


def raw(data: bytes, then: Callable[[Exchange], None] | None = None) -> Script:
    """Exactly these bytes, then `then` (a close by default)."""

    def script(exchange: Exchange) -> None:
        exchange.send(data)
        (then or fin)(exchange)

    return script


def encoded(events: Sequence[bytes], *, coding: str = "gzip") -> Script:
    """A compressed stream although identity was asked."""
    body = gzip.compress(b"".join(events))
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: "
        + coding.encode()
        + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return pieces([body], head=head)


def fin(exchange: Exchange) -> None:
    """Close in an orderly way, whatever the framing still owes."""
    exchange.connection.fin()


def rst(exchange: Exchange) -> None:
    """Reset."""
    exchange.connection.rst()


def half_close(exchange: Exchange) -> None:
    """Send FIN, then wait for the peer."""
    exchange.connection.half_close()
    exchange.connection.wait_closed()


def mid_chunk_then(end: Callable[[Exchange], None]) -> Callable[[Exchange], None]:
    """Announce a chunk, send half of it, then end."""

    def after(exchange: Exchange) -> None:
        exchange.send(b'40\r\ndata: {"cut')
        end(exchange)

    return after


def silence(exchange: Exchange) -> None:
    """Say nothing more until the peer leaves."""
    exchange.connection.wait_closed()


def endless(make_event: Callable[[int], bytes], *, pace_s: float = 0.0) -> Script:
    """A stream that only the peer can end."""

    def script(exchange: Exchange) -> None:
        exchange.send(SSE_HEAD)
        number = 0
        while True:
            exchange.event(make_event(number))
            exchange.pause(pace_s)
            number += 1

    return script


def unused_port() -> int:
    """A port nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
