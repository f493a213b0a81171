"""Reading one event: what it says about which choice, whatever server wrote it.

The two OpenAI shapes differ in the request and in the tail, not in how their evidence is read:
servers mix them (llama-server answers completions with chat-shaped logprobs, old vLLM the other
way round), so one reader takes either shape on either path. It never writes.

Decoding is typed and looks at the fields that are needed, nothing else. What the typed decoder
refuses goes the one cold path, `lenient`, which still finds the entries. An event that neither
can read is `unparsable`: it is passed on and counted.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from streamguard.core.dialects import lenient
from streamguard.core.events import Alternative, ChoiceDelta, Chunk, DialectName, Entry
from streamguard.core.jsonspan import find_spans

Kind = Literal["chunk", "done", "error", "foreign", "unparsable"]
Raw = msgspec.Raw
Index = Annotated[int, msgspec.Meta(ge=0, lt=lenient.MAX_INDEX)]
_ABSENT: Final = Raw()
_EMPTY: Final = frozenset((b"", b"null", b"false", b'""', b"{}", b"[]"))
_LOGPROBS_KEY: Final = b'"logprobs"'
_SPANS: Final = ("choices", None, "logprobs")


class Reading(msgspec.Struct, frozen=True, gc=False):
    """What one payload turned out to be.

    Attributes:
        kind: `foreign` is JSON of some other shape; only `chunk` carries evidence.
        chunk: for kind `chunk`.
        dialect: the shape, as far as this payload shows it.
        logprobs: where non-null `choices[].logprobs` values stand in the payload (only if the
            reader was told to look).
    """

    kind: Kind
    chunk: Chunk | None = None
    dialect: DialectName | None = None
    logprobs: tuple[tuple[int, int], ...] = ()


class _Unread(msgspec.Struct, frozen=True, gc=False):
    """An alternative of which only that it is there matters."""


class _BareEntry(Entry, frozen=True, gc=False):
    """An entry whose alternatives are counted, not read."""

    top_logprobs: list[_Unread] | None = None  # type: ignore[assignment]  # frozen: only read


class _Logprobs(msgspec.Struct, gc=False):
    """Both shapes at once: chat's lists of entries, and completions' parallel arrays."""

    content: list[Entry] | None = None
    refusal: list[Entry] | None = None
    tokens: list[str | None] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None


class _BareLogprobs(_Logprobs, gc=False):
    content: list[_BareEntry] | None = None  # type: ignore[assignment]
    refusal: list[_BareEntry] | None = None  # type: ignore[assignment]


class _Choice(msgspec.Struct, gc=False):
    index: Index = 0
    delta: Raw = _ABSENT
    message: Raw = _ABSENT
    text: Raw = _ABSENT
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _BareChoice(_Choice, gc=False):
    logprobs: _BareLogprobs | None = None


class _RawChoice(msgspec.Struct, gc=False):
    """As `_Choice`, with the logprobs' own bytes kept: needed to find them again."""

    index: Index = 0
    delta: Raw = _ABSENT
    message: Raw = _ABSENT
    text: Raw = _ABSENT
    logprobs: Raw = _ABSENT
    finish_reason: str | None = None


class _EndChoice(msgspec.Struct, gc=False):
    index: Index = 0
    finish_reason: str | None = None


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    error: Raw = _ABSENT
    object: Raw = _ABSENT


class _BareEvent(_Event, gc=False):
    choices: list[_BareChoice] | None = None  # type: ignore[assignment]


class _RawEvent(msgspec.Struct, gc=False):
    choices: list[_RawChoice] | None = None
    error: Raw = _ABSENT
    object: Raw = _ABSENT


class _EndEvent(msgspec.Struct, gc=False):
    choices: list[_EndChoice] | None = None
    error: Raw = _ABSENT
    object: Raw = _ABSENT


class _Delta(msgspec.Struct, gc=False):
    content: Raw = _ABSENT
    refusal: Raw = _ABSENT
    reasoning_content: Raw = _ABSENT
    reasoning: Raw = _ABSENT
    tool_calls: Raw = _ABSENT


_EVENT: Final = msgspec.json.Decoder(_Event)
_BARE_EVENT: Final = msgspec.json.Decoder(_BareEvent)
_RAW_EVENT: Final = msgspec.json.Decoder(_RawEvent)
_END_EVENT: Final = msgspec.json.Decoder(_EndEvent)
_LOGPROBS: Final = msgspec.json.Decoder(_Logprobs | None)
_BARE_LOGPROBS: Final = msgspec.json.Decoder(_BareLogprobs | None)
_DELTA: Final = msgspec.json.Decoder(_Delta | None)
# RecursionError: 100,000 nested brackets. The others are what the decoder itself raises.
_REFUSED_BY_DECODER: Final = (msgspec.DecodeError, RecursionError)


class Reader:
    """Reads payloads of one stream.

    Args:
        locate: also find where the logprobs values stand, so that they can be taken out.
        texts: also tell whether a delta carries text (`ChoiceDelta.has_text`).
        alternatives: read what is listed beside the tokens; if not, entries only tell how many
            there are, which is all that `Watch` asks: a third of the decoding saved.
    """

    __slots__ = ("_event", "_locate", "_logprobs", "_texts")

    def __init__(
        self, *, locate: bool = False, texts: bool = False, alternatives: bool = True
    ) -> None:
        self._event = _EVENT if alternatives else _BARE_EVENT
        self._logprobs = _LOGPROBS if alternatives else _BARE_LOGPROBS
        self._locate = locate
        self._texts = texts

    def read(self, payload: bytes, name: bytes = b"") -> Reading:
        """Read one event's data. `name` is its `event:` field. Never raises."""
        if payload == b"[DONE]":
            return _DONE
        if name == b"error":
            return _ERROR
        try:
            if self._locate:
                return self._read_raw(payload)
            event = self._event.decode(payload)
        except _REFUSED_BY_DECODER:
            return self._read_lenient(payload)
        if event.choices is None or event.error != _ABSENT:
            special = _special(event.choices is None, event.error, event.object)
            if special is not None:
                return special
        dialect: DialectName | None = None
        choices: list[ChoiceDelta] = []
        for choice in event.choices or ():
            dialect = dialect or _shape(choice.delta, choice.message, choice.text)
            found = choice.logprobs
            choices.append(
                ChoiceDelta(
                    choice.index,
                    entries_of(found) if found is not None else (),
                    choice.finish_reason,
                    self._texts and _has_text(choice.delta, choice.text),
                )
            )
        return Reading("chunk", Chunk(tuple(choices)), dialect)

    def read_ends(self, payload: bytes, name: bytes = b"") -> Reading:
        """Read only finish reasons and errors: all that matters once nothing is judged any more."""
        if payload == b"[DONE]":
            return _DONE
        if name == b"error":
            return _ERROR
        try:
            event = _END_EVENT.decode(payload)
        except _REFUSED_BY_DECODER:
            return self._read_lenient(payload)
        if event.choices is None or event.error != _ABSENT:
            special = _special(event.choices is None, event.error, event.object)
            if special is not None:
                return special
        listed = event.choices
        if listed and len(listed) == 1 and listed[0].finish_reason is None and not listed[0].index:
            return _GOES_ON
        ends = [ChoiceDelta(c.index, (), c.finish_reason) for c in event.choices or ()]
        return Reading("chunk", Chunk(tuple(ends)))

    def _read_raw(self, payload: bytes) -> Reading:
        event = _RAW_EVENT.decode(payload)
        if event.choices is None or event.error != _ABSENT:
            special = _special(event.choices is None, event.error, event.object)
            if special is not None:
                return special
        dialect: DialectName | None = None
        choices: list[ChoiceDelta] = []
        values: list[bytes] = []
        for choice in event.choices or ():
            dialect = dialect or _shape(choice.delta, choice.message, choice.text)
            raw = bytes(choice.logprobs)
            found = self._logprobs.decode(raw) if raw else None
            if raw:
                values.append(raw)
            choices.append(
                ChoiceDelta(
                    choice.index,
                    entries_of(found) if found is not None else (),
                    choice.finish_reason,
                    self._texts and _has_text(choice.delta, choice.text),
                )
            )
        return Reading("chunk", Chunk(tuple(choices)), dialect, _locate(payload, values))

    def _read_lenient(self, payload: bytes) -> Reading:
        event = lenient.load(payload)
        if event is None:
            return _UNPARSABLE
        if lenient.is_error(event):
            return _ERROR
        found = lenient.choices_of(event)
        if found is None:
            return _FOREIGN
        choices, dialect = found
        spans = _logprobs_spans(payload) if self._locate else ()
        return Reading("chunk", Chunk(choices), dialect, spans)


_GOES_ON: Final = Reading("chunk", Chunk((ChoiceDelta(0),)))
_DONE: Final = Reading("done")
_ERROR: Final = Reading("error")
_FOREIGN: Final = Reading("foreign")
_UNPARSABLE: Final = Reading("unparsable")


def entries_of(found: _Logprobs) -> tuple[Entry, ...]:
    """The entries of one logprobs object; an object with nothing in it has none."""
    if found.content:
        return tuple(found.content + found.refusal) if found.refusal else tuple(found.content)
    if found.refusal:
        return tuple(found.refusal)
    if not found.tokens and not found.token_logprobs:
        return ()
    return join_arrays(found.tokens or [], found.token_logprobs or [], found.top_logprobs or [])


def join_arrays(
    tokens: list[str | None],
    logprobs: list[float | None],
    tops: list[dict[str, float | None] | None],
) -> tuple[Entry, ...]:
    """The completions shape's parallel arrays as entries.

    Arrays of unequal length are read as far as the longer of tokens and logprobs goes; a place
    where both are null says nothing.
    """
    entries: list[Entry] = []
    for at in range(max(len(tokens), len(logprobs))):
        token = tokens[at] if at < len(tokens) else None
        logprob = logprobs[at] if at < len(logprobs) else None
        if token is None and logprob is None:
            continue
        listed = tops[at] if at < len(tops) else None
        top = None if listed is None else [Alternative(t, value) for t, value in listed.items()]
        entries.append(Entry(token, logprob, None, top))
    return tuple(entries)


def _special(no_choices: bool, error: Raw, kind: Raw) -> Reading | None:
    """An error object or a foreign shape; None if it is a chunk after all."""
    if _says_something(error) or bytes(kind) == b'"error"':
        return _ERROR
    return _FOREIGN if no_choices else None


def _says_something(value: Raw) -> bool:
    """Whether a member is there and not empty: what SDKs ask of `error`."""
    if bytes(value) in _EMPTY:
        return False
    try:
        return bool(msgspec.json.decode(value))
    except _REFUSED_BY_DECODER:
        return True


def _shape(delta: Raw, message: Raw, text: Raw) -> DialectName | None:
    if delta != _ABSENT or message != _ABSENT:
        return "chat"
    return "completions" if text != _ABSENT else None


def _has_text(delta: Raw, text: Raw) -> bool:
    if bytes(text) not in _EMPTY:
        return True
    if delta == _ABSENT:
        return False
    try:
        fields = _DELTA.decode(delta)
    except _REFUSED_BY_DECODER:
        return True  # something is there, in a form of its own
    return fields is not None and any(
        bytes(value) not in _EMPTY
        for value in (
            fields.content,
            fields.refusal,
            fields.reasoning_content,
            fields.reasoning,
            fields.tool_calls,
        )
    )


def _locate(payload: bytes, values: list[bytes]) -> tuple[tuple[int, int], ...]:
    """Where the given `logprobs` values stand, by plain search.

    An unescaped `"logprobs"` not preceded by a backslash is always a whole JSON string, since a
    quote inside a string is escaped. If there are exactly as many as there are values, each
    followed by its value, they are the choices' own; otherwise the exact scan decides.
    """
    spans: list[tuple[int, int]] = []
    pos = 0
    for value in values:
        key = payload.find(_LOGPROBS_KEY, pos)
        at = key + len(_LOGPROBS_KEY) + 1
        if payload[at : at + 1] == b" ":  # as some servers write; other blanks are rare
            at += 1
        if key <= 0 or payload[key - 1] == 0x5C or not payload.startswith(value, at):
            return _logprobs_spans(payload)
        pos = at + len(value)
        if value != b"null":
            spans.append((at, pos))
    if payload.find(_LOGPROBS_KEY, pos) >= 0:
        return _logprobs_spans(payload)
    return tuple(spans)


def _logprobs_spans(payload: bytes) -> tuple[tuple[int, int], ...]:
    return tuple(
        (start, end) for start, end in find_spans(payload, _SPANS) if payload[start:end] != b"null"
    )
