"""The reply's framing: what is whole looks whole, what is not does not."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.http import HttpVersion10, HttpVersion11

from streamguard.serving.answers import ANSWERS, Code
from streamguard.serving.reply import Reply


class Wire:
    """As much of a request and its transport as a reply touches."""

    def __init__(self, *, version: Any = HttpVersion11, method: str = "GET") -> None:
        self.version = version
        self.method = method
        self.keep_alive = version == HttpVersion11
        self.output_size = 0
        self.sent = b""
        self.closed = False
        self.transport = self.writer = self

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str) -> None:
        return None

    @property
    def body(self) -> bytes:
        return self.sent.partition(b"\r\n\r\n")[2]


def reply_on(wire: Wire, *, draining: bool = False) -> Reply:
    """A reply that writes to the wire."""
    request: Any = wire
    return Reply(request, draining=lambda: draining)


def test_chunks() -> None:
    """No declared length: chunks, the last one in the same write as the end."""
    wire = Wire()
    reply = reply_on(wire)
    reply.begin(200, b"OK", [(b"X-A", b"1")])
    assert wire.sent == b""
    reply.write(b"hello")
    assert wire.sent == (
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"
    )
    reply.finish(clean=True, data=b"!")
    assert wire.body.endswith(b"1\r\n!\r\n0\r\n\r\n")
    assert (reply.keep_alive, wire.closed) == (True, False)
    assert wire.output_size == reply.body_length == len(wire.sent)


def test_an_empty_write_is_no_last_chunk() -> None:
    """A chunk of size nothing would end the body."""
    wire = Wire()
    reply = reply_on(wire)
    reply.begin(200, b"OK", [])
    reply.flush()
    reply.write(b"")
    assert wire.body == b""


@pytest.mark.parametrize("clean", [True, False])
def test_what_waits_goes_out_with_the_end(clean: bool) -> None:
    """Bytes that are held for the end are not lost, whatever the end is."""
    wire = Wire()
    reply = reply_on(wire)
    reply.begin(200, b"OK", [])
    reply.write(b"hello", more=True)
    assert wire.sent == b""
    reply.finish(clean=clean)
    assert wire.body == b"5\r\nhello\r\n" + b"0\r\n\r\n" * clean


def test_a_break_has_no_last_chunk() -> None:
    """What was written goes out, the end does not, the connection closes."""
    wire = Wire()
    reply = reply_on(wire)
    reply.begin(200, b"OK", [])
    reply.finish(clean=False, data=b"x")
    assert wire.body == b"1\r\nx\r\n"
    assert (reply.keep_alive, wire.closed) == (False, True)


@pytest.mark.parametrize(("sent", "clean"), [(b"hello", True), (b"hell", False)])
def test_a_declared_length_is_kept(sent: bytes, clean: bool) -> None:
    """Fewer bytes than declared are a break, whatever the caller believes."""
    wire = Wire()
    reply = reply_on(wire)
    reply.begin(200, b"OK", [(b"content-length", b"5")], length=5)
    reply.write(sent)
    reply.finish(clean=True)
    assert (reply.keep_alive, wire.closed) == (clean, not clean)
    assert wire.body == sent


def test_nothing_is_written_past_a_declared_length() -> None:
    """What came after it would be read as another response."""
    wire = Wire()
    reply = reply_on(wire)
    reply.begin(200, b"OK", [], length=5)
    reply.write(b"hello world")
    reply.finish(clean=True)
    assert wire.body == b""
    assert wire.closed


def test_an_old_client_gets_no_chunks() -> None:
    """HTTP/1.0: the close is the end."""
    wire = Wire(version=HttpVersion10)
    reply = reply_on(wire)
    reply.begin(200, b"OK", [])
    reply.finish(clean=True, data=b"hello")
    assert wire.sent == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello"
    assert not reply.keep_alive


def test_draining_ends_connections() -> None:
    """The client is told, and the connection is not kept."""
    wire = Wire()
    reply = reply_on(wire, draining=True)
    reply.answer(200, b"{}")
    assert b"\r\nconnection: close\r\n" in wire.sent
    assert not reply.keep_alive


def test_after_the_end_nothing_is_written() -> None:
    """Neither bytes nor a second end."""
    wire = Wire()
    reply = reply_on(wire)
    reply.answer(200, b"{}")
    before = wire.sent
    reply.write(b"x")
    reply.finish(clean=False)
    assert (wire.sent, wire.closed) == (before, False)


def test_a_client_that_has_gone_swallows_everything() -> None:
    """uvloop raises on writes to a closed transport."""
    wire = Wire()
    wire.closed = True
    reply = reply_on(wire)
    reply.begin(200, b"OK", [])
    reply.write(b"x")
    reply.finish(clean=True)
    assert wire.sent == b""


@pytest.mark.parametrize("code", list(ANSWERS))
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_error_answers(code: Code, method: str) -> None:
    """Fixed texts, a length, and no retry of what cannot get better by itself."""
    wire = Wire(method=method)
    reply_on(wire).error(code)
    head, _, body = wire.sent.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % ANSWERS[code].status)
    assert (b"\r\nx-should-retry: false" in head) is not ANSWERS[code].retry
    assert (body == b"") is (method == "HEAD")
    assert b"content-length: 0" not in head
    assert (ANSWERS[code].status >= 500) or not ANSWERS[code].retry
