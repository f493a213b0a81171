"""Recorded answers: real events of a real server, with the time each of them came.

They are sent as they were recorded, byte for byte. One thing alone is adapted: a request that
asks for no logprobs gets none, in the form in which the recording's own server says "none" (it
leaves the member out, or writes null). The number of alternatives stays the recorded one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from streamguard.errors import InputError
from streamguard.sim.stream import Dialect, Event

Absent = Literal["null", "left_out"]
"""How a server writes a chunk without evidence."""

# An unescaped quote before the key: a quote inside a string is escaped, so this is a whole string.
_MEMBER: Final = re.compile(r'(,\s*)?(?<!\\)"logprobs"\s*:\s*')
_COMMA: Final = re.compile(r"\s*,\s*")
_DECODER: Final = json.JSONDecoder()
# What the provider frames itself; x-request-id is its own too.
_NOT_SENT: Final = frozenset(
    ("connection", "content-length", "date", "keep-alive", "transfer-encoding", "x-request-id")
)


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a recordings file.

    Attributes:
        name: unique; the model's name is `recorded/NAME`.
        dialect: the path it was asked on.
        question, truth: what was asked, and the answer it was checked against.
        correct: whether the whole answer is right.
        request: the body that was sent.
        status: of the answer; only 200 is taken.
        headers: as received.
        events: (milliseconds since the request, event text with its line ends).
        tokens: generated, as the server counts them.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    dialect: Dialect
    question: str
    truth: str
    correct: bool
    request: dict[str, Any]
    status: Annotated[int, msgspec.Meta(ge=200, le=200)]
    headers: list[tuple[str, str]]
    events: Annotated[list[tuple[float, str]], msgspec.Meta(min_length=1)]
    tokens: Annotated[int, msgspec.Meta(ge=1)]

    @property
    def end_to_end_headers(self) -> tuple[tuple[str, str], ...]:
        """The headers without those that frame one connection's bytes."""
        return tuple((k, v) for k, v in self.headers if k.lower() not in _NOT_SENT)

    @property
    def duration_ms(self) -> float:
        """From the request to the last event."""
        return self.events[-1][0]

    def token_counts(self) -> list[int]:
        """Tokens per event.

        The entries say. Tokens the server counted without giving an entry (the end of the text,
        on some servers) are put on the event with the finish reason.
        """
        counts: list[int] = []
        finish = len(self.events) - 1
        for number, (_, text) in enumerate(self.events):
            payload = payload_of(text)
            choices = payload.get("choices", []) if isinstance(payload, dict) else []
            counts.append(sum(len(_entries(choice)) for choice in choices))
            if any(choice.get("finish_reason") for choice in choices):
                finish = number
        counts[finish] += max(0, self.tokens - sum(counts))
        return counts

    def send(self, *, logprobs: bool) -> Iterator[Event]:
        """Its events, with or without the evidence."""
        absent: Absent = "left_out"
        if any('"logprobs":null' in text.replace(" ", "") for _, text in self.events):
            absent = "null"
        for (at_ms, text), tokens in zip(self.events, self.token_counts(), strict=True):
            sent = text if logprobs else without_logprobs(text, absent)
            yield Event(at_ms, sent.encode(), tokens)


def without_logprobs(text: str, absent: Absent) -> str:
    """The event with every `logprobs` value replaced by null, or every such member left out."""
    parts: list[str] = []
    at = 0
    for member in _MEMBER.finditer(text):
        if member.start() < at:
            continue  # inside a value that is gone already
        _, end = _DECODER.raw_decode(text, member.end())
        if absent == "null":
            parts += [text[at : member.end()], "null"]
        else:
            parts.append(text[at : member.start()])
            if member[1] is None and (comma := _COMMA.match(text, end)):
                end = comma.end()  # it was the first member
        at = end
    return "".join([*parts, text[at:]])


def load_recordings(folder: Path | None = None) -> Mapping[str, Recording]:
    """Every recording, by name.

    Args:
        folder: of `.jsonl` files; None: the ones that came with the package.

    Raises:
        InputError: a line is no recording, or two have one name.
    """
    home: Traversable = folder or resources.files("streamguard.sim") / "recordings"
    found: dict[str, Recording] = {}
    files = list(home.iterdir()) if home.is_dir() else []
    for file in sorted(files, key=lambda file: file.name):
        if not file.name.endswith(".jsonl"):
            continue  # a page about them, a licence
        for number, line in enumerate(file.read_bytes().splitlines(), 1):
            where = f"{file.name}, line {number}"
            try:
                recording = msgspec.json.decode(line, type=Recording)
                counted = sum(recording.token_counts())
            except (msgspec.DecodeError, ValueError) as error:
                raise InputError(where, f"is no recording: {error}") from error
            if recording.name in found:
                raise InputError(where, f"there is a {recording.name!r} already")
            if counted != recording.tokens:
                raise InputError(where, f"has {counted} entries, more than its tokens")
            found[recording.name] = recording
    return found


def payload_of(text: str) -> Any:
    """The JSON of an event; None for a comment or the end mark."""
    lines = [
        line[5:].removeprefix(" ")
        for line in re.split(r"\r\n|\r|\n", text)
        if line.startswith("data:")
    ]
    data = "\n".join(lines)
    return None if data in ("", "[DONE]") else msgspec.json.decode(data)


def _entries(choice: dict[str, Any]) -> list[Any]:
    found = choice.get("logprobs") or {}
    return found.get("content") or found.get("tokens") or []
