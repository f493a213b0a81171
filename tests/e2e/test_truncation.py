"""I4 and I5: an upstream that breaks off never looks finished, and is booked once, rightly."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tests.support.bench import GUARD, Bench, Serve
from tests.support.client import Answer
from tests.support.streams import DONE, Dialect, event, finish_event, nulled, payloads, stream
from tests.support.upstream import (
    SSE_HEAD,
    Exchange,
    Script,
    answer,
    fin,
    half_close,
    mid_chunk_then,
    pieces,
    raw,
    rst,
    sse,
    unused_port,
)

After = Callable[[Exchange], None]
ENDS: dict[str, After] = {
    "fin": fin,
    "rst": rst,
    "half close": half_close,
    "mid chunk, fin": mid_chunk_then(fin),
    "mid chunk, rst": mid_chunk_then(rst),
}


def broken_off(answer: Answer, prefix: bytes) -> None:
    """The prefix whole, then one error event, then no clean end."""
    assert answer.body.startswith(prefix)
    rest = payloads(answer.body[len(prefix) :])
    assert [list(told) for told in rest] == [["error"]], rest
    assert answer.ending != "complete", "the last chunk was sent"
    assert DONE not in answer.body
    assert b'"streamguard"' not in answer.body


@pytest.mark.parametrize("dialect", ["chat", "completions"])
@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("how", list(ENDS))
def test_breaking_off_stays_visible(guard: Bench, dialect: Dialect, count: int, how: str) -> None:
    """FIN or RST after k events, or in the middle of a chunk: the k events, an error, no end."""
    events = stream(dialect, [0.9] * 20)[:count]
    # A pause first: a reset may overtake bytes that nobody has read yet.
    guard.upstream.answers(sse(events, pace_s=0.01, after=ENDS[how]))

    got = guard.stream(dialect)

    if count:
        broken_off(got, nulled(b"".join(events)))
    else:
        assert DONE not in got.body
        assert got.status == 502 or got.ending != "complete"
    record = guard.record()
    assert record["outcome"] == "upstream_truncated"
    assert len(guard.upstream.exchanges) == 1


def test_after_the_finish_a_break_is_complete(guard: Bench) -> None:
    """Every choice has finished: a missing `[DONE]` is a habit of some servers, not a break."""
    events = stream("chat", [0.9] * 4, done=False)
    guard.upstream.answers(sse(events))

    got = guard.stream("chat")

    assert (got.body, got.ending) == (nulled(b"".join(events)), "complete")
    assert guard.record()["outcome"] == "complete"


def test_a_clean_frame_does_not_make_it_whole(guard: Bench) -> None:
    """The last chunk comes, but neither a finish nor `[DONE]`: truncated all the same."""
    events = stream("chat", [0.9] * 9)[:5]
    guard.upstream.answers(sse(events))

    broken_off(guard.stream("chat"), nulled(b"".join(events)))
    assert guard.record()["outcome"] == "upstream_truncated"


def test_one_unfinished_choice_is_enough(guard: Bench) -> None:
    """n = 2 and only one of them finished: truncated."""
    one = stream("completions", [0.9] * 2, index=0, done=False)
    other = stream("completions", [0.9] * 2, index=1)[:2]
    guard.upstream.answers(sse(one + other))

    guard.stream("completions", n=2)

    assert guard.record()["outcome"] == "upstream_truncated"


def test_comments_only_then_the_end(guard: Bench) -> None:
    """A busy router sends comments and gives up: no answer is invented."""
    guard.upstream.answers(sse([b": OPENROUTER PROCESSING\n\n"] * 3, pace_s=0.01))

    got = guard.stream("chat")

    assert DONE not in got.body
    assert guard.record()["outcome"] == "upstream_truncated"


def test_a_done_without_a_finish_is_complete(guard: Bench) -> None:
    """Some servers end on `[DONE]` alone."""
    events = [*stream("chat", [0.9] * 4)[:4], DONE]
    guard.upstream.answers(sse(events))

    assert guard.stream("chat").body == nulled(b"".join(events))
    assert guard.record()["outcome"] == "complete"


def test_an_event_cut_at_the_end_is_not_half_sent(guard: Bench) -> None:
    """Half an event at the break: it never reaches the client as if it were one."""
    events = stream("chat", [0.9] * 9)[:4]
    half = stream("chat", [0.9] * 9)[4][:40]
    guard.upstream.answers(sse([*events, half], pace_s=0.01, after=fin))

    broken_off(guard.stream("chat"), nulled(b"".join(events)))


def test_a_missing_last_blank_line_is_tolerated(guard: Bench) -> None:
    """The stream ends after its last data line: that line counts (many servers)."""
    body = b"".join(stream("chat", [0.9] * 4)).removesuffix(b"\n\n") + b"\n"
    guard.upstream.answers(pieces([body]))

    assert guard.stream("chat").body == nulled(body)
    assert guard.record()["outcome"] == "complete"


@pytest.mark.parametrize("position", [0, 3])
def test_an_error_in_the_stream_is_passed(guard: Bench, position: int) -> None:
    """An error object after HTTP 200 goes to the client as it came, and is booked as such."""
    error = event({"error": {"message": "overloaded", "type": "server_error", "code": 500}})
    events = [*stream("chat", [0.9] * 9)[:position], error, DONE]
    guard.upstream.answers(sse(events))

    got = guard.stream("chat")

    assert got.body == nulled(b"".join(events))
    assert guard.record()["outcome"] == "upstream_error"


# --------------------------------------------------------------------------- before a head


def assert_bad_gateway(got: Answer, *, status: int = 502) -> None:
    """Our own error: OpenAI-shaped, and without a word of the upstream's address."""
    assert got.status == status
    error = json.loads(got.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert b"127.0.0.1" not in got.body


def test_connection_refused(serve: Serve) -> None:
    """Nobody listens: 502 at once, one attempt, `upstream_refused` (A01)."""
    bench = serve("--upstream", f"http://127.0.0.1:{unused_port()}/v1", *GUARD)
    got = bench.stream("chat")

    assert_bad_gateway(got)
    assert bench.record()["outcome"] == "upstream_refused"


def test_a_name_that_does_not_exist(serve: Serve) -> None:
    """No such host: a gateway error within the connect clock, without the name in it (A02)."""
    bench = serve("--upstream", "http://streamguard.invalid:9/v1", *GUARD)
    got = bench.stream("chat")

    assert got.status in (502, 504)
    assert b"invalid:" not in got.body
    assert b"streamguard.invalid" not in got.body
    assert bench.record()["outcome"] in ("upstream_refused", "timeout_connect")


@pytest.mark.parametrize(("certified", "trusted"), [("other.example", True), ("localhost", False)])
def test_a_certificate_that_is_not_valid(serve: Serve, certified: str, trusted: bool) -> None:
    """Another name, or an unknown signer: 502, and no byte of the request is sent (A15)."""
    bench = serve(*GUARD, host="localhost", tls=True, certified=certified, trusted=trusted)
    got = bench.stream("chat", "Authorization: Bearer sk-canary")

    assert_bad_gateway(got)
    assert bench.record()["outcome"] == "upstream_refused"
    assert bench.upstream.accepted >= 1
    assert bench.upstream.exchanges == []


def test_reset_on_accept(guard: Bench) -> None:
    """The upstream resets what it accepts: 502, and no second attempt (A05)."""
    guard.upstream.drop_idle()
    guard.upstream.on_accept(lambda connection: connection.rst())

    got = guard.stream("chat")

    assert_bad_gateway(got)
    assert guard.record()["outcome"] in ("upstream_refused", "upstream_truncated")
    assert guard.upstream.accepted == 1


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Ty"])
def test_gone_before_the_head(guard: Bench, head: bytes) -> None:
    """FIN with no head, or half of one: 502, booked as truncated (A06)."""
    guard.upstream.answers(raw(head))

    got = guard.stream("chat")

    assert_bad_gateway(got)
    assert guard.record()["outcome"] == "upstream_truncated"
    assert len(guard.upstream.exchanges) == 1


LIES = {
    "coding that is not chunked": b"Transfer-Encoding: xchunked\r\n\r\n",
    "coding after chunked": b"Transfer-Encoding: chunked, identity\r\n\r\n",
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "length and coding": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    "negative length": b"Content-Length: -1\r\n\r\n",
    "bare line feed": b"X: 1\nContent-Length: 0\r\n\r\n",
    "folded field": b"X: 1\r\n 2\r\nContent-Length: 0\r\n\r\n",
    "space before colon": b"Content-Length : 5\r\n\r\nhello",
    "switching protocols": b"",
}


@pytest.mark.parametrize("lie", list(LIES))
def test_lies_about_framing_are_refused(guard: Bench, lie: str) -> None:
    """What two readers could read differently is not passed on at all."""
    status = b"101 Switching Protocols" if lie == "switching protocols" else b"200 OK"
    head = b"HTTP/1.1 " + status + b"\r\nContent-Type: text/event-stream\r\n"
    guard.upstream.answers(raw(head + (LIES[lie] or b"Upgrade: x\r\n\r\n")))

    got = guard.stream("chat")

    assert_bad_gateway(got)
    assert guard.record()["outcome"] == "upstream_truncated"


@pytest.mark.parametrize(
    "garbage", [b"5 \r\nhello\r\n0\r\n\r\n", b"-1\r\n\r\n", b"fffffffffffffffff\r\n", b"zz\r\n"]
)
def test_broken_chunks_end_the_stream(guard: Bench, garbage: bytes) -> None:
    """A bad chunk in the middle: nothing of it is passed, the end is visibly broken."""
    events = stream("chat", [0.9] * 9)[:3]

    def garbled(exchange: Exchange) -> None:
        exchange.send(garbage)
        exchange.connection.wait_closed()

    guard.upstream.answers(sse(events, pace_s=0.01, after=garbled))

    broken_off(guard.stream("chat"), nulled(b"".join(events)))


def test_informational_heads_are_skipped(guard: Bench) -> None:
    """100 and 103 before the final head change nothing (B25)."""
    events = stream("chat", [0.9] * 3)
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    guard.upstream.answers(sse(events, head=early + SSE_HEAD))

    assert guard.stream("chat").body == nulled(b"".join(events))


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (answer("200 OK", b"{}"), "complete"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"), "upstream_truncated"),
        (
            raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf"),
            "upstream_truncated",
        ),
        (raw(b""), "upstream_truncated"),
    ],
)
def test_passing_answers_are_booked_too(guard: Bench, script: Script, outcome: str) -> None:
    """I4 and I5 hold for requests that are not guarded."""
    guard.upstream.answers(script)
    client = guard.client()
    client.request("GET", "/v1/models")

    got = client.answer()

    assert (got.ending == "complete") == (outcome == "complete" or got.status == 502)
    assert guard.record()["outcome"] == outcome


def test_finish_in_the_last_event_without_done(guard: Bench) -> None:
    """A finish for every choice, then a reset: the answer was whole, the framing was not."""
    events = [*stream("completions", [0.9] * 2, done=False)[:2], finish_event("completions")]
    guard.upstream.answers(sse(events, pace_s=0.01, after=rst))

    got = guard.stream("completions")

    assert DONE not in got.body
    assert got.body.startswith(nulled(b"".join(events)))
