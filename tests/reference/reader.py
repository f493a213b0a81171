"""What a recorded stream says: httpx-sse for the framing, the standard library's json, plain loops.

The oracle of the conformance tests. It imports nothing of the product and shares no code with it,
so an agreement of the two is evidence. It is slow and keeps everything: correctness by plainness.

Definitions: an entry is scorable if its logprob is a finite number (no bool), at most 1e-6 and
above -9000, and no placeholder: a 0.0 with an empty or missing list of alternatives counts only
where none were asked for; where nobody knows what was asked for, it counts only if the choice has
a scorable entry that is no bare zero.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
from httpx_sse import EventSource, ServerSentEvent

BOM = b"\xef\xbb\xbf"
FLOOR = -9000.0
CEILING = 1e-6

Kind = Literal["chunk", "done", "error", "foreign", "unparsable"]


@dataclass(frozen=True, slots=True)
class Token:
    """One entry as it came: `logprob` is whatever JSON value stood there, None if none did."""

    token: Any
    logprob: Any
    octets: Any
    alternatives: tuple[tuple[Any, Any, Any], ...]
    """(token, logprob, bytes) of each listed candidate."""


@dataclass(slots=True)
class Choice:
    """Everything one choice said."""

    index: int
    entries: list[Token] = field(default_factory=list)
    finish_reason: str | None = None

    def scorable(self, asked: int | None) -> list[tuple[int, Token]]:
        """(1-based position, entry) of those that count."""
        plausible = [
            (place, token)
            for place, token in enumerate(self.entries, 1)
            if is_number(token.logprob) and FLOOR < token.logprob <= CEILING
        ]
        solid = [(place, token) for place, token in plausible if not _is_bare_zero(token)]
        if asked == 0 or (asked is None and solid):
            return plausible
        return solid


@dataclass(slots=True)
class Answer:
    """One answer, read.

    Attributes:
        events: SSE events that carry data, `[DONE]` included; 0 for a body that is no SSE.
        payloads: their data, in order.
        dialect: by the shape of the first choice that has one.
        outcome: complete, upstream_error or upstream_truncated.
        id: the provider's id of the stream, as its last chunk states it.
    """

    events: int
    payloads: list[str]
    dialect: str | None
    outcome: str
    id: str | None
    choices: dict[int, Choice]


def is_number(value: Any) -> bool:
    """A finite JSON number; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _is_bare_zero(token: Token) -> bool:
    return float(token.logprob) == 0.0 and not token.alternatives


# --------------------------------------------------------------------------- framing


def sse_events(body: bytes) -> tuple[list[ServerSentEvent], bool]:
    """The events that carry data, and whether the last of them lacks its blank line."""
    body = body.removeprefix(BOM)
    strict = _decode(body)
    # A reader that follows the standard drops an event without its blank line; here it is
    # evidence that was paid for.
    loose = _decode(body + b"\n\n")
    return loose, len(loose) > len(strict)


def _decode(body: bytes) -> list[ServerSentEvent]:
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    return [event for event in EventSource(response).iter_sse() if event.data]


def looks_like_sse(body: bytes, content_type: str) -> bool:
    """Labels lie both ways: the first character decides where it can."""
    text = body.removeprefix(BOM).lstrip()
    if text[:1] in (b"{", b"[", b"<"):
        return False
    names = (b"data:", b"event:", b"id:", b"retry:", b":")
    return content_type == "text/event-stream" or text.startswith(names)


# --------------------------------------------------------------------------- one payload


def load(text: str) -> Any:
    """JSON as Python reads it, NaN and Infinity included; raises ValueError for what is none."""
    try:
        return json.loads(text, parse_int=lambda s: int(s) if len(s) < 400 else math.inf)
    except RecursionError as error:
        raise ValueError("too deep") from error


def classify(text: str, name: str = "message") -> tuple[Kind, Any]:
    """What one payload is, and its value."""
    if text == "[DONE]":
        return "done", None
    if name == "error":
        return "error", None
    try:
        value = load(text)
    except ValueError:
        return "unparsable", None
    if value is None:
        return "unparsable", None
    if isinstance(value, dict):
        if value.get("error") or value.get("object") == "error":
            return "error", value
        if isinstance(value.get("choices"), list):
            return "chunk", value
    return "foreign", value


def tokens_of(logprobs: Any) -> list[Token]:
    """The entries of one logprobs value, in any shape met."""
    if is_number(logprobs):
        return [Token(None, logprobs, None, ())]
    if not isinstance(logprobs, dict):
        return []
    records = [
        record
        for name in ("content", "refusal")
        for record in _list(logprobs.get(name))
        if record is not None
    ]
    if records:
        return [_from_record(record) for record in records]
    tokens = _list(logprobs.get("tokens"))
    values = _list(logprobs.get("token_logprobs"))
    tops = _list(logprobs.get("top_logprobs"))
    found = []
    for place in range(max(len(tokens), len(values))):
        token, value = _at(tokens, place), _at(values, place)
        if token is None and value is None:
            continue
        top = _at(tops, place)
        listed = tuple((t, v, None) for t, v in top.items()) if isinstance(top, dict) else ()
        found.append(Token(token, value, None, listed))
    return found


def _from_record(record: Any) -> Token:
    if not isinstance(record, dict):
        return Token(None, None, None, ())
    listed = tuple(
        (item.get("token"), item.get("logprob"), item.get("bytes"))
        for item in _list(record.get("top_logprobs"))
        if isinstance(item, dict)
    )
    return Token(record.get("token"), record.get("logprob"), record.get("bytes"), listed)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _at(values: list[Any], place: int) -> Any:
    return values[place] if place < len(values) else None


# --------------------------------------------------------------------------- the whole answer


def read_body(
    body: bytes, *, status: int = 200, content_type: str = "text/event-stream", clean: bool = True
) -> Answer:
    """Read a body without its transfer framing.

    Args:
        clean: the framing said that the body was over.
    """
    if status != 200:
        return Answer(0, [], None, "complete" if clean else "upstream_truncated", None, {})
    if not looks_like_sse(body, content_type):
        return _read_plain(body, clean=clean)
    found, unterminated = sse_events(body)
    read = [(event.data, *classify(event.data, event.event)) for event in found]
    if read and unterminated and not clean and read[-1][1] == "unparsable":
        read.pop()  # cut in mid-event: no event
    return _collect(read, clean=clean, events=len(read))


def _read_plain(body: bytes, *, clean: bool) -> Answer:
    """One JSON answer, or something that is none of ours."""
    kind: Kind
    try:
        text = body.removeprefix(BOM).decode()
        kind, value = classify(text)
    except ValueError:
        kind, value = "unparsable", None
    if kind in ("foreign", "unparsable"):
        return Answer(0, [], None, "complete" if clean else "upstream_truncated", None, {})
    return _collect([("", kind, value)], clean=clean, events=0)


def _collect(read: list[tuple[str, Kind, Any]], *, clean: bool, events: int) -> Answer:
    choices: dict[int, Choice] = {}
    dialect: str | None = None
    stream_id: str | None = None
    for _, kind, value in read:
        if kind != "chunk":
            continue
        stream_id = value.get("id") if isinstance(value.get("id"), str) else None
        for said in value["choices"]:
            if not isinstance(said, dict):
                continue
            if dialect is None:
                if "delta" in said or "message" in said:
                    dialect = "chat"
                elif "text" in said:
                    dialect = "completions"
            index = said.get("index", 0)
            index = index if type(index) is int else 0
            choice = choices.setdefault(index, Choice(index))
            choice.entries += tokens_of(said.get("logprobs"))
            if choice.finish_reason is None and isinstance(said.get("finish_reason"), str):
                choice.finish_reason = said["finish_reason"]
    kinds = [kind for _, kind, _ in read]
    return Answer(
        events=events,
        payloads=[text for text, _, _ in read] if events else [],
        dialect=dialect,
        outcome=_outcome(kinds, choices, clean=clean),
        id=stream_id,
        choices=choices,
    )


def _outcome(kinds: list[Kind], choices: dict[int, Choice], *, clean: bool) -> str:
    if "error" in kinds:
        return "upstream_error"
    if "done" in kinds:
        return "complete"
    if choices:
        over = all(choice.finish_reason is not None for choice in choices.values())
    else:
        # No answer in any shape known here. Foreign events may well be whole; nothing, or only
        # comments and noise, is no answer.
        over = clean and "foreign" in kinds
    return "complete" if over else "upstream_truncated"
