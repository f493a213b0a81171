"""More than it takes on: a short queue, then a clear 503, and nobody else suffers."""

from __future__ import annotations

import http.client
import json
import threading
import time

import pytest
from tests.support.bench import GUARD, Bench, Serve
from tests.support.client import Answer
from tests.support.streams import stream, token_event
from tests.support.upstream import endless, sse

SMALL = {
    "STREAMGUARD_STREAMS_MAX": "2",
    "STREAMGUARD_QUEUE_MAX": "1",
    "STREAMGUARD_QUEUE_WAIT_S": "0.4",
}


@pytest.fixture
def small(serve: Serve) -> Bench:
    """Two streams at once, one may wait 0.4 s."""
    return serve(*GUARD, "--admin-port", "0", env=SMALL)


def assert_busy(got: Answer) -> None:
    """Our 503, with the time to come back."""
    assert got.status == 503
    assert int(got.head.get("retry-after") or 0) >= 1
    assert set(json.loads(got.body)["error"]) == {"message", "type", "param", "code"}


def test_the_one_too_many_is_told(small: Bench) -> None:
    """Two run, the third waits and is told, the fourth is told at once (E01)."""
    small.upstream.answers(endless(lambda n: token_event("chat", f"{n} ", -0.1), pace_s=0.02))
    running = [small.ask("chat") for _ in range(2)]
    for client in running:
        client.read_events(1)
    third = small.ask("chat")
    third_at = time.monotonic()
    fourth = small.ask("chat")

    assert_busy(fourth.answer())
    assert time.monotonic() - third_at < 0.4
    assert_busy(third.answer())
    assert time.monotonic() - third_at >= 0.35
    assert len(small.upstream.exchanges) == 2
    for client in running:
        before = len(client.payload)
        client.read_events(client.payload.count(b"\n\n") + 1)
        assert len(client.payload) > before
        client.leave("fin")
    outcomes = [record["outcome"] for record in small.records(4)]
    assert sorted(outcomes) == ["client_gone", "client_gone", "overload", "overload"]


def test_a_place_that_becomes_free_is_taken(small: Bench) -> None:
    """Whoever waits gets the place of the one that ends."""
    small.upstream.answers(
        sse(stream("chat", [0.9] * 5), pace_s=0.02),
        endless(lambda n: token_event("chat", f"{n} ", -0.1), pace_s=0.02),
        sse(stream("chat", [0.9] * 3)),
    )
    first, second = small.ask("chat"), None
    first.read_events(1)
    second = small.ask("chat")
    second.read_events(1)
    third = small.ask("chat")

    assert first.answer().status == 200
    got = third.answer()
    assert (got.status, got.ending) == (200, "complete")
    second.leave("fin")


def test_a_client_that_waits_may_leave(small: Bench) -> None:
    """Leaving the queue costs nothing and frees the place in it."""
    small.upstream.answers(endless(lambda n: token_event("chat", f"{n} ", -0.1), pace_s=0.02))
    running = [small.ask("chat") for _ in range(2)]
    for client in running:
        client.read_events(1)
    waiting = small.ask("chat")
    waiting.leave("rst")

    assert small.record()["outcome"] in ("client_gone", "overload")
    for client in running:
        client.leave("fin")
    small.records(3)
    assert len(small.upstream.exchanges) == 2


def test_the_admin_port_answers_under_load(small: Bench) -> None:
    """Health is asked most when it matters most: 50 requests against 2 places."""
    small.upstream.answers(sse(stream("chat", [0.9] * 5), pace_s=0.02))
    clients = [small.client() for _ in range(50)]
    answers: list[Answer] = []

    def run(number: int) -> None:
        client = clients[number]
        client.request("POST", "/v1/chat/completions", b'{"stream": true, "messages": []}')
        answers.append(client.answer())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    slowest = 0.0
    for _ in range(20):
        start = time.monotonic()
        admin = http.client.HTTPConnection("127.0.0.1", small.command.admin_port, timeout=5)
        admin.request("GET", "/livez")
        assert admin.getresponse().status == 200
        admin.close()
        slowest = max(slowest, time.monotonic() - start)
    for thread in threads:
        thread.join(20)

    assert slowest < 1.0
    assert len(answers) == 50
    assert {got.status for got in answers} == {200, 503}
    for got in answers:
        if got.status == 503:
            assert_busy(got)


def test_more_than_a_hundred_at_once_all_run(serve: Serve) -> None:
    """The default limits serve 120 long streams together (E03)."""
    bench = serve(*GUARD)
    bench.upstream.answers(endless(lambda n: token_event("chat", f"{n} ", -0.1), pace_s=0.2))
    clients = [bench.ask("chat") for _ in range(120)]
    for client in clients:
        client.read_events(2)

    for client in clients:
        client.leave("fin")
    outcomes = {record["outcome"] for record in bench.records(120)}
    assert outcomes == {"client_gone"}
