"""Generated answers: the shapes, the numbers in them, and that they are made to order."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.support.streams import Dialect, payloads, request

from streamguard.sim.generate import generate
from streamguard.sim.script import Generated
from streamguard.sim.stream import Event, read_ask

LOGPROBS: dict[Dialect, dict[str, Any]] = {
    "chat": {"logprobs": True, "top_logprobs": 3},
    "completions": {"logprobs": 3},
}


def made(spec: Generated, dialect: Dialect = "chat", **more: Any) -> list[Event]:
    """The events of an answer."""
    ask = read_ask(dialect, request(dialect, **more))
    return list(generate(spec, ask, stream_id="x").events)


def objects(events: list[Event]) -> list[Any]:
    """Their payloads."""
    return payloads(b"".join(event.data for event in events))


def test_a_chat_stream() -> None:
    """Role, tokens with their entries, finish, end mark."""
    spec = Generated(length=2, course="list", probabilities=(0.5, 0.25))
    role, one, two, finish, end = objects(made(spec, **LOGPROBS["chat"]))

    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert (role["object"], role["id"]) == ("chat.completion.chunk", "chatcmpl-x")
    for chunk, probability in ((one, 0.5), (two, 0.25)):
        (entry,) = chunk["choices"][0]["logprobs"]["content"]
        assert entry["token"] == chunk["choices"][0]["delta"]["content"]
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert math.exp(entry["logprob"]) == pytest.approx(probability)
        listed = [other["logprob"] for other in entry["top_logprobs"]]
        assert len(listed) == 3
        assert listed == sorted(listed, reverse=True)
        assert sum(map(math.exp, listed)) <= 1.0
    assert finish["choices"] == [
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    ]
    assert end == "[DONE]"


def test_a_completions_stream() -> None:
    """Parallel arrays, and offsets that are where the text is."""
    events = objects(made(Generated(length=3), "completions", **LOGPROBS["completions"]))
    text = ""
    for chunk in events[:-2]:
        (choice,) = chunk["choices"]
        found = choice["logprobs"]
        assert found["tokens"] == [choice["text"]]
        assert found["text_offset"] == [len(text)]
        assert found["top_logprobs"][0][choice["text"]] == found["token_logprobs"][0]
        text += choice["text"]
    assert events[-2]["choices"][0] == {
        "index": 0,
        "text": "",
        "logprobs": None,
        "finish_reason": "stop",
    }


@pytest.mark.parametrize("dialect", ["chat", "completions"])
def test_logprobs_are_sent_only_when_asked(dialect: Dialect) -> None:
    """And not because the spec says how many alternatives there are."""
    for chunk in objects(made(Generated(length=3, alternatives=5), dialect))[:-1]:
        assert chunk["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(("spec", "listed"), [(None, 2), (0, 0), (5, 5)])
def test_how_many_alternatives(spec: int | None, listed: int) -> None:
    """As asked, unless the spec says another number."""
    events = made(Generated(length=1, alternatives=spec), logprobs=True, top_logprobs=2)
    (entry,) = objects(events)[1]["choices"][0]["logprobs"]["content"]
    assert len(entry["top_logprobs"]) == listed


def test_several_entries_in_one_event() -> None:
    """Seven tokens, three an event: 3, 3, 1; due when the last of them is."""
    spec = Generated(length=7, entries_per_event=3, pace_ms=10)
    events = made(spec, **LOGPROBS["chat"])

    assert [(event.tokens, event.at_ms) for event in events if event.tokens] == [
        (3, 30.0),
        (3, 60.0),
        (1, 70.0),
    ]
    counts = [len(o["choices"][0]["logprobs"]["content"]) for o in objects(events)[1:-2]]
    assert counts == [3, 3, 1]


def test_several_choices() -> None:
    """By the request's n, or by the spec; interleaved, each with its own finish."""
    events = objects(made(Generated(length=2), n=2))[:-1]
    assert [e["choices"][0]["index"] for e in events] == [0, 1] * 4
    assert [e["choices"][0]["finish_reason"] for e in events][-2:] == ["stop", "stop"]
    assert len(made(Generated(length=2, choices=3), n=2)) == 3 * 4 + 1


def test_usage_comes_when_asked() -> None:
    """One chunk without choices, before the end mark; completion tokens over all choices."""
    spec = Generated(length=4)
    *_, usage, _ = objects(made(spec, n=2, stream_options={"include_usage": True}))
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 1, "completion_tokens": 8, "total_tokens": 9}
    assert not any("usage" in o for o in objects(made(spec))[:-1])


def test_another_shape_than_the_path() -> None:
    """One real server answers completions in chat's shape; this one can too."""
    events = objects(made(Generated(length=1, shape="chat"), "completions", logprobs=1))
    assert "delta" in events[1]["choices"][0]
    assert events[1]["choices"][0]["logprobs"]["content"]


@pytest.mark.parametrize(("name", "end"), [("lf", b"\n"), ("crlf", b"\r\n"), ("cr", b"\r")])
def test_line_ends(name: Any, end: bytes) -> None:
    """Every event, the end mark included, uses the one that was ordered."""
    for event in made(Generated(length=2, line_end=name)):
        assert event.data.endswith(end * 2)
        assert event.data.count(b"\r") + event.data.count(b"\n") == 2 * len(end)


def test_the_same_request_gives_the_same_bytes() -> None:
    """No clock and no chance in it."""
    spec = Generated(length=5)
    assert made(spec, **LOGPROBS["chat"]) == made(spec, **LOGPROBS["chat"])
