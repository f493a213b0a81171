"""Small streams in the shorthand of the bug reports: `C(0, {"content": "a"}, L(E("a", -1)))`.

Values are invented. Every constructor gives the bytes of one event, or the value inside one.
"""

from __future__ import annotations

import json
from typing import Any

D = b"data: [DONE]\n\n"


def E(t: str, p: Any, k: int = 0) -> dict[str, Any]:
    """One entry with k alternatives, the first equal to the token."""
    octets = list(t.encode())
    top = [{"token": t, "logprob": p, "bytes": octets}] if k else []
    top += [{"token": f"{t}~{n}", "logprob": -4.0 - n, "bytes": None} for n in range(1, k)]
    return {"token": t, "logprob": p, "bytes": octets, "top_logprobs": top}


def L(*entries: dict[str, Any]) -> dict[str, Any]:
    """A logprobs object of the chat shape."""
    return {"content": list(entries), "refusal": None}


def legacy(
    tokens: list[Any], lps: list[Any], tops: list[Any] | None = None, off: list[int] | None = None
) -> dict[str, Any]:
    """A logprobs object of the completions shape."""
    return {
        "tokens": tokens,
        "token_logprobs": lps,
        "top_logprobs": tops
        if tops is not None
        else [{t: p} for t, p in zip(tokens, lps, strict=True)],
        "text_offset": off if off is not None else list(range(len(tokens))),
    }


def event(value: Any, *, end: bytes = b"\n") -> bytes:
    """One SSE event with this JSON value, or these bytes, as its data."""
    if isinstance(value, bytes):
        data = value
    else:
        data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return b"data: " + data + end * 2


def chat_object(i: int, delta: Any, logprobs: Any = None, fin: str | None = None) -> dict[str, Any]:
    """The JSON value of one chat chunk."""
    choice = {"index": i, "delta": delta, "logprobs": logprobs, "finish_reason": fin}
    head = {"id": "x1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    return {**head, "choices": [choice]}


def C(i: int, delta: Any, logprobs: Any = None, fin: str | None = None) -> bytes:
    """One chat chunk. A string stands for a delta with that content."""
    if isinstance(delta, str):
        delta = {"content": delta}
    return event(chat_object(i, delta, logprobs, fin))


def T(text: str, logprobs: Any = None, fin: str | None = None, *, i: int = 0) -> bytes:
    """One chunk of legacy completions."""
    choice = {"text": text, "index": i, "logprobs": logprobs, "finish_reason": fin}
    head = {"id": "x1", "object": "text_completion", "created": 7, "model": "m"}
    return event({**head, "choices": [choice]})


def U(n: int) -> bytes:
    """The usage chunk."""
    head = {"id": "x1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    usage = {"prompt_tokens": 3, "completion_tokens": n, "total_tokens": n + 3}
    return event({**head, "choices": [], "usage": usage})


def said(*pairs: tuple[str, float], fin: str | None = "stop", done: bool = True) -> bytes:
    """A whole chat answer: a role chunk, one chunk a token, the finish, the end mark."""
    stream = C(0, {"role": "assistant", "content": ""})
    stream += b"".join(C(0, t, L(E(t, p, 1))) for t, p in pairs)
    if fin is not None:
        stream += C(0, {}, None, fin)
    return stream + (D if done else b"")
