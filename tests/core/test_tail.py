"""Our own events: made of the stream's words, with its line ends, readable by its clients."""

from __future__ import annotations

import json
import typing
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk
from openai.types.completion import Completion
from tests.reference.build import C, E, L, T, U

from streamguard.core.dialects import Tail
from streamguard.core.events import DialectName, Reason, Verdict

ABORT = Verdict(1, "abort", 7, "unsure", "mean_prob", 0.25, 0.5)
CHAT = C(0, "a")[6:-2]


def read(raw: bytes, end: bytes = b"\n") -> dict[str, Any]:
    """The value of one event that is a single line with these line ends."""
    assert raw.startswith(b"data: ")
    assert raw.endswith(end * 2)
    line = raw[6 : -2 * len(end)]
    assert b"\n" not in line
    assert b"\r" not in line
    value = json.loads(line)
    assert isinstance(value, dict)
    return value


def finish(payload: bytes | None, dialect: DialectName = "chat", end: bytes = b"\n") -> Any:
    """The finish chunk after this payload."""
    tail = Tail(dialect, payload, end)
    raw = tail.finish(ABORT, finish_reason="content_filter", stream_id="sg-1", policy="p")
    return read(raw, end)


def test_a_finish_chunk_of_chat() -> None:
    """The stream's own head, an empty delta, the reason, and the facts beside it."""
    assert finish(CHAT) == {
        "id": "x1",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": "m",
        "choices": [{"index": 1, "delta": {}, "logprobs": None, "finish_reason": "content_filter"}],
        "streamguard": {
            "id": "sg-1",
            "verdict": "abort",
            "reason": "unsure",
            "policy": "p",
            "signal": "mean_prob",
            "score": 0.25,
            "threshold": 0.5,
            "position": 7,
        },
    }


def test_a_finish_chunk_of_completions() -> None:
    """The other shape: an empty text."""
    found = finish(T("a")[6:-2], "completions")
    assert (found["object"], found["id"]) == ("text_completion", "x1")
    assert found["choices"] == [
        {"index": 1, "text": "", "logprobs": None, "finish_reason": "content_filter"}
    ]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_line_ends(end: bytes) -> None:
    """Every event of ours ends its lines as the stream does."""
    tail = Tail("chat", CHAT, end)
    assert finish(CHAT, end=end)["id"] == "x1"
    assert tail.done() == b"data: [DONE]" + end * 2
    assert read(tail.usage(3), end)["usage"]["completion_tokens"] == 3
    assert read(tail.failure("shutdown", "text"), end)["error"]["code"] == "shutdown"
    assert read(tail.error(ABORT, stream_id="i", policy="p"), end)["error"]["param"] is None


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_head_values_go_out_byte_for_byte(end: bytes) -> None:
    """Whatever their type or form, on one line."""
    payload = b'{"id":"\\u00e9\xc3\xa9","created":1.50e3,"model":{"a" :\n [1,\r\n2]},"choices":[]}'
    tail = Tail("chat", payload, end)
    raw = tail.finish(ABORT, finish_reason="stop", stream_id="i", policy="p")

    assert b'"id":"\\u00e9\xc3\xa9"' in raw
    assert b'"created":1.50e3' in raw
    assert read(raw, end)["model"] == {"a": [1, 2]}


@pytest.mark.parametrize(
    "payload", [None, b"", b"{}", b"[]", b"{", b"[DONE]", b"\xff", b"[" * 9999]
)
def test_a_stream_that_said_nothing(payload: bytes | None) -> None:
    """The shape alone: no head is invented."""
    found = finish(payload)
    assert [key for key in found if key not in ("choices", "streamguard")] == ["object"]
    assert found["object"] == "chat.completion.chunk"


@pytest.mark.parametrize("odd", [b"NaN", b"1e999", b'"\\ud800"'])
def test_the_head_of_an_odd_event(odd: bytes) -> None:
    """A chunk that only the cold path reads has a name all the same, and our event is strict."""
    payload = CHAT[:-1] + b',"x":' + odd + b"}"
    found = finish(payload)
    assert (found["id"], found["created"], found["model"]) == ("x1", 7, "m")
    assert finish(b'{"id":' + odd + b',"model":"m"}')["model"] == "m"


def test_usage() -> None:
    """What was counted, marked as an estimate; the prompt's share is what the stream said last."""
    assert read(Tail("chat", CHAT, b"\n").usage(5))["usage"] == {
        "prompt_tokens": 0,
        "completion_tokens": 5,
        "total_tokens": 5,
        "streamguard_estimated": True,
    }
    assert read(Tail("chat", U(9)[6:-2], b"\n").usage(5))["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "streamguard_estimated": True,
    }
    for odd in (b"null", b"[]", b'{"prompt_tokens":"x"}', b'{"prompt_tokens":null}'):
        assert read(Tail("chat", b'{"usage":' + odd + b"}", b"\n").usage(5))["choices"] == []


@pytest.mark.parametrize("reason", typing.get_args(Reason))
def test_an_error_for_each_reason(reason: Reason) -> None:
    """A code of its own, `low_confidence` for a verdict; no text of the answer in it."""
    verdict = Verdict(0, "abort", 1, reason)
    found = read(Tail("chat", CHAT, b"\n").error(verdict, stream_id="i", policy="p"))

    assert found["error"]["code"] == ("low_confidence" if reason == "unsure" else reason)
    assert found["error"]["message"].startswith("streamguard ended this answer: ")
    assert found["streamguard"]["reason"] == reason
    assert "choices" not in found


def test_sdks_take_our_chunks() -> None:
    """The OpenAI SDK's own models validate them strictly enough to read the finish."""
    chat = ChatCompletionChunk.model_validate(finish(CHAT))
    assert chat.choices[0].finish_reason == "content_filter"
    usage = ChatCompletionChunk.model_validate(read(Tail("chat", CHAT, b"\n").usage(2)))
    assert usage.usage is not None
    assert (usage.choices, usage.usage.total_tokens) == ([], 2)
    text = Completion.model_validate(finish(T("a")[6:-2], "completions"))
    assert text.choices[0].finish_reason == "content_filter"


def test_evidence_is_not_repeated() -> None:
    """Only the head of the last chunk is taken over."""
    found = finish(C(0, "secret", L(E("secret", -1)))[6:-2])
    assert "secret" not in json.dumps(found)
