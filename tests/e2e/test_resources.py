"""I7: whatever happened, sockets and memory come back to where they were."""

from __future__ import annotations

import http.client
from collections.abc import Callable

import pytest
from tests.support.bench import GUARD, Bench, Serve
from tests.support.streams import envelope, event, stream, token_event
from tests.support.upstream import Exchange, endless, fin, rst, silence, sse

# Idle upstream connections that the pool may keep, and nothing else.
POOLED = 2


def complete(bench: Bench) -> None:
    """An answer to its end."""
    bench.upstream.answers(sse(stream("chat", [0.9] * 3)))
    bench.stream("chat")


def aborted(bench: Bench) -> None:
    """A cut."""
    bench.upstream.answers(sse(stream("chat", [0.1] * 9), pace_s=0.005))
    bench.stream("chat")


def gone(bench: Bench) -> None:
    """A client that leaves in the middle."""
    bench.upstream.answers(endless(lambda n: token_event("chat", f"{n} ", -0.1), pace_s=0.005))
    client = bench.ask("chat")
    client.read_events(2)
    client.leave("rst")


def gone_early(bench: Bench) -> None:
    """A client that leaves before the head."""
    bench.upstream.answers(silence)
    before = len(bench.upstream.exchanges)
    client = bench.ask("chat")
    bench.upstream.exchange(before)
    client.leave("fin")


def truncated(bench: Bench) -> None:
    """An upstream that breaks off."""
    bench.upstream.answers(sse(stream("chat", [0.9] * 9)[:3], pace_s=0.005, after=fin))
    bench.stream("chat")


def reset_upstream(bench: Bench) -> None:
    """An upstream that resets."""
    bench.upstream.answers(sse([], after=rst))
    bench.stream("chat")


EVERY: list[Callable[[Bench], None]] = [
    complete,
    aborted,
    gone,
    gone_early,
    truncated,
    reset_upstream,
]


def scrape(bench: Bench) -> str:
    """The metrics page."""
    admin = http.client.HTTPConnection("127.0.0.1", bench.command.admin_port, timeout=5)
    try:
        admin.request("GET", "/metrics")
        return admin.getresponse().read().decode()
    finally:
        admin.close()


@pytest.mark.parametrize("tls", [False, True])
def test_sockets_come_back(serve: Serve, tls: bool) -> None:
    """A hundred requests with every kind of end: the number of sockets is what it was."""
    bench = serve(*GUARD, "--admin-port", "0", host="localhost", tls=tls, fresh=True)
    before = bench.command.sockets()
    for count in range(1, 17):
        for case in EVERY:
            case(bench)
        bench.records(count * len(EVERY))

    bench.settled(before + POOLED)
    page = scrape(bench)
    assert "\nstreamguard_inflight 0.0\n" in page
    assert f'streamguard_requests_total{{outcome="complete"}} {16.0}' in page


def test_connects_without_a_word_leave_nothing(guard: Bench) -> None:
    """Three hundred connections that say nothing and go."""
    guard.upstream.answers(sse(stream("chat", [0.9] * 3)))
    guard.stream("chat")
    guard.records(1)
    before = guard.command.sockets()
    for number in range(300):
        guard.client().leave("rst" if number % 2 else "fin")

    guard.settled(before + POOLED)


def rss_mib(bench: Bench) -> float:
    """Resident memory of the command."""
    with open(f"/proc/{bench.command.pid}/status", encoding="ascii") as status:  # noqa: PTH123
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def test_a_slow_reader_costs_no_memory(guard: Bench) -> None:
    """Eight clients that do not read an endless stream: the upstream waits, memory stays (C04)."""
    filler = event(envelope("completions", [], filler="x" * 60_000))
    guard.upstream.answers(endless(lambda _: filler))
    before = rss_mib(guard)
    clients = [guard.ask("completions") for _ in range(8)]
    exchanges = [guard.upstream.exchange(number) for number in range(8)]
    seen, calm = -1, 0
    while calm < 10:  # back-pressure has reached every provider: nothing is written any more
        now = sum(exchange.connection.sent_bytes for exchange in exchanges)
        calm = calm + 1 if now == seen else 0
        seen = now
        exchanges[0].ended.wait(0.03)

    assert rss_mib(guard) - before < 16
    for client in clients:
        client.leave("rst")
    for exchange in exchanges:
        exchange.closed_within(1)


def test_a_large_answer_is_not_collected(guard: Bench) -> None:
    """64 MiB in one go to a client that reads: they pass, memory does not grow by them (A13)."""
    size = 64 * 1024 * 1024
    part = bytes(1024 * 1024)

    def burst(exchange: Exchange) -> None:
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(64):
            exchange.send(part)

    guard.upstream.answers(burst)
    before = rss_mib(guard)
    client = guard.client()
    client.request("GET", "/v1/files/1/content")

    assert len(client.answer().body) == size
    assert rss_mib(guard) - before < 16


def test_many_requests_cost_no_memory(guard: Bench) -> None:
    """Six hundred short streams on one connection: resident memory does not creep (I8)."""
    guard.upstream.answers(sse(stream("chat", [0.9] * 3)))
    client = guard.client()

    def run(count: int) -> None:
        for _ in range(count):
            client.request("POST", "/v1/chat/completions", b'{"stream": true, "messages": []}')
            client.answer()

    run(200)
    before = rss_mib(guard)
    run(600)

    assert rss_mib(guard) - before < 5
