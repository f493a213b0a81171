"""The upstream leg without sockets: raw bytes into the protocol, calls of the downstream out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.proxy.pool import Pool
from streamguard.proxy.upstream import (
    HEAD_MAX_BYTES,
    HEAD_MAX_FIELDS,
    Connection,
    Ending,
    ResponseHead,
)


class FakeTransport(asyncio.Transport):
    """Notes what the protocol does to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.calls: list[str] = []
        self.closing = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.calls.append("abort")
        self.closing = True

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class Seen:
    """A downstream that remembers; it may act on the first data it gets."""

    def __init__(self, on_data: Callable[[], None] | None = None) -> None:
        self.heads: list[ResponseHead] = []
        self.pieces: list[bytes] = []
        self.endings: list[Ending] = []
        self.holds: list[str] = []
        self.last = False
        self._on_data = on_data

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def head(self, head: ResponseHead) -> None:
        self.heads.append(head)

    def data(self, data: bytes, *, last: bool) -> None:
        self.last = last
        self.pieces.append(data)
        if self._on_data is not None:
            self._on_data()

    def pause(self) -> None:
        self.holds.append("pause")

    def resume(self) -> None:
        self.holds.append("resume")

    def done(self, ending: Ending) -> None:
        self.endings.append(ending)


class Wire:
    """One connection with an exchange in progress."""

    def __init__(
        self, seen: Seen | None = None, *, bodiless: bool = False, whole: bool = True
    ) -> None:
        self.pool = Pool("h", 80, tls=None)
        self.transport = FakeTransport()
        self.connection = Connection(self.pool)
        self.connection.connection_made(self.transport)
        self.seen = seen or Seen()
        self.exchange(bodiless=bodiless, whole=whole)

    def exchange(self, *, bodiless: bool = False, whole: bool = True) -> None:
        self.connection.exchange(b"request", self.seen, bodiless=bodiless, whole=whole)

    def feed(self, *reads: bytes) -> None:
        """Each as one read of the socket."""
        for read in reads:
            at = 0
            while at < len(read):
                buffer = self.connection.get_buffer(-1)
                part = read[at : at + len(buffer)]
                buffer[: len(part)] = part
                self.connection.buffer_updated(len(part))
                at += len(part)

    def lose(self, error: Exception | None = None) -> None:
        """The connection ends, by FIN or by an error."""
        if error is None:
            self.connection.eof_received()
        self.connection.connection_lost(error)


@pytest.fixture(autouse=True)
def loop() -> Iterator[None]:
    """Idle connections arm a timer, so there must be a loop; it never has to run."""
    fresh = asyncio.new_event_loop()
    asyncio.events._set_running_loop(fresh)
    yield
    asyncio.events._set_running_loop(None)
    fresh.close()


HEAD = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n"
WHOLE = CHUNKED + b"5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"


def test_a_chunked_answer() -> None:
    """Head, the body without its framing, a clean end; the connection is kept."""
    wire = Wire()
    wire.feed(WHOLE)

    (head,) = wire.seen.heads
    assert (head.status, head.reason, head.version) == (200, b"OK", "1.1")
    assert head.headers == ((b"X-A", b"1"), (b"x-a", b"2"), (b"Transfer-Encoding", b"chunked"))
    assert (head.length, head.chunked) == (None, True)
    assert (wire.seen.body, wire.seen.endings) == (b"hello!", ["clean"])
    assert wire.pool.idle == 1
    assert wire.transport.written == b"request"


def test_one_read_is_one_call() -> None:
    """However many chunks a read holds, the downstream hears of it once."""
    wire = Wire()
    wire.feed(WHOLE)
    assert (wire.seen.pieces, wire.seen.last) == ([b"hello!"], True)


def test_the_end_is_announced_only_where_it_follows() -> None:
    """Whoever waits for the end to write must not wait in vain."""
    wire = Wire()
    wire.feed(WHOLE[:-5])
    assert (wire.seen.body, wire.seen.last) == (b"hello!", False)


@given(st.lists(st.integers(1, len(WHOLE) - 1), max_size=12))
def test_reads_do_not_matter(cuts: list[int]) -> None:
    """Cut anywhere: the same head, body and end, and the connection is kept all the same."""
    wire = Wire()
    edges = [0, *sorted(set(cuts)), len(WHOLE)]
    wire.feed(*[WHOLE[a:b] for a, b in pairwise(edges)])

    assert (wire.seen.body, wire.seen.endings) == (b"hello!", ["clean"])
    assert wire.seen.heads[0].reason == b"OK"
    assert wire.pool.idle == 1


@pytest.mark.parametrize(
    ("answer", "body", "kept"),
    [
        (HEAD + b"Content-Length: 5\r\n\r\nhello", b"hello", 1),
        (HEAD + b"Content-Length: 0\r\n\r\n", b"", 1),
        (HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi", b"hi", 0),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi", 0),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", 1),
        (b"HTTP/1.1 304 \r\nContent-Length: 9\r\n\r\n", b"", 1),
        (CHUNKED + b"2\r\nhi\r\n0\r\nX-Trailer: 1\r\n\r\n", b"hi", 0),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + WHOLE,
            b"hello!",
            1,
        ),
    ],
)
def test_clean_ends(answer: bytes, body: bytes, kept: int) -> None:
    """Every framing that says where the body ends; kept only where nothing is in doubt."""
    wire = Wire()
    wire.feed(answer)

    assert (wire.seen.body, wire.seen.endings) == (body, ["clean"])
    assert [head.status for head in wire.seen.heads] in ([200], [204], [304])
    assert wire.pool.idle == kept
    assert wire.transport.closing is not bool(kept)


@pytest.mark.parametrize(
    "surplus", [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"garbage", b"\r\n", b"\x00"]
)
def test_surplus_is_dropped_and_never_pooled(surplus: bytes) -> None:
    """Bytes behind the end would be the next client's answer."""
    wire = Wire()
    wire.feed(WHOLE + surplus)

    assert (wire.seen.body, wire.seen.endings) == (b"hello!", ["clean"])
    assert len(wire.seen.heads) == 1
    assert wire.pool.idle == 0
    assert wire.transport.closing


def test_an_idle_connection_that_speaks_is_closed() -> None:
    """Nobody asked; whatever it says, it is not the answer to the next request."""
    wire = Wire()
    wire.feed(WHOLE, b"HTTP/1.1 200 OK\r\n\r\n")

    assert wire.pool.idle == 0
    assert wire.transport.closing
    assert wire.seen.endings == ["clean"]


def test_an_unfinished_request_is_never_pooled() -> None:
    """The answer came before the request was whole: what follows it would be read as a new one."""
    wire = Wire(whole=False)
    wire.feed(WHOLE)
    assert (wire.seen.endings, wire.pool.idle) == (["clean"], 0)

    wire = Wire(whole=False)
    wire.connection.request_sent()
    wire.feed(WHOLE)
    assert wire.pool.idle == 1


def test_a_head_answer_has_no_body() -> None:
    """HEAD: the declared length is of a body that never comes."""
    wire = Wire(bodiless=True)
    wire.feed(HEAD + b"Content-Length: 999\r\n\r\n")

    assert (wire.seen.heads[0].length, wire.seen.body) == (999, b"")
    assert wire.seen.endings == ["clean"]


def test_a_body_until_the_close() -> None:
    """Neither length nor chunks: FIN is a clean end, a reset is not."""
    for error, ending in ((None, "clean"), (ConnectionResetError(), "truncated")):
        wire = Wire()
        wire.feed(HEAD + b"\r\nhello")
        wire.lose(error)
        assert (wire.seen.body, wire.seen.endings) == (b"hello", [ending])


def test_a_lost_connection_without_fin_is_no_end() -> None:
    """Only an end of file that was seen ends such a body."""
    wire = Wire()
    wire.feed(HEAD + b"\r\nhello")
    wire.connection.connection_lost(None)
    assert wire.seen.endings == ["truncated"]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        CHUNKED,
        CHUNKED + b"5\r\nhel",
        HEAD + b"Content-Length: 9\r\n\r\nhello",
    ],
)
@pytest.mark.parametrize("error", [None, ConnectionResetError()])
def test_a_break_is_never_clean(answer: bytes, error: Exception | None) -> None:
    """FIN and RST before the framing says so."""
    wire = Wire()
    wire.feed(answer)
    wire.lose(error)
    assert wire.seen.endings == ["truncated"]


FIELDS_BIG = b"".join(b"X-%d: %b\r\n" % (n, b"a" * 60_000) for n in range(2))


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: identity\r\n\r\nbody",
        HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        HEAD + b"Content-Length : 5\r\n\r\nhello",
        HEAD + b"X: 1\n\r\n",
        HEAD + b"X: 1\r\n folded\r\n\r\n",
        b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nraw",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"not http at all\r\n\r\n",
        HEAD + b"X: y\r\n" * (HEAD_MAX_FIELDS + 1) + b"\r\n",
        HEAD + FIELDS_BIG + b"\r\n",
        HEAD + b"X: " + b"a" * (HEAD_MAX_BYTES + 1),
        b"HTTP/1.1 103 Early\r\nLink: aaaaaaaaaaaaaaaa\r\n\r\n" * 2000,
    ],
)
def test_what_two_readers_could_read_differently(answer: bytes) -> None:
    """Refused before anything of it is handed on, and the connection is closed."""
    wire = Wire()
    wire.feed(answer)

    assert wire.seen.heads == []
    assert wire.seen.endings == ["malformed"]
    assert wire.transport.closing


@pytest.mark.parametrize("bad", [b"zz\r\n", b"-1\r\n", b"5 \r\nhello\r\n", b"5\r\nhelloX"])
def test_a_bad_chunk_keeps_what_came_before(bad: bytes) -> None:
    """In one read or in two, the same bytes are handed on (I14)."""
    for reads in ([CHUNKED + b"2\r\nhi\r\n" + bad], [CHUNKED + b"2\r\nhi\r\n", bad]):
        wire = Wire()
        wire.feed(*reads)
        assert wire.seen.body.startswith(b"hi")
        assert wire.seen.endings == ["malformed"]
        assert wire.transport.closing


def test_nothing_follows_an_abort() -> None:
    """The downstream aborts on what it sees: no end, no further data, closed at once."""
    wire = Wire(Seen(on_data=lambda: wire.connection.abort()))
    wire.feed(CHUNKED + b"5\r\nhello\r\n", b"1\r\n!\r\n0\r\n\r\n")
    wire.lose()

    assert (wire.seen.body, wire.seen.endings) == (b"hello", [])
    assert wire.transport.calls[0] == "abort"
    assert wire.pool.idle == 0


def test_a_lost_connection_leaves_the_pool() -> None:
    """A connection that closes while it waits is never handed out."""
    wire = Wire()
    wire.feed(WHOLE)
    wire.transport.closing = True
    wire.lose()
    assert wire.pool.idle == 0


def test_a_second_exchange_starts_afresh() -> None:
    """Nothing of the first answer shows in the second."""
    wire = Wire()
    wire.feed(WHOLE)
    connection = wire.pool._idle.pop()
    connection.unpark()
    wire.seen = Seen()
    wire.exchange()
    wire.feed(HEAD + b"Content-Length: 2\r\n\r\nhi")

    assert (wire.seen.body, wire.seen.endings) == (b"hi", ["clean"])
    assert len(wire.seen.heads[0].headers) == 3


def test_the_request_side_is_paused() -> None:
    """The upstream does not take the request body: the downstream hears of it."""
    wire = Wire(whole=False)
    wire.connection.pause_writing()
    wire.connection.resume_writing()
    assert wire.seen.holds == ["pause", "resume"]


def test_the_response_side_is_paused() -> None:
    """Back-pressure reaches the socket."""
    wire = Wire()
    wire.connection.pause_reading()
    wire.connection.resume_reading()
    assert wire.transport.calls == ["pause", "resume"]
