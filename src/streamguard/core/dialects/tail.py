"""The events that end a stream which was cut: made from the stream's own words.

id, model, created and object are spliced in as the provider wrote them, byte for byte, and the
line ending is the stream's own; what is ours stands beside them.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from streamguard.core.dialects import chat, completions, lenient
from streamguard.core.events import DialectName, Reason, Verdict
from streamguard.core.failures import failure

_encode: Final = msgspec.json.encode
_ABSENT: Final = msgspec.Raw()
_WHY: Final[dict[Reason, str]] = {
    "unsure": "its early tokens fell below the confidence bound",
    "no_signal": "no evidence came, and the policy lets nothing pass without",
    "rule_error": "a rule failed, and the policy lets nothing pass unjudged",
    "oversize": "an event was too large to be read, and the policy lets none pass unread",
    "unparsable": "its events could not be read, and the policy lets none pass unread",
}


class _Meta(msgspec.Struct):
    """What every chunk of a stream repeats."""

    id: msgspec.Raw = _ABSENT
    object: msgspec.Raw = _ABSENT
    created: msgspec.Raw = _ABSENT
    model: msgspec.Raw = _ABSENT
    usage: msgspec.Raw = _ABSENT


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0


class Tail:
    """Writes our events for one stream.

    Args:
        dialect: the shape to write.
        payload: data of a chunk of this stream, None if there was none.
        line_end: LF, CR or CRLF, as the stream uses it.
    """

    def __init__(self, dialect: DialectName, payload: bytes | None, line_end: bytes) -> None:
        self._dialect = chat if dialect == "chat" else completions
        self._line_end = line_end
        self._meta = _meta_of(payload or b"{}")

    def finish(self, verdict: Verdict, *, finish_reason: str, stream_id: str, policy: str) -> bytes:
        """The last chunk of a choice that was cut."""
        return self._event(
            {
                **self._head(),
                "choices": [self._dialect.empty_choice(verdict.index, finish_reason)],
                "streamguard": _facts(verdict, stream_id, policy),
            }
        )

    def usage(self, completion_tokens: int) -> bytes:
        """The usage chunk a client asked for: the provider's own never comes after a cut.

        `prompt_tokens` is what the stream itself said last, 0 where it said nothing.
        """
        prompt = self._prompt_tokens()
        return self._event(
            {
                **self._head(),
                "choices": [],
                "usage": {
                    "prompt_tokens": prompt,
                    "completion_tokens": completion_tokens,
                    "total_tokens": prompt + completion_tokens,
                    "streamguard_estimated": True,
                },
            }
        )

    def error(self, verdict: Verdict, *, stream_id: str, policy: str) -> bytes:
        """The one event that tells a client, as an error, that its answer was cut."""
        reason = verdict.reason or "unsure"
        return self._event(
            {
                "error": {
                    "message": f"streamguard ended this answer: {_WHY[reason]}",
                    "type": "streamguard_abort",
                    "param": None,
                    "code": "low_confidence" if reason == "unsure" else reason,
                },
                "streamguard": _facts(verdict, stream_id, policy),
            }
        )

    def done(self) -> bytes:
        """The end mark."""
        return b"data: [DONE]" + self._line_end * 2

    def failure(self, code: str, message: str) -> bytes:
        """An error event for a stream that broke off; no end mark follows it."""
        return self._event({"error": failure(code, message)})

    def _head(self) -> dict[str, Any]:
        meta = self._meta
        head: dict[str, Any] = {}
        for name in ("id", "object", "created", "model"):
            value = getattr(meta, name)
            if value != _ABSENT:
                head[name] = value
        head.setdefault("object", self._dialect.OBJECT)
        return head

    def _prompt_tokens(self) -> int:
        if self._meta.usage == _ABSENT:
            return 0
        try:
            usage = msgspec.json.decode(self._meta.usage, type=_Usage | None)
        except msgspec.DecodeError:
            return 0
        return usage.prompt_tokens if usage is not None else 0

    def _event(self, value: dict[str, Any]) -> bytes:
        # Pretty-printed values would break a data line; msgspec writes none, but a value spliced
        # in as Raw may hold line ends between its tokens (never inside a string).
        text = _encode(value).replace(b"\r", b" ").replace(b"\n", b" ")
        return b"data: " + text + self._line_end * 2


def _meta_of(payload: bytes) -> _Meta:
    try:
        return msgspec.json.decode(payload, type=_Meta)
    except (msgspec.DecodeError, RecursionError):
        found = lenient.load(payload)  # a chunk with a NaN in it has a name all the same
    if not isinstance(found, dict):
        return _Meta()
    known = {name: found[name] for name in _Meta.__struct_fields__ if name in found}
    return _Meta(**{name: msgspec.Raw(lenient.dump(value)) for name, value in known.items()})


def _facts(verdict: Verdict, stream_id: str, policy: str) -> dict[str, Any]:
    return {
        "id": stream_id,
        "verdict": verdict.kind,
        "reason": verdict.reason,
        "policy": policy,
        "signal": verdict.signal,
        "score": verdict.score,
        "threshold": verdict.threshold,
        "position": verdict.position,
    }
