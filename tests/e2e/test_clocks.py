"""The clocks, scaled down. Each ends the request on both sides and is booked by its name."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

import pytest
from tests.support.bench import GUARD, Bench, Serve
from tests.support.client import Answer
from tests.support.streams import DONE, envelope, event, nulled, payloads, stream, token_event
from tests.support.upstream import SSE_HEAD, Exchange, endless, silence, sse

CLOCKS = {
    "STREAMGUARD_CONNECT_S": "0.3",
    "STREAMGUARD_FIRST_BYTE_S": "0.5",
    "STREAMGUARD_IDLE_S": "0.4",
    "STREAMGUARD_LIFETIME_S": "1.5",
    "STREAMGUARD_HEAD_S": "0.5",
    "STREAMGUARD_BODY_S": "0.5",
    "STREAMGUARD_WRITE_S": "0.6",
    "STREAMGUARD_KEEPALIVE_S": "0.6",
}
# How much later than set a clock may be seen to fire, in seconds.
LATE_S = 0.5


@pytest.fixture
def clocks(serve: Serve) -> Bench:
    """A guard with short clocks."""
    return serve(*GUARD, env=CLOCKS)


def timed(call: Callable[[], Answer]) -> tuple[Answer, float]:
    """The answer, and how long it took in seconds."""
    start = time.monotonic()
    got = call()
    return got, time.monotonic() - start


def broken(got: Answer) -> None:
    """One error event at the end, no `[DONE]`, no clean end."""
    assert "error" in payloads(got.body)[-1]
    assert DONE not in got.body
    assert got.ending != "complete"


def test_connect(serve: Serve) -> None:
    """A TLS handshake that never ends: 504, `timeout_connect`."""
    bench = serve(*GUARD, env=CLOCKS, host="localhost", tls=True)
    bench.upstream.on_accept(lambda connection: connection.wait_closed())

    got, took = timed(lambda: bench.stream("chat"))

    assert got.status == 504
    assert set(json.loads(got.body)["error"]) == {"message", "type", "param", "code"}
    assert 0.3 <= took < 0.3 + LATE_S
    assert bench.record()["outcome"] == "timeout_connect"


def _head_then_silence(exchange: Exchange) -> None:
    exchange.send(SSE_HEAD)
    silence(exchange)


def test_first_byte(clocks: Bench) -> None:
    """No head: 504, the upstream is closed (A04)."""
    clocks.upstream.answers(silence)

    got, took = timed(lambda: clocks.stream("chat"))

    assert got.status == 504
    assert 0.5 <= took < 0.5 + LATE_S
    clocks.upstream.exchange().closed_within(LATE_S)
    assert clocks.record()["outcome"] == "timeout_first_byte"


def test_a_head_and_no_event(clocks: Bench) -> None:
    """A head, then silence: the status can still be chosen, so it is 504."""
    clocks.upstream.answers(_head_then_silence)

    got, took = timed(lambda: clocks.stream("chat"))

    assert got.status == 504
    assert 0.4 <= took < 0.4 + LATE_S
    clocks.upstream.exchange().closed_within(LATE_S)
    assert clocks.record()["outcome"] == "timeout_idle"


def test_idle(clocks: Bench) -> None:
    """Silence in the middle: an error event, a broken end, both sides closed (A10)."""
    events = stream("chat", [0.9] * 9)[:3]
    clocks.upstream.answers(sse(events, after=silence))

    got, took = timed(lambda: clocks.stream("chat"))

    assert got.body.startswith(nulled(b"".join(events)))
    broken(got)
    assert 0.4 <= took < 0.4 + LATE_S
    clocks.upstream.exchange().closed_within(LATE_S)
    assert clocks.record()["outcome"] == "timeout_idle"


def test_comments_do_not_count_as_life(clocks: Bench) -> None:
    """Keep-alive comments pass, and do not reset the idle clock."""

    def script(exchange: Exchange) -> None:
        sse(stream("chat", [0.9] * 9)[:3], after=lambda e: None)(exchange)
        while True:
            exchange.event(b": keepalive\n\n")
            exchange.pause(0.05)

    clocks.upstream.answers(script)

    got, took = timed(lambda: clocks.stream("chat"))

    broken(got)
    assert b": keepalive\n\n" in got.body
    assert took < 0.4 + LATE_S
    assert clocks.record()["outcome"] == "timeout_idle"


def test_events_do_reset_the_idle_clock(clocks: Bench) -> None:
    """Slow but alive: an answer that takes longer than the idle clock is whole."""
    events = stream("chat", [0.9] * 3)
    clocks.upstream.answers(sse(events, pace_s=0.2))

    got, took = timed(lambda: clocks.stream("chat"))

    assert (got.body, got.ending) == (nulled(b"".join(events)), "complete")
    assert took > 0.4


def test_lifetime(clocks: Bench) -> None:
    """A stream that never ends is ended, however alive it is."""
    clocks.upstream.answers(endless(lambda n: token_event("chat", f"{n} ", -0.1), pace_s=0.1))

    got, took = timed(lambda: clocks.stream("chat"))

    broken(got)
    assert 1.5 <= took < 1.5 + LATE_S
    clocks.upstream.exchange().closed_within(LATE_S)
    assert clocks.record()["outcome"] == "timeout_lifetime"


def test_a_stalled_write(clocks: Bench) -> None:
    """A client that stops reading is let go after the write clock; so is its upstream (C03)."""
    filler = event(envelope("completions", [], filler="x" * 60_000))
    clocks.upstream.answers(endless(lambda _: filler))
    client = clocks.client()
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    client.request("POST", "/v1/completions", b'{"stream": true, "prompt": "x"}')

    exchange = clocks.upstream.exchange()
    exchange.closed_within(3)

    assert exchange.connection.sent_bytes < 32 * 1024 * 1024
    assert clocks.record()["outcome"] == "timeout_write"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/files"])
def test_passing_requests_have_clocks_too(clocks: Bench, path: str) -> None:
    """A request that passes through does not wait for ever either."""
    clocks.upstream.answers(silence)
    client = clocks.client()
    client.request("GET", path)

    got, took = timed(client.answer)

    assert got.status == 504
    assert took < 0.5 + LATE_S
    assert clocks.record()["outcome"] == "timeout_first_byte"


# --------------------------------------------------------------------------- slow clients


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x"])
def test_a_head_that_never_ends(clocks: Bench, sent: bytes) -> None:
    """A silent connection, or half a head: closed at the head clock (C05)."""
    client = clocks.client()
    clocks.extra += 1
    client.send(sent)
    start = time.monotonic()
    client.wait_closed()

    assert time.monotonic() - start < 0.6 + LATE_S
    assert clocks.upstream.exchanges == []


def test_a_head_byte_by_byte(clocks: Bench) -> None:
    """A drip that never pauses is closed at the head clock all the same."""
    client = clocks.client()
    clocks.extra += 1
    client.sock.settimeout(0.05)
    start = time.monotonic()
    for byte in b"GET /v1/models HTTP/1.1\r\nX-Long: " + b"x" * 200:
        try:
            client.send(bytes([byte]))
            if not client.sock.recv(1):
                break
        except TimeoutError:
            continue
        except OSError:
            break
        break  # an answer: it was refused
    assert time.monotonic() - start < 0.5 + LATE_S
    assert clocks.upstream.exchanges == []


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"]
)
def test_a_body_that_never_ends(clocks: Bench, framing: bytes) -> None:
    """A guarded request whose body stops: answered or closed at the body clock (C05)."""
    client = clocks.client()
    client.requests += 1
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n" + framing)
    start = time.monotonic()
    client.wait_closed()

    assert time.monotonic() - start < 0.5 + LATE_S
    assert clocks.upstream.exchanges == []
    assert clocks.record()["outcome"] == "bad_request"


def test_an_idle_connection_is_closed(clocks: Bench) -> None:
    """After an answer the connection is kept for the keep-alive time, no longer."""
    clocks.upstream.answers(sse(stream("chat", [0.9] * 3)))
    client = clocks.ask("chat")
    client.answer()
    start = time.monotonic()

    client.wait_closed()

    assert 0.3 < time.monotonic() - start < 0.6 + 2 * LATE_S
