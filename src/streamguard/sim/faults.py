"""The fault vocabulary: what can go wrong with an answer, each with its own few parameters.

Toxiproxy's seven (latency, bandwidth, slicer, limit_data, timeout, reset_peer, slow_close) and
those that an LLM provider adds. Only the words are here; `sim.play` acts on them. `after` counts
events written, the role event included; in a shorter answer the fault comes at its end, before
the body is finished. A request without `stream` meets only those faults that come before an
answer begins (latency, silence, reset, refusal, an error status).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Bytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
Millis = Annotated[float, msgspec.Meta(ge=0, le=3_600_000)]
Status = Annotated[int, msgspec.Meta(ge=200, le=599)]


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """The answer begins `ms` late."""

    ms: Millis = 500.0


class Bandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """No more than so many bytes a second, framing included."""

    bytes_per_s: Bytes = 20_000


class Slicer(msgspec.Struct, frozen=True, kw_only=True):
    """Every write in segments of `bytes`, `pause_ms` between them."""

    bytes: Bytes = 7
    pause_ms: Millis = 0.0


class LimitData(msgspec.Struct, frozen=True, kw_only=True):
    """FIN after so many bytes of the answer, its head included, wherever that is."""

    bytes: Bytes = 2000


class Timeout(msgspec.Struct, frozen=True, kw_only=True):
    """Silence after so many events, until the client leaves."""

    after: Count = 5


class ResetPeer(msgspec.Struct, frozen=True, kw_only=True):
    """RST after so many events."""

    after: Count = 5


class SlowClose(msgspec.Struct, frozen=True, kw_only=True):
    """A body that ends with the connection, and the connection ends `ms` after the last byte."""

    ms: Millis = 1000.0


class HalfClose(msgspec.Struct, frozen=True, kw_only=True):
    """FIN after so many events; the other direction stays open until the client leaves."""

    after: Count = 5


class RstOnAccept(msgspec.Struct, frozen=True, kw_only=True):
    """RST instead of an answer.

    A model name is known only once the request was read; a script's `on_accept` resets before.
    """


class AcceptThenSilent(msgspec.Struct, frozen=True, kw_only=True):
    """Not a byte, until the client leaves."""


class LieFraming(msgspec.Struct, frozen=True, kw_only=True):
    """Framing that does not fit the body.

    `long`: a Content-Length 1,000 bytes too large, then FIN. `short`: half the real length, and
    the rest follows all the same. `chunk`: the third chunk's size is no number. `both`: chunked,
    with a Content-Length beside it.
    """

    how: Literal["long", "short", "chunk", "both"] = "long"


class Encode(msgspec.Struct, frozen=True, kw_only=True):
    """A compressed body, whatever the client accepts."""

    coding: Literal["gzip", "deflate", "br", "zstd"] = "gzip"


class TlsTruncate(msgspec.Struct, frozen=True, kw_only=True):
    """Over TLS: the connection ends after so many events without a close-notify.

    The body's framing leaves its end to the connection, so nothing else tells.
    """

    after: Count = 5


class ErrorFirst(msgspec.Struct, frozen=True, kw_only=True):
    """An error instead of an answer: in the first event (status 200), or as a JSON answer."""

    status: Status = 200


class ErrorMidstream(msgspec.Struct, frozen=True, kw_only=True):
    """An error event after so many events, then `[DONE]` and a clean end, as vLLM does it."""

    after: Count = 5


class RefuseLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that ask for logprobs are refused; with status 200 in the first event."""

    status: Status = 400


class NoDone(msgspec.Struct, frozen=True, kw_only=True):
    """Everything but the `[DONE]`."""


Fault: TypeAlias = (
    Latency
    | Bandwidth
    | Slicer
    | LimitData
    | Timeout
    | ResetPeer
    | SlowClose
    | HalfClose
    | RstOnAccept
    | AcceptThenSilent
    | LieFraming
    | Encode
    | TlsTruncate
    | ErrorFirst
    | ErrorMidstream
    | RefuseLogprobs
    | NoDone
)


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


FAULTS: Final[dict[str, type[Fault]]] = {_snake(t.__name__): t for t in get_args(Fault)}
"""By the word that scripts and model names use."""
