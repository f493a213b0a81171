"""Is this body an event stream? Told by its first bytes, since labels lie both ways.

Some gateways label an event stream `application/json`, others a JSON error `text/event-stream`.
"""

from __future__ import annotations

from typing import Final, Literal

Body = Literal["stream", "object", "other"]
_FIELD_NAMES: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
_BOM: Final = b"\xef\xbb\xbf"
_BLANKS: Final = b"\r\n \t"
_MAX_BLANKS: Final = 1024


def kind_of(start: bytes, content_type: str) -> Body | None:
    """What a body is, or None while its first bytes don't tell yet.

    Args:
        start: everything that came so far.
        content_type: lower case, without parameters.

    Returns:
        `object` for something that begins like a JSON object.
    """
    if len(start) < len(_BOM) and _BOM.startswith(start):
        return None
    told = start.removeprefix(_BOM)
    text = told.lstrip(_BLANKS)
    # By the count of blanks, not of reads: the same bytes are the same body however they are cut.
    if len(told) - len(text) >= _MAX_BLANKS:
        return "stream"
    if not text:
        return None
    if text[:1] == b"{":
        return "object"
    if text[:1] in (b"[", b"<"):
        return "other"
    if content_type == "text/event-stream":
        return "stream"
    if any(text.startswith(name) for name in _FIELD_NAMES):
        return "stream"
    if any(name.startswith(text) for name in _FIELD_NAMES):
        return None
    return "other"
