"""What a client is told when a request fails for reasons that are no verdict.

Fixed texts on purpose: no address, no header, nothing of the request or the answer.
"""

from __future__ import annotations

from typing import Any, Final

from streamguard.core.events import Outcome

FAILURES: Final[dict[Outcome, tuple[int, str]]] = {
    "upstream_refused": (502, "the upstream could not be reached"),
    "upstream_truncated": (502, "the upstream broke off before the answer was complete"),
    "upstream_error": (502, "the upstream sent an answer that can't be passed on"),
    "timeout_connect": (504, "the upstream took too long to accept a connection"),
    "timeout_first_byte": (504, "the upstream took too long to begin its answer"),
    "timeout_idle": (504, "the upstream fell silent"),
    "timeout_lifetime": (504, "the answer took longer than a stream may live"),
    "timeout_write": (504, "the client stopped reading"),
    "shutdown": (503, "streamguard is shutting down"),
    "internal_error": (500, "streamguard failed on this request"),
}
"""The status, while one can still be chosen, and the text."""

UNWATCHABLE: Final = "this answer can't be watched, and the policy lets none pass unwatched"
ENCODED: Final = "the upstream compressed a stream that has to be read"


def failure(code: str, message: str) -> dict[str, Any]:
    """An error object of ours, in the shape OpenAI SDKs read."""
    return {"message": message, "type": "streamguard_error", "param": None, "code": code}
