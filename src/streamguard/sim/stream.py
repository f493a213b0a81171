"""What the provider is about to send: events with their time and their tokens, and a request read.

No bytes of HTTP here and no clock: `at_ms` counts from the moment the request was read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

Dialect = Literal["chat", "completions"]

PATHS: Final[dict[str, Dialect]] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
}
MAX_ALTERNATIVES: Final = 20

_FromZero = Annotated[int, msgspec.Meta(ge=0)]


class Event(NamedTuple):
    """One SSE event.

    Attributes:
        at_ms: when it is due.
        data: its text, line ends included.
        tokens: how many tokens were generated for it.
    """

    at_ms: float
    data: bytes
    tokens: int = 0


class Stream(NamedTuple):
    """An answer to come.

    Attributes:
        headers: those of the answer that are not framing.
        events: in order; may be read once.
        tokens: how many tokens the whole answer has.
    """

    headers: tuple[tuple[str, str], ...]
    events: Iterable[Event]
    tokens: int


class Ask(NamedTuple):
    """What a request asks for.

    Attributes:
        alternatives: per token; None where no logprobs are asked for.
        choices: `n`, None if not given.
    """

    dialect: Dialect
    model: str
    stream: bool
    alternatives: int | None
    choices: int | None
    usage: bool


class _Options(msgspec.Struct):
    include_usage: bool | None = None


class _Body(msgspec.Struct):
    model: str
    stream: bool | None = None
    logprobs: bool | _FromZero | None = None
    top_logprobs: _FromZero | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    stream_options: _Options | None = None


def read_ask(dialect: Dialect, body: bytes) -> Ask:
    """Read a request's body.

    Raises:
        msgspec.DecodeError: it is no JSON, or a field has a type that no provider takes.
    """
    fields = msgspec.json.decode(body, type=_Body)
    alternatives: int | None = None
    if dialect == "chat":
        if fields.logprobs is True:
            alternatives = fields.top_logprobs or 0
    elif fields.logprobs is not None and fields.logprobs is not False:
        alternatives = int(fields.logprobs)
    options = fields.stream_options
    return Ask(
        dialect=dialect,
        model=fields.model,
        stream=fields.stream is True,
        alternatives=None if alternatives is None else min(alternatives, MAX_ALTERNATIVES),
        choices=fields.n,
        usage=options is not None and options.include_usage is True,
    )


def error_object(message: str, *, code: str, param: str | None = None) -> dict[str, Any]:
    """An error in the shape OpenAI's clients read."""
    return {
        "error": {
            "message": message,
            "type": "server_error" if code == "server_error" else "invalid_request_error",
            "param": param,
            "code": code,
        }
    }


def sse(value: object, line_end: bytes = b"\n") -> bytes:
    """One event that carries this value as JSON."""
    return b"data: " + msgspec.json.encode(value) + line_end * 2


def done(line_end: bytes = b"\n") -> bytes:
    """The end mark."""
    return b"data: [DONE]" + line_end * 2
