"""The recorded answers with what was asked for, and the oracle's reading of them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tests.reference.http import Response, read_response
from tests.reference.reader import Answer, Choice, Token, read_body

FIXTURES = Path(__file__).parents[1] / "fixtures"
RECORDINGS = FIXTURES / "recordings"
LABELLED = FIXTURES / "labelled" / "smollm2-labelled.jsonl"
REQUESTS: dict[str, dict[str, Any]] = json.loads(
    (RECORDINGS / "requests.json").read_text(encoding="utf-8")
)
NAMES = sorted(REQUESTS)


def asked(name: str) -> int | None:
    """Alternatives per token that the request asked for; None if none, or nobody knows."""
    body = REQUESTS[name]["body"]
    logprobs = body.get("logprobs") if isinstance(body, dict) else None
    if logprobs is None or logprobs is False or isinstance(logprobs, str):
        return None
    chat = REQUESTS[name]["path"].endswith("/chat/completions")
    wanted = int(body.get("top_logprobs", 0) if chat else logprobs)
    return wanted if wanted >= 0 else None


@cache
def response(name: str) -> Response:
    """The recorded response, framing taken off by the oracle."""
    return read_response((RECORDINGS / name).read_bytes())


@cache
def answer(name: str) -> Answer:
    """The oracle's reading."""
    found = response(name)
    return read_body(
        found.body, status=found.status, content_type=found.content_type, clean=found.clean
    )


def from_tokens(tokens: list[Any]) -> Choice:
    """A record of JSON Lines as a choice."""
    entries = [
        Token(token, logprob, None, tuple((t, v, None) for t, v in listed))
        for token, logprob, listed in tokens
    ]
    return Choice(0, entries)
