"""Header fields on their way through: which cross, which stay, and what a request may not carry.

Works on the raw pairs as they stood on the wire, so that order, case and duplicates survive.
It parses nothing that a strict parser has not accepted before. Invariant: no hop-by-hop field
crosses in either direction, and no end-to-end field is lost (RFC 9110, section 7.6.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

Header: TypeAlias = tuple[bytes, bytes]
Headers: TypeAlias = Sequence[Header]

VIA: Final = b"1.1 streamguard"
"""How we sign requests, and recognise our own: a request that carries it has come round a loop."""

OWN_PREFIX: Final = b"x-streamguard-"

_HOP_BY_HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)

# A sender can name any field in `Connection` and have it removed by the next hop. These must not
# be removable: without them the request means something else, or belongs to nobody.
_UNREMOVABLE: Final = frozenset(
    (
        b"api-key",
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"cookie",
        b"host",
        b"x-api-key",
    )
)

_ONCE: Final = frozenset(
    (b"api-key", b"authorization", b"content-length", b"content-type", b"host", b"x-api-key")
)

_LOCAL_NAMES: Final = frozenset(("localhost", "127.0.0.1", "[::1]"))


def values(headers: Iterable[Header], name: bytes) -> list[bytes]:
    """All values of a field, in order. `name` is lower case."""
    return [value.strip() for key, value in headers if key.lower() == name]


def tokens(headers: Iterable[Header], name: bytes) -> list[bytes]:
    """The members of a comma-separated field, lower case."""
    return [
        token
        for value in values(headers, name)
        for part in value.split(b",")
        if (token := part.strip().lower())
    ]


def end_to_end(headers: Headers, *, drop: frozenset[bytes] = frozenset()) -> list[Header]:
    """The fields that cross a hop, untouched and in order.

    Args:
        headers: as received.
        drop: further names to leave out, lower case.
    """
    gone = _HOP_BY_HOP | drop
    listed = set(tokens(headers, b"connection"))
    if listed:
        gone |= listed - _UNREMOVABLE
    return [pair for pair in headers if pair[0].lower() not in gone]


def request_head(
    method: str,
    target: bytes,
    authority: bytes,
    headers: Headers,
    *,
    identity: bool = False,
    length: int | None = None,
    chunked: bool = False,
) -> bytes:
    """The head of the request for the upstream.

    Args:
        method: as the client sent it.
        target: origin form, already joined.
        authority: what the upstream is called, for `Host`.
        headers: the client's, raw.
        identity: ask for an uncompressed answer, whatever the client takes.
        length: of the body; None for no body, or a chunked one.
        chunked: the body follows in chunks.

    Returns:
        Start line and fields, ended by the blank line.
    """
    drop = {b"host", b"expect", b"content-length"}
    if identity:
        drop.add(b"accept-encoding")
    lines = [method.encode("ascii") + b" " + target + b" HTTP/1.1", b"host: " + authority]
    lines += [
        name + b": " + value
        for name, value in end_to_end(headers, drop=frozenset(drop))
        if not name.lower().startswith(OWN_PREFIX)
    ]
    lines.append(b"via: " + VIA)
    if identity:
        lines.append(b"accept-encoding: identity")
    if chunked:
        lines.append(b"transfer-encoding: chunked")
    elif length is not None:
        lines.append(b"content-length: %d" % length)
    lines += (b"", b"")
    return b"\r\n".join(lines)


def is_looped(headers: Headers) -> bool:
    """Whether this request has been through here before."""
    return VIA in tokens(headers, b"via")


def repeats_a_single_field(headers: Headers) -> bool:
    """Whether a field that must be unique is there twice (first or last, nobody could say)."""
    seen: set[bytes] = set()
    for name, _ in headers:
        key = name.lower()
        if key in _ONCE:
            if key in seen:
                return True
            seen.add(key)
    return False


def is_local_host(host: str) -> bool:
    """Whether a bind address only serves this machine."""
    return host == "localhost" or host == "::1" or host.startswith("127.")


def host_allowed(value: str | None, *, bound: str) -> bool:
    """Whether `Host` names us, where it matters.

    A page that was made to resolve to this machine (DNS rebinding) still sends the name it was
    loaded from; on a loopback bind only loopback names are ours. On other binds any name is.

    Args:
        value: the field, None where an HTTP/1.0 client sent none.
        bound: the address we were told to listen on.
    """
    if value is None or not is_local_host(bound):
        return True
    name = value.strip().lower()
    head, colon, port = name.rpartition(":")
    if colon and port.isdigit() and (not head.startswith("[") or head.endswith("]")):
        name = head
    return name in _LOCAL_NAMES or name.strip("[]") == bound.lower()
