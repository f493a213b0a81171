"""Streams with chosen log-probabilities, in both dialects. Values are invented, shapes are not."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

Dialect = Literal["chat", "completions"]
DONE = b"data: [DONE]\n\n"
PATHS: dict[Dialect, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
}


def event(payload: object) -> bytes:
    """One SSE event."""
    return b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"


def envelope(dialect: Dialect, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The object around the choices of one event."""
    return {
        "id": "chatcmpl-1" if dialect == "chat" else "cmpl-1",
        "object": "chat.completion.chunk" if dialect == "chat" else "text_completion",
        "created": 1700000000,
        "model": "test-model",
        "choices": choices,
        **more,
    }


def token_event(
    dialect: Dialect, token: str, logprob: float, *, index: int = 0, finish: str | None = None
) -> bytes:
    """One token of one choice with its entry and one alternative."""
    if dialect == "chat":
        alternative = {"token": token, "logprob": logprob, "bytes": list(token.encode())}
        choice = {
            "index": index,
            "delta": {"content": token},
            "logprobs": {"content": [{**alternative, "top_logprobs": [alternative]}]},
            "finish_reason": finish,
        }
    else:
        choice = {
            "index": index,
            "text": token,
            "logprobs": {
                "tokens": [token],
                "token_logprobs": [logprob],
                "top_logprobs": [{token: logprob}],
                "text_offset": [0],
            },
            "finish_reason": finish,
        }
    return event(envelope(dialect, [choice]))


def finish_event(dialect: Dialect, reason: str = "stop", *, index: int = 0) -> bytes:
    """The last event of a choice: a finish reason and no entries."""
    text: dict[str, Any] = {"delta": {}} if dialect == "chat" else {"text": ""}
    choice = {"index": index, **text, "logprobs": None, "finish_reason": reason}
    return event(envelope(dialect, [choice]))


def stream(
    dialect: Dialect, probabilities: Iterable[float], *, index: int = 0, done: bool = True
) -> list[bytes]:
    """A whole answer: a role event (chat), one event a token, the finish, `[DONE]`."""
    events = []
    if dialect == "chat":
        delta = {"role": "assistant", "content": ""}
        role = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        events.append(event(envelope("chat", [role])))
    for number, probability in enumerate(probabilities):
        events.append(token_event(dialect, f"t{number} ", math.log(probability), index=index))
    events.append(finish_event(dialect, index=index))
    if done:
        events.append(DONE)
    return events


def request(
    dialect: Dialect, *, model: str = "test-model", prompt: str = "hello", **more: Any
) -> bytes:
    """The body of a streaming request."""
    asked: dict[str, Any] = (
        {"messages": [{"role": "user", "content": prompt}]}
        if dialect == "chat"
        else {"prompt": prompt}
    )
    return json.dumps({"model": model, **asked, "stream": True, **more}).encode()


def payloads(body: bytes) -> list[Any]:
    """The JSON payloads of an LF-framed stream; `[DONE]` stays text."""
    found: list[Any] = []
    for block in body.split(b"\n\n"):
        for line in block.split(b"\n"):
            if line.startswith(b"data:"):
                data = line[5:].strip()
                found.append("[DONE]" if data == b"[DONE]" else json.loads(data))
    return found


def nulled(body: bytes) -> bytes:
    """The body with every `logprobs` value replaced by null, nothing else touched.

    Independent of the subject: it looks for the key as text and lets the standard decoder find
    the end of its value. An escaped quote before the key means that it stands inside a string.
    """
    text = body.decode("utf-8", "surrogateescape")
    decoder = json.JSONDecoder()
    parts, at = [], 0
    for key in re.finditer(r'(?<!\\)"logprobs"\s*:\s*', text):
        if key.start() < at:
            continue
        _, end = decoder.raw_decode(text, key.end())
        parts += [text[at : key.end()], "null"]
        at = end
    return ("".join(parts) + text[at:]).encode("utf-8", "surrogateescape")


def sliced(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """The same bytes in pieces of the given sizes, used round and round."""
    pieces, at, turn = [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        pieces.append(data[at : at + size])
        at += size
        turn += 1
    return pieces
