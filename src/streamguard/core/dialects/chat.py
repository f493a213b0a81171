"""Chat completions: `logprobs` is a boolean, `top_logprobs` the number of alternatives."""

from __future__ import annotations

from typing import Final

OBJECT: Final = "chat.completion.chunk"
FIELDS: Final[tuple[str, ...]] = ("logprobs", "top_logprobs")
DEFAULT_LIMIT: Final[int] = 20
WHOLE_VOCABULARY: Final = 1 << 20
"""What -1 asks of a server that takes it: more alternatives than any rule needs."""


def evidence_fields(alternatives: int) -> bytes:
    """Both fields, always: alone, either is refused or silently yields nothing on some servers."""
    return b'"logprobs":true,"top_logprobs":%d' % max(1, alternatives)


def asked(logprobs: object, top_logprobs: object) -> int | None:
    """Alternatives per token that the client's own fields ask for; None: no logprobs at all.

    A number in the boolean's place (some providers want it there) counts as that many.
    """
    if not logprobs:
        return None
    if type(top_logprobs) is int:
        return top_logprobs if top_logprobs >= 0 else WHOLE_VOCABULARY
    return logprobs if type(logprobs) is int else 0


def empty_choice(index: int, finish_reason: str) -> dict[str, object]:
    """A choice that carries nothing but its finish reason."""
    return {"index": index, "delta": {}, "logprobs": None, "finish_reason": finish_reason}
