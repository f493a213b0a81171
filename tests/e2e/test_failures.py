"""The fail-open / fail-closed table of docs/failures.md, cause by cause, on the wire.

`open` (the default) never costs a client its answer; `closed` never lets pass what could not be
judged. Each cell also has its reason in the record.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.support.bench import GUARD, WIDE_S, Bench, Serve
from tests.support.streams import Dialect, event, nulled, payloads, request, stream
from tests.support.upstream import encoded, sse

SMALL_EVENTS = {"STREAMGUARD_EVENT_MAX_BYTES": "20000"}


@pytest.fixture
def closed(serve: Serve) -> Bench:
    """A guard that lets nothing pass unjudged."""
    return serve(*GUARD, "--fail", "closed", env=SMALL_EVENTS)


@pytest.fixture
def opened(serve: Serve) -> Bench:
    """The default, with a small event limit."""
    return serve(*GUARD, env=SMALL_EVENTS)


UNWATCHABLE: dict[str, tuple[Dialect, dict[str, Any], str]] = {
    "echo": ("completions", {"echo": True}, "echo"),
    "switched off": ("chat", {"logprobs": False}, "logprobs_off"),
}


@pytest.mark.parametrize("case", list(UNWATCHABLE))
def test_fail_open_passes_what_cannot_be_watched(guard: Bench, case: str) -> None:
    """`open`: sent as it came, passed as it comes, and said so."""
    dialect, more, reason = UNWATCHABLE[case]
    body = b"".join(stream(dialect, [0.1] * 5))
    guard.upstream.answers(sse([body]))

    got = guard.stream(dialect, **more)

    assert got.body == body
    assert got.head.get("x-streamguard-status") == "opaque"
    assert got.head.get("x-streamguard-reason") == reason
    assert guard.upstream.exchange().request.body == request(dialect, **more)


@pytest.mark.parametrize("case", list(UNWATCHABLE))
def test_fail_closed_refuses_what_cannot_be_watched(closed: Bench, case: str) -> None:
    """`closed`: 422 before the upstream hears of it."""
    dialect, more, _ = UNWATCHABLE[case]

    got = closed.stream(dialect, **more)

    assert got.status == 422
    assert got.head.get("x-should-retry") == "false"
    assert closed.upstream.exchanges == []


def test_compressed_streams_pass_open(guard: Bench) -> None:
    """A stream compressed although identity was asked passes verbatim, counted (B06)."""
    guard.upstream.answers(encoded(stream("chat", [0.1] * 5)))

    got = guard.stream("chat")

    assert got.status == 200
    assert got.head.get("content-encoding") == "gzip"
    assert got.head.get("x-streamguard-reason") == "encoded"
    assert guard.record()["opaque_reason"] == "encoded"


def test_compressed_streams_are_refused_closed(closed: Bench) -> None:
    """`closed`: 502 before the first byte, and the upstream is closed."""
    closed.upstream.answers(encoded(stream("chat", [0.1] * 5)))

    assert closed.stream("chat").status == 502


def test_no_logprobs_although_asked(guard: Bench) -> None:
    """Nothing came: passed to its end, `unscored` in the record, never an abort."""
    body = nulled(b"".join(stream("chat", [0.1] * 8)))
    guard.upstream.answers(sse([body]))

    assert guard.stream("chat").body == body
    record = guard.record()
    assert (record["outcome"], record["status"]) == ("complete", "unscored")


def test_no_logprobs_closed(closed: Bench) -> None:
    """`closed`: an answer without evidence is cut, with the reason."""
    body = nulled(b"".join(stream("chat", [0.1] * 60)))
    closed.upstream.answers(sse([body]))

    finish = payloads(closed.stream("chat").body)[-2]
    assert finish["streamguard"]["reason"] == "no_signal"


# --------------------------------------------------------------------------- events


def with_a_large_one() -> list[bytes]:
    """A sure answer with one event beyond the limit in the middle."""
    events = stream("chat", [0.9] * 8)
    return [*events[:2], event({"filler": "x" * 30_000}), *events[2:]]


def test_an_oversize_event_passes_open(opened: Bench) -> None:
    """`open`: verbatim from there on, the guard is off for this stream, the record says why."""
    events = with_a_large_one()
    opened.upstream.answers(sse(events))

    got = opened.stream("chat", logprobs=True)

    assert (got.body, got.ending) == (b"".join(events), "complete")
    assert opened.record()["opaque_reason"] == "oversize"


def test_an_oversize_event_is_cut_closed(closed: Bench) -> None:
    """`closed`: what came before it, then the tail with the reason; the upstream is closed."""
    events = with_a_large_one()
    closed.upstream.answers(sse(events, pace_s=0.01))

    got = closed.stream("chat", logprobs=True)

    assert got.body.startswith(b"".join(events[:2]))
    assert b"filler" not in got.body
    assert payloads(got.body)[-2]["streamguard"]["reason"] == "oversize"
    closed.upstream.exchange().closed_within(WIDE_S)
    assert closed.record()["outcome"] == "aborted"


BROKEN = b'data: {"choices": [{"index": 0, "logprobs": {"content": [{"logprob": }]}}]}\n\n'


def test_unparsable_events_pass_open(guard: Bench) -> None:
    """`open`: passed and counted; the guard goes on with what it can read."""
    events = stream("completions", [0.1] * 9)
    mixed = [BROKEN, events[0], BROKEN, events[1], BROKEN, *events[2:]]
    guard.upstream.answers(sse(mixed, pace_s=0.01))

    got = guard.stream("completions")

    assert payloads(got.body.replace(BROKEN, b""))[-2]["streamguard"]["position"] == 3
    record = guard.record()
    assert (record["outcome"], record["unparsable"]) == ("aborted", 3)


def test_unparsable_events_are_cut_closed(closed: Bench) -> None:
    """`closed`: the third one ends the stream."""
    events = stream("completions", [0.9] * 9)
    closed.upstream.answers(sse([BROKEN, events[0], BROKEN, BROKEN, *events[1:]], pace_s=0.01))

    finish = payloads(closed.stream("completions").body.replace(BROKEN, b""))[-2]

    assert finish["streamguard"]["reason"] == "unparsable"
    closed.upstream.exchange().closed_within(WIDE_S)


NUMBERS = ["NaN", "-Infinity", "Infinity", "1e999", "-9999.0", "-3.4028234663852886e+38", "null"]
NUMBERS += ['"-0.1"', "true", "0.5"]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_hostile_number_does_not_disarm(guard: Bench, number: str) -> None:
    """NaN and its kind are passed, counted as unscorable, and never averaged (B16)."""
    events = stream("completions", [0.1] * 9)
    hostile = events[0].replace(b"%r" % math.log(0.1), number.encode())
    assert hostile != events[0]
    guard.upstream.answers(sse([hostile, *events], pace_s=0.01))

    got = guard.stream("completions", logprobs=1)

    assert got.body.startswith(hostile)
    choice = guard.record()["choices"][0]
    assert (choice["verdict"], choice["position"]) == ("abort", 4)
    assert (choice["scorable"], choice["unscorable"]) == (3, 1)
    assert choice["mean_logprob"] == pytest.approx(math.log(0.1))


@pytest.mark.parametrize("bomb", [b"9" * 5000, b"[" * 100_000, b'{"a":' * 50_000])
def test_hostile_json_costs_bounded_time(guard: Bench, bomb: bytes) -> None:
    """Long numbers and deep nesting are passed and marked; others are not held up (B18)."""
    events = stream("completions", [0.9] * 4)
    hostile = b'data: {"choices": [{"index": 0, "x": ' + bomb + b"}]}\n\n"
    guard.upstream.answers(sse([events[0], hostile, *events[1:]]))

    got = guard.stream("completions", logprobs=1)

    assert got.body == b"".join([events[0], hostile, *events[1:]])
    record = guard.record()
    assert record["outcome"] == "complete"
    assert record["duration_ms"] < 1000
