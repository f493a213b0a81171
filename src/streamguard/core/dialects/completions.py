"""Legacy completions: `logprobs` is a count, and 0 does not switch it off."""

from __future__ import annotations

from typing import Final

OBJECT: Final = "text_completion"
FIELDS: Final[tuple[str, ...]] = ("logprobs",)
DEFAULT_LIMIT: Final[int] = 5


def evidence_fields(alternatives: int) -> bytes:
    """At least 1: 0 yields nothing on some servers, so an empty list always is a placeholder."""
    return b'"logprobs":%d' % max(1, alternatives)


def asked(logprobs: object, top_logprobs: object) -> int | None:
    """Alternatives per token that the client's own field asks for; None: no logprobs at all.

    True is what lax servers read as 1; 0 means "the sampled token only".
    """
    del top_logprobs  # no field of this dialect
    if logprobs is True:
        return 1
    return logprobs if type(logprobs) is int and logprobs >= 0 else None


def empty_choice(index: int, finish_reason: str) -> dict[str, object]:
    """A choice that carries nothing but its finish reason."""
    return {"index": index, "text": "", "logprobs": None, "finish_reason": finish_reason}
