"""Reading a recorded answer back: its events' JSON, its text, its tokens. Both dialects."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def payloads(events: Iterable[tuple[float, str]]) -> Iterator[dict[str, Any]]:
    """The JSON of the events that carry some; comments and `[DONE]` do not."""
    for _, raw in events:
        if raw.startswith("data: {"):
            yield json.loads(raw.removeprefix("data: "))


def text_of(event: Mapping[str, Any]) -> str:
    """The text that one event adds to the answer."""
    (choice,) = event["choices"]
    return (choice["text"] if "text" in choice else choice["delta"].get("content")) or ""


def tokens_of(event: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The tokens that one event carries, each with its logprob."""
    (choice,) = event["choices"]
    told = choice["logprobs"] or {}
    if "content" in told:
        return [(entry["token"], entry["logprob"]) for entry in told["content"]]
    return list(zip(told.get("tokens", ()), told.get("token_logprobs", ()), strict=True))
