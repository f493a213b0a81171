"""I1: an abort closes the upstream at once, and what the client sees ends well."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.bench import GUARD, WIDE_S, Bench, Serve
from tests.support.streams import (
    DONE,
    Dialect,
    finish_event,
    nulled,
    payloads,
    stream,
    token_event,
)
from tests.support.upstream import Exchange, Script, rst, sse

PACE_S = 0.02
DIALECTS: tuple[Dialect, ...] = ("chat", "completions")


def deciding(dialect: Dialect) -> int:
    """How many events the upstream has written once the third token is out."""
    return 4 if dialect == "chat" else 3


def tail_of(body: bytes, prefix: bytes) -> list[Any]:
    """The payloads after a prefix that must be there whole."""
    assert body.startswith(prefix), (body, prefix)
    return payloads(body[len(prefix) :])


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("kind", ["plain", "tls", "::1", "localhost"])
def test_closes_the_upstream_at_once(serve: Serve, dialect: Dialect, kind: str) -> None:
    """At most one further event is written after the deciding one, at 20 ms between events."""
    host = "localhost" if kind == "tls" else "127.0.0.1" if kind == "plain" else kind
    bench = serve(*GUARD, host=host, tls=kind == "tls")
    events = stream(dialect, [0.1] * 40)
    bench.upstream.answers(sse(events, pace_s=PACE_S))

    answer = bench.stream(dialect)

    exchange = bench.upstream.exchange()
    closed = exchange.closed_within(WIDE_S)
    decided_at, _ = exchange.events_written[deciding(dialect) - 1]
    assert deciding(dialect) <= len(exchange.events_written) <= deciding(dialect) + 1
    assert closed.at - decided_at < WIDE_S
    assert answer.ending == "complete"
    assert bench.record()["outcome"] == "aborted"


@pytest.mark.parametrize("tls", [False, True])
def test_a_provider_that_never_reads_is_closed_too(serve: Serve, tls: bool) -> None:
    """The close needs no answer from the peer: one that only writes fails at its next write."""
    bench = serve(*GUARD, host="localhost", tls=tls)
    written: list[int] = []

    def deaf(exchange: Exchange) -> None:
        connection = exchange.connection
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for number, data in enumerate(stream("completions", [0.1] * 40)):
            exchange.ended.wait(PACE_S)  # never set here: a pause that does not look at the socket
            try:
                connection.sock.sendall(data)
            except OSError:
                connection.we_closed = True
                connection.sock.close()
                return
            written.append(number)

    bench.upstream.answers(deaf)
    answer = bench.stream("completions")

    assert bench.upstream.exchange().ended.wait(2)
    assert len(written) <= deciding("completions") + 3
    assert payloads(answer.body)[-1] == "[DONE]"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_finish_ends_the_stream_well(guard: Bench, dialect: Dialect) -> None:
    """Deciding event whole, a finish with our object, `[DONE]`, a clean end on both levels."""
    events = stream(dialect, [0.1] * 9)
    guard.upstream.answers(sse(events, pace_s=PACE_S))

    answer = guard.stream(dialect)

    prefix = nulled(b"".join(events[: deciding(dialect)]))
    finish, done = tail_of(answer.body, prefix)
    assert done == "[DONE]"
    assert finish["choices"][0]["finish_reason"] == "content_filter"
    assert finish["choices"][0]["index"] == 0
    first = payloads(events[0])[0]
    assert {k: finish[k] for k in ("id", "model", "created", "object")} == {
        k: first[k] for k in ("id", "model", "created", "object")
    }
    told = finish["streamguard"]
    assert told["verdict"] == "abort"
    assert told["reason"] == "unsure"
    assert told["signal"] == "mean_prob"
    assert told["score"] == pytest.approx(0.1)
    assert told["threshold"] == 0.5
    assert told["position"] == 3
    record = guard.record()
    assert told["id"] == record["id"]
    assert record["choices"][0]["cut"] is True
    assert record["choices"][0]["position"] == 3
    assert record["tokens_seen"] == 3


@pytest.mark.parametrize("dialect", DIALECTS)
def test_usage_is_estimated_only_for_who_asked(guard: Bench, dialect: Dialect) -> None:
    """A usage chunk, marked as estimated, stands before `[DONE]` if the client wanted usage."""
    guard.upstream.answers(sse(stream(dialect, [0.1] * 9), pace_s=PACE_S))

    answer = guard.stream(dialect, stream_options={"include_usage": True})

    finish, usage, done = payloads(answer.body)[-3:]
    assert finish["streamguard"]["verdict"] == "abort"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert usage["usage"]["streamguard_estimated"] is True
    assert done == "[DONE]"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_error_ends_the_stream_with_one_error(serve: Serve, dialect: Dialect) -> None:
    """`--on-abort error`: one error event, a clean HTTP end, no `[DONE]`."""
    bench = serve(*GUARD, "--on-abort", "error")
    events = stream(dialect, [0.1] * 9)
    bench.upstream.answers(sse(events, pace_s=PACE_S))

    answer = bench.stream(dialect)

    (told,) = tail_of(answer.body, nulled(b"".join(events[: deciding(dialect)])))
    assert told["error"]["code"] == "low_confidence"
    assert answer.ending == "complete"
    assert DONE not in answer.body
    bench.upstream.exchange().closed_within(WIDE_S)
    assert bench.record()["outcome"] == "aborted"


def test_the_connection_to_the_client_is_kept(guard: Bench) -> None:
    """A cut stream ends cleanly: the next request on the same connection is served."""
    guard.upstream.answers(
        sse(stream("chat", [0.1] * 9), pace_s=PACE_S), sse(stream("chat", [0.9] * 4))
    )
    client = guard.ask("chat")
    client.answer()
    client.request("GET", "/v1/models")

    assert client.answer().ending == "complete"
    assert [r["outcome"] for r in guard.records(2)] == ["aborted", "complete"]


def test_nothing_is_cut_when_the_deciding_event_is_the_last(guard: Bench) -> None:
    """The event that decides already carries the finish: verdict `abort`, `cut` false."""
    events = [
        *stream("completions", [0.1] * 2)[:2],
        token_event("completions", "end", -3.0, finish="stop"),
        DONE,
    ]
    guard.upstream.answers(sse(events))

    answer = guard.stream("completions")

    assert answer.body == nulled(b"".join(events))
    choice = guard.record()["choices"][0]
    assert choice["verdict"] == "abort"
    assert choice["cut"] is False


def test_sure_answers_run_to_their_end(guard: Bench) -> None:
    """A commit lets everything pass."""
    events = stream("chat", [0.9] * 12)
    guard.upstream.answers(sse(events))

    answer = guard.stream("chat")

    assert answer.body == nulled(b"".join(events))
    record = guard.record()
    assert record["outcome"] == "complete"
    assert record["choices"][0]["verdict"] == "commit"


def test_observing_never_cuts(serve: Serve) -> None:
    """`--mode observe`: the verdict is recorded, the bytes pass."""
    bench = serve(*GUARD, "--mode", "observe")
    events = stream("chat", [0.1] * 12)
    bench.upstream.answers(sse(events))

    answer = bench.stream("chat")

    assert answer.body == nulled(b"".join(events))
    choice = bench.record()["choices"][0]
    assert choice["verdict"] == "abort"
    assert choice["cut"] is False


def two_choices(low: float, other: float) -> list[bytes]:
    """Two interleaved completions, choice 0 with `low`, choice 1 with `other` logprobs."""
    tokens = [
        token_event("completions", f"{number} ", logprob, index=index)
        for number in range(6)
        for index, logprob in ((0, low), (1, other))
    ]
    ends = [finish_event("completions", index=index) for index in (0, 1)]
    return [*tokens, *ends, DONE]


def test_a_dead_choice_falls_silent_and_the_other_goes_on(guard: Bench) -> None:
    """n = 2: the dead choice gets its finish, the other one is heard to its end."""
    events = two_choices(-3.0, -0.05)
    guard.upstream.answers(sse(events, pace_s=0.005))

    answer = guard.stream("completions", n=2)

    told = payloads(answer.body)
    spoken = [p["choices"][0] for p in told if p != "[DONE]" and p["choices"]]
    dead = [choice for choice in spoken if choice["index"] == 0]
    alive = [choice for choice in spoken if choice["index"] == 1]
    assert [choice["finish_reason"] for choice in dead] == [None] * 3 + ["content_filter"]
    assert [choice["finish_reason"] for choice in alive] == [None] * 6 + ["stop"]
    assert told[-1] == "[DONE]"
    assert guard.upstream.exchange().ended.wait(1)
    until_the_last_finish = events[:-1]
    assert len(guard.upstream.exchange().events_written) >= len(until_the_last_finish)
    verdicts = {c["index"]: c["verdict"] for c in guard.record()["choices"]}
    assert verdicts == {0: "abort", 1: "commit"}


def test_all_choices_dead_cancels(guard: Bench) -> None:
    """n = 2, both unsure: the upstream is closed when the second one dies."""
    guard.upstream.answers(sse(two_choices(-3.0, -3.0), pace_s=PACE_S))

    answer = guard.stream("completions", n=2)

    finished = [
        p["choices"][0]["index"]
        for p in payloads(answer.body)
        if p != "[DONE]" and p["choices"][0]["finish_reason"]
    ]
    assert finished == [0, 1]
    exchange = guard.upstream.exchange()
    exchange.closed_within(WIDE_S)
    assert 6 <= len(exchange.events_written) <= 7
    assert guard.record()["outcome"] == "aborted"


@pytest.mark.parametrize("script", [sse([], after=rst), sse(stream("chat", [0.9]), after=rst)])
def test_a_lost_upstream_is_no_verdict(guard: Bench, script: Script) -> None:
    """What breaks off by itself is never called aborted."""
    guard.upstream.answers(script)
    guard.stream("chat")

    assert guard.record()["outcome"] != "aborted"
