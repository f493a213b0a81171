"""The provider over real sockets: what it sends, what it counts, and when it sees a close."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from typing import Any, Literal

import pytest
from tests.support.client import Answer, Client
from tests.support.command import until
from tests.support.recordings import recording
from tests.support.simulator import Simulator
from tests.support.streams import PATHS, Dialect, payloads, request
from tests.support.wire import chunk

_numbers = itertools.count()
WIDE_MS = 250.0


def named(options: str) -> str:
    """A generated model that no other test has asked for (its books are its own)."""
    return f"generated?{options}&at={next(_numbers) + 1}"


def ask(port: int, model: str, *, dialect: Dialect = "chat", **more: Any) -> Answer:
    """One whole exchange."""
    with Client(port) as client:
        client.request("POST", PATHS[dialect], request(dialect, model=model, **more))
        return client.answer()


def test_a_whole_stream_is_booked_as_ended_by_the_server(simulator: Simulator) -> None:
    """All tokens sent, closed by the server, no close of the client's seen."""
    model = named("length=7&pace_ms=0")
    answer = ask(simulator.port, model)
    line = simulator.closed(model)

    assert (answer.status, answer.ending) == (200, "complete")
    assert answer.head.get("x-request-id") == line["id"]
    assert line == {
        "id": line["id"],
        "model": model,
        "path": "/v1/chat/completions",
        "tokens_sent": 7,
        "tokens_recorded": 7,
        "closed_by": "server",
        "closed_after_ms": None,
    }


@pytest.mark.parametrize("how", ["fin", "rst", "half"])
def test_a_close_is_seen_at_once_between_events(
    simulator: Simulator, how: Literal["fin", "rst", "half"]
) -> None:
    """FIN, RST and a half close end the exchange while the provider sleeps until its next event."""
    model = named("length=100&pace_ms=30000")
    with Client(simulator.port) as client:
        client.request("POST", PATHS["chat"], request("chat", model=model))
        client.read_events(1)  # the role event; the first token is half a minute away
        assert simulator.line(model)["closed_by"] is None
        left_at = time.monotonic()
        if how == "half":
            client.sock.shutdown(1)
        else:
            client.leave(how)
        line = simulator.closed(model, within_s=2.0)
        waited_ms = (time.monotonic() - left_at) * 1000

    assert (line["closed_by"], line["tokens_sent"]) == ("client", 0)
    assert line["closed_after_ms"] >= 0
    assert waited_ms < 1000


def test_the_close_is_timed_from_the_last_event(simulator: Simulator) -> None:
    """A client that leaves 100 ms after the last event is booked with about 100 ms."""
    fault = "fault/timeout?after=3&pace_ms=1"
    with Client(simulator.port) as client:
        client.request("POST", PATHS["chat"], request("chat", model=fault))
        client.read_events(3)
        time.sleep(0.1)
        client.leave("fin")
    line = simulator.closed(fault)

    assert 90 <= line["closed_after_ms"] <= 100 + WIDE_MS
    assert line["tokens_sent"] == 2


def test_a_close_is_seen_while_a_write_blocks(simulator: Simulator) -> None:
    """A client that reads nothing and then resets: tokens that no kernel took aren't counted."""
    model = named("length=400000&pace_ms=0&entries_per_event=400")
    with Client(simulator.port) as client:
        client.request("POST", PATHS["chat"], request("chat", model=model, logprobs=True))
        seen: list[int] = []

        def stalled() -> bool:
            seen.append(simulator.line(model)["tokens_sent"])
            return len(seen) > 3 and seen[-1] == seen[-4] > 0

        until(stalled, "the provider's writes block")
        client.leave("rst")
    line = simulator.closed(model)

    assert line["closed_by"] == "client"
    assert 0 < line["tokens_sent"] < line["tokens_recorded"]


def test_a_connection_serves_further_requests(simulator: Simulator) -> None:
    """Keep-alive, and a request body in chunks."""
    body = request("chat", model="generated?length=1&pace_ms=0")
    with Client(simulator.port) as client:
        client.request("POST", PATHS["chat"], body)
        first = client.answer()
        client.request("POST", PATHS["chat"], fields=["Transfer-Encoding: chunked"])
        client.send(chunk(body[:10]))
        client.send(chunk(body[10:]) + b"0\r\n\r\n")
        second = client.answer()

    assert first.ending == second.ending == "complete"
    assert len(payloads(first.body)) == len(payloads(second.body)) == 4


@pytest.mark.parametrize(("name", "dialect"), [("spoken", "chat"), ("written", "completions")])
def test_a_recording_is_sent_as_it_was_recorded(
    simulator: Simulator, name: str, dialect: Dialect
) -> None:
    """The events byte for byte, and the server's own headers, framing aside."""
    line = recording(name, [0.9, 0.2, 0.8], dialect=dialect)
    asked: dict[str, Any] = {"logprobs": True if dialect == "chat" else 1}
    answer = ask(simulator.port, f"recorded/{name}", dialect=dialect, **asked)

    assert answer.body == "".join(text for _, text in line["events"]).encode()
    assert answer.head.get("server") == "made-up"
    assert answer.head.all("transfer-encoding") == ["chunked"]
    assert simulator.closed(f"recorded/{name}")["tokens_sent"] == 3


def test_a_recording_keeps_its_logprobs_to_itself_unless_asked(simulator: Simulator) -> None:
    """A request without logprobs gets null in their place, as this recording's server writes."""
    answer = ask(simulator.port, "recorded/spoken")

    assert b"top_logprobs" not in answer.body
    assert all(p["choices"][0]["logprobs"] is None for p in payloads(answer.body)[:-1])


@pytest.mark.parametrize(("speed", "least_s", "most_s"), [("1", 0.2, 1.0), ("20", 0.01, 0.19)])
def test_a_recording_keeps_its_pace(
    simulator: Simulator, speed: str, least_s: float, most_s: float
) -> None:
    """Six events, 40 ms each; a speed divides the times."""
    begun = time.monotonic()
    answer = ask(simulator.port, f"recorded/spoken?speed={speed}")
    taken = time.monotonic() - begun

    assert answer.ending == "complete"
    assert least_s <= taken <= most_s


@pytest.mark.parametrize(
    ("model", "dialect"),
    [
        ("recorded/spoken", "chat"),
        ("recorded/written", "completions"),
        ("generated?length=3", "chat"),
        ("generated?length=3", "completions"),
    ],
)
def test_without_stream_there_is_one_json_answer(
    simulator: Simulator, model: str, dialect: Dialect
) -> None:
    """The same tokens and entries as the stream's, in the unary shape."""
    asked: dict[str, Any] = {"logprobs": True if dialect == "chat" else 1}
    whole = json.loads(ask(simulator.port, model, dialect=dialect, stream=False, **asked).body)
    events = payloads(ask(simulator.port, model, dialect=dialect, **asked).body)[:-1]
    (choice,) = whole["choices"]

    assert choice["finish_reason"] == "stop"
    if dialect == "chat":
        deltas = [event["choices"][0] for event in events]
        assert whole["object"] == "chat.completion"
        text = "".join(delta["delta"].get("content") or "" for delta in deltas)
        assert choice["message"] == {"role": "assistant", "content": text}
        assert choice["logprobs"]["content"] == [
            entry for delta in deltas if delta["logprobs"] for entry in delta["logprobs"]["content"]
        ]
    else:
        assert whole["object"] == "text_completion"
        assert choice["text"] == "".join(event["choices"][0]["text"] for event in events)
        assert len(choice["logprobs"]["token_logprobs"]) == 3


def test_a_unary_answer_that_nobody_waits_for_costs_no_tokens(simulator: Simulator) -> None:
    """The client leaves before the answer is due: nothing was sent."""
    model = named("length=100&pace_ms=30000")
    with Client(simulator.port) as client:
        client.request("POST", PATHS["chat"], request("chat", model=model, stream=False))
        until(lambda: any(b["model"] == model for b in simulator.books()), "the request is booked")
        client.leave("fin")
    line = simulator.closed(model)

    assert (line["closed_by"], line["tokens_sent"]) == ("client", 0)
    assert line["closed_after_ms"] is None


def test_models_lists_what_there_is(simulator: Simulator) -> None:
    """Generated, each recording, each fault."""
    with Client(simulator.port) as client:
        client.request("GET", "/v1/models?x=1")
        listed = json.loads(client.answer().body)
    names = {model["id"] for model in listed["data"]}

    assert {"generated", "recorded/spoken", "recorded/written", "fault/reset_peer"} <= names


@pytest.mark.parametrize(
    ("send", "status", "says"),
    [
        (lambda: ("GET", "/v2/none", b""), 404, "nothing here: /v2/none"),
        (lambda: ("POST", PATHS["chat"], b"{"), 400, "the body can't be used"),
        (lambda: ("POST", PATHS["chat"], b'{"model": 1}'), 400, "`$.model`"),
        (lambda: ("POST", PATHS["chat"], request("chat", n=0)), 400, "`$.n`"),
        (
            lambda: ("POST", PATHS["chat"], request("chat", model="recorded/spokn")),
            404,
            "there is no 'recorded/spokn'",
        ),
        (
            lambda: ("POST", PATHS["chat"], request("chat", model="fault/reset_pear")),
            404,
            "did you mean 'fault/reset_peer'?",
        ),
        (
            lambda: ("POST", PATHS["chat"], request("chat", model="generated?lenght=3")),
            404,
            "did you mean 'length'?",
        ),
        (
            lambda: ("POST", PATHS["chat"], request("chat", model="recorded/written")),
            400,
            "recorded on the other path (completions)",
        ),
    ],
)
def test_what_can_not_be_answered_says_why(
    simulator: Simulator, send: Callable[[], tuple[str, str, bytes]], status: int, says: str
) -> None:
    """An OpenAI-shaped error, and the connection stays usable."""
    with Client(simulator.port) as client:
        client.request(*send())
        answer = client.answer()
        client.request("GET", "/v1/models")
        assert client.answer().status == 200

    assert answer.status == status
    assert says in json.loads(answer.body)["error"]["message"]


@pytest.mark.parametrize(
    "junk",
    [b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"A" * 70_000],
)
def test_what_is_no_request_closes_the_connection(simulator: Simulator, junk: bytes) -> None:
    """And the next connection is served."""
    with Client(simulator.port) as client:
        client.send(junk)
        assert client.wait_closed() in ("fin", "rst")

    assert ask(simulator.port, "generated?length=1&pace_ms=0").status == 200
