"""I2: a client that leaves closes the upstream, in every phase, by FIN as by RST."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Literal

import pytest
from tests.support.bench import GUARD, WIDE_S, Bench, Serve
from tests.support.client import Client
from tests.support.streams import envelope, event, stream, token_event
from tests.support.upstream import SSE_HEAD, Exchange, endless, silence, sse

How = Literal["fin", "rst"]
both = pytest.mark.parametrize("how", ["fin", "rst"])


def gone(bench: Bench, client: Client, how: How) -> None:
    """Leave, and check that the upstream is closed and the record says why."""
    exchange = bench.upstream.exchange()
    client.leave(how)
    exchange.closed_within(WIDE_S)
    assert bench.record()["outcome"] == "client_gone"


@both
@pytest.mark.parametrize("tls", [False, True])
def test_while_waiting_for_the_head(serve: Serve, how: How, tls: bool) -> None:
    """The upstream has the request and says nothing yet."""
    bench = serve(*GUARD, host="localhost", tls=tls)
    bench.upstream.answers(silence)
    client = bench.ask("chat")
    gone(bench, client, how)


@both
def test_while_connecting(serve: Serve, how: How) -> None:
    """The upstream accepts and never finishes the TLS handshake."""
    bench = serve(*GUARD, host="localhost", tls=True)
    bench.upstream.on_accept(lambda connection: connection.wait_closed())
    client = bench.client()
    client.request("POST", "/v1/chat/completions", b'{"stream": true, "messages": []}')
    connection = bench.upstream.connection()

    client.leave(how)

    connection.closed_within(WIDE_S)
    assert bench.record()["outcome"] == "client_gone"


@both
def test_before_the_first_event(guard: Bench, how: How) -> None:
    """The head came, no event followed."""

    def script(exchange: Exchange) -> None:
        exchange.send(SSE_HEAD)
        exchange.connection.wait_closed()

    guard.upstream.answers(script)
    client = guard.ask("chat")
    gone(guard, client, how)


@both
@pytest.mark.parametrize("tls", [False, True])
def test_while_streaming(serve: Serve, how: How, tls: bool) -> None:
    """Events flow at 20 ms; at most one more is written after the client has left."""
    bench = serve(*GUARD, host="localhost", tls=tls)
    bench.upstream.answers(sse(stream("chat", [0.9] * 500), pace_s=0.02))
    client = bench.ask("chat")
    client.read_events(5)
    exchange = bench.upstream.exchange()
    written = len(exchange.events_written)
    client.leave(how)
    exchange.closed_within(WIDE_S)
    assert len(exchange.events_written) <= written + 2
    assert bench.record()["outcome"] == "client_gone"


@both
def test_between_events(guard: Bench, how: How) -> None:
    """The upstream has fallen silent in the middle: nothing is written that could fail."""
    guard.upstream.answers(sse(stream("chat", [0.9] * 5)[:4], after=silence))
    client = guard.ask("chat")
    client.read_events(4)
    gone(guard, client, how)


@both
def test_while_a_write_is_blocked(guard: Bench, how: How) -> None:
    """The client does not read, the upstream is paused, the client leaves: both sides close."""
    filler = event(envelope("completions", [], filler="x" * 60_000))
    guard.upstream.answers(endless(lambda _: filler))
    client = guard.ask("completions")
    client.head()
    exchange = guard.upstream.exchange()
    _until_stalled(exchange)
    gone(guard, client, how)


def _until_stalled(exchange: Exchange) -> None:
    """Wait until back-pressure has reached the upstream: nothing written for a while."""
    seen, calm = -1, 0
    while calm < 10:
        now = exchange.connection.sent_bytes
        calm = calm + 1 if now == seen else 0
        seen = now
        exchange.ended.wait(0.03)
    assert seen < 32 * 1024 * 1024, "the upstream was never paused"


@both
def test_on_a_request_that_passes_through(guard: Bench, how: How) -> None:
    """Requests that are not guarded close their upstream as well."""
    guard.upstream.answers(silence)
    client = guard.client()
    client.request("GET", "/v1/models")
    gone(guard, client, how)


@both
def test_while_a_passing_answer_streams(guard: Bench, how: How) -> None:
    """An answer that is passed on is dropped when its reader leaves."""
    guard.upstream.answers(endless(lambda n: token_event("chat", f"{n} ", -0.1), pace_s=0.02))
    client = guard.client()
    client.request("GET", "/v1/files/1/content")
    client.read_events(2)
    gone(guard, client, how)


def test_a_half_closed_client_counts_as_gone(guard: Bench) -> None:
    """A client that closes its sending side gets no answer: pinned, because some scripts do it."""
    guard.upstream.answers(silence)
    client = guard.ask("chat")
    exchange = guard.upstream.exchange()
    client.sock.shutdown(socket.SHUT_WR)

    exchange.closed_within(WIDE_S)
    assert guard.record()["outcome"] == "client_gone"


def test_a_client_that_pipelines_after_leaving_costs_nothing(guard: Bench) -> None:
    """A client that is gone before its request was read causes at most one upstream request."""
    guard.upstream.answers(sse(stream("chat", [0.9] * 200), pace_s=0.02))
    client = guard.ask("chat")
    client.leave("fin")

    assert guard.record()["outcome"] == "client_gone"
    assert len(guard.upstream.exchanges) <= 1


def test_a_client_that_left_bytes_behind_its_request_is_heard(guard: Bench) -> None:
    """Pipelined requests wait where they can't stop us from reading: the leaving is seen (I2)."""
    guard.uncounted = True
    guard.upstream.answers(sse(stream("chat", [0.9] * 3)[:3], after=silence))
    client = guard.ask("chat")
    client.send(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500)
    exchange = guard.upstream.exchange()
    client.sock.close()
    exchange.closed_within(2.0)
    assert guard.records(1)[0]["outcome"] == "client_gone"


def test_a_client_that_floods_behind_its_request_is_let_go(guard: Bench) -> None:
    """What it may send ahead is bounded; beyond it the connection and the upstream end."""
    guard.uncounted = True
    guard.upstream.answers(sse(stream("chat", [0.9] * 3)[:3], after=silence))
    client = guard.ask("chat")
    exchange = guard.upstream.exchange()
    with suppress(OSError):
        client.send(b"x" * 3_000_000)
    exchange.closed_within(2.0)
    assert guard.records(1)[0]["outcome"] == "client_gone"
