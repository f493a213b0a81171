"""Every error answer that is ours and not a verdict: a closed list of fixed texts.

None of them repeats anything of the request or of the upstream's address: an error page is the
oldest way to leak a key. The shape is the one OpenAI's SDKs read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec

from streamguard.core.events import Outcome

Code: TypeAlias = Literal[
    "malformed_request",
    "head_timeout",
    "bad_target",
    "duplicate_header",
    "host_not_allowed",
    "origin_not_allowed",
    "body_timeout",
    "body_too_large",
    "bad_expectation",
    "upgrade_not_supported",
    "version_not_supported",
    "loop_detected",
    "overload",
    "shutdown",
    "internal_error",
    "upstream_refused",
    "upstream_truncated",
    "timeout_connect",
    "timeout_first_byte",
    "timeout_idle",
    "timeout_lifetime",
    "timeout_write",
]


@dataclass(frozen=True, slots=True)
class Answer:
    """One fixed answer.

    Attributes:
        status: HTTP status.
        text: the message.
        outcome: what the record says.
        retry: an SDK may try again by itself.
        close: the connection ends with it (the request was not read to its end, or not trusted).
        abrupt: and does so without reading what the client still sends.
        retry_after_s: when to come back; 0 leaves the field out.
    """

    status: int
    text: str
    outcome: Outcome = "bad_request"
    retry: bool = False
    close: bool = True
    abrupt: bool = False
    retry_after_s: int = 0


ANSWERS: Final[dict[Code, Answer]] = {
    "malformed_request": Answer(400, "the request is not well-formed HTTP"),
    "head_timeout": Answer(408, "the request head did not arrive in time"),
    "bad_target": Answer(400, "the request target is not allowed"),
    "duplicate_header": Answer(400, "a header that must be unique was sent twice"),
    "host_not_allowed": Answer(403, "the Host header does not name this server"),
    "origin_not_allowed": Answer(403, "requests from web pages are not allowed"),
    "body_timeout": Answer(408, "the request body did not arrive in time", abrupt=True),
    "body_too_large": Answer(413, "the request body is too large"),
    "bad_expectation": Answer(417, "the expectation cannot be met"),
    "upgrade_not_supported": Answer(501, "connections cannot be upgraded here"),
    "version_not_supported": Answer(505, "only HTTP/1.0 and HTTP/1.1 are spoken here"),
    "loop_detected": Answer(508, "this request has been here before"),
    "overload": Answer(503, "too many requests at once", "overload", retry=True, retry_after_s=1),
    "shutdown": Answer(503, "streamguard is shutting down", "shutdown", retry=True),
    "internal_error": Answer(500, "streamguard failed on this request", "internal_error"),
    "upstream_refused": Answer(
        502, "the upstream could not be reached", "upstream_refused", retry=True, close=False
    ),
    "upstream_truncated": Answer(
        502, "the upstream gave no usable answer", "upstream_truncated", retry=True
    ),
    "timeout_connect": Answer(
        504,
        "the upstream took too long to accept a connection",
        "timeout_connect",
        retry=True,
        close=False,
    ),
    "timeout_first_byte": Answer(
        504, "the upstream took too long to begin its answer", "timeout_first_byte", retry=True
    ),
    "timeout_idle": Answer(504, "the connection fell silent", "timeout_idle", retry=True),
    "timeout_lifetime": Answer(
        504, "the request took longer than it may", "timeout_lifetime", retry=True
    ),
    "timeout_write": Answer(504, "the client stopped reading", "timeout_write", retry=True),
}


def error_body(code: Code) -> bytes:
    """The JSON of an answer, in the shape OpenAI's SDKs read."""
    return msgspec.json.encode(
        {
            "error": {
                "message": ANSWERS[code].text,
                "type": "streamguard_error",
                "param": None,
                "code": code,
            }
        }
    )
