"""HTTP/1.1 by hand, as much of it as a provider needs: requests in, heads and chunks out."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Final, NamedTuple

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
LAST_CHUNK: Final = b"0\r\n\r\n"


class BadRequestError(Exception):
    """What came is no request; the connection can only be closed."""


class Request(NamedTuple):
    """One request, whole."""

    method: str
    path: str
    body: bytes
    keep_alive: bool


class RequestReader:
    """Cuts a connection's bytes into requests."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> None:
        """More bytes.

        Raises:
            BadRequestError: more than any request may have.
        """
        self._pending += data
        if len(self._pending) > MAX_HEAD_BYTES + MAX_BODY_BYTES:
            raise BadRequestError("too large")

    def take(self) -> Request | None:
        """The next request, or None if it is not there yet.

        Raises:
            BadRequestError: it never will be.
        """
        end = self._pending.find(b"\r\n\r\n")
        if end < 0:
            if len(self._pending) > MAX_HEAD_BYTES:
                raise BadRequestError("head too large")
            return None
        start, *lines = self._pending[:end].decode("latin-1").split("\r\n")
        words = start.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise BadRequestError("no request line")
        fields = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise BadRequestError("no header field")
            fields[name.lower()] = value.strip()
        body, used = self._body(fields, end + 4)
        if body is None:
            return None
        del self._pending[:used]
        connection = fields.get("connection", "").lower()
        alive = "close" not in connection and words[2] == "HTTP/1.1"
        return Request(words[0], words[1].partition("?")[0], body, alive)

    def _body(self, fields: dict[str, str], at: int) -> tuple[bytes | None, int]:
        """The body and where it ends; None if it is not all there."""
        if "transfer-encoding" in fields:
            return self._chunks(at)
        length = fields.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length) > MAX_BODY_BYTES:
            raise BadRequestError("Content-Length")
        end = at + int(length)
        return (None, 0) if len(self._pending) < end else (bytes(self._pending[at:end]), end)

    def _chunks(self, at: int) -> tuple[bytes | None, int]:
        body = bytearray()
        while (end := self._pending.find(b"\r\n", at)) >= 0:
            try:
                size = int(self._pending[at:end].partition(b";")[0], 16)
            except ValueError as error:
                raise BadRequestError("chunk size") from error
            start = end + 2
            if size == 0:
                # Trailer fields end with an empty line; without any it is the next thing.
                stop = self._pending.find(b"\r\n\r\n", end)
                return (None, 0) if stop < 0 else (bytes(body), stop + 4)
            if len(self._pending) < start + size + 2:
                break
            body += self._pending[start : start + size]
            at = start + size + 2
        return None, 0


def head(status: int, fields: Iterable[tuple[str, str]]) -> bytes:
    """The head of an answer."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
