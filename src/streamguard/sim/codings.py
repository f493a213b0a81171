"""Content codings, enough to be compressed where nobody asked for it.

gzip and deflate by zlib. For br and zstd the standard library has nothing before Python 3.14, so
their frames hold the data uncompressed, which both formats provide for: any decoder reads them.
"""

from __future__ import annotations

import zlib
from typing import Final, Literal, Protocol

Coding = Literal["gzip", "deflate", "br", "zstd"]


class Coder(Protocol):
    """Encodes a body event by event."""

    def encode(self, data: bytes) -> bytes:
        """The next piece, decodable as soon as it has arrived."""

    def end(self) -> bytes:
        """What ends the body."""


def coder(coding: Coding) -> Coder:
    """The coder of a `Content-Encoding`."""
    match coding:
        case "gzip":
            return _Zlib(31)
        case "deflate":
            return _Zlib(15)
        case "br":
            return _Brotli()
        case "zstd":
            return _Zstd()


class _Zlib:
    def __init__(self, wbits: int) -> None:
        self._deflate = zlib.compressobj(wbits=wbits)

    def encode(self, data: bytes) -> bytes:
        return self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def end(self) -> bytes:
        return self._deflate.flush()


class _Brotli:
    """RFC 7932, section 9.2: uncompressed meta-blocks, behind a window of 16 bits (one 0 bit)."""

    _MOST: Final = 1 << 16

    def __init__(self) -> None:
        self._begun = False

    def encode(self, data: bytes) -> bytes:
        out = b""
        for at in range(0, len(data), self._MOST):
            part = data[at : at + self._MOST]
            # ISLAST 0, MNIBBLES 00 (four), MLEN - 1 in 16 bits, ISUNCOMPRESSED 1: 20 bits.
            bits, size = (len(part) - 1) << 3 | 1 << 19, 20
            if not self._begun:
                bits, size, self._begun = bits << 1, size + 1, True
            out += bits.to_bytes((size + 7) // 8, "little") + part
        return out

    def end(self) -> bytes:
        return b"\x03" if self._begun else b"\x06"  # ISLAST 1, ISLASTEMPTY 1


class _Zstd:
    """RFC 8878, section 3.1.1: one frame of raw blocks, 1 MiB window, no checksum."""

    _MOST: Final = 1 << 17

    def __init__(self) -> None:
        self._begun = False

    def encode(self, data: bytes) -> bytes:
        out = self._head()
        for at in range(0, len(data), self._MOST):
            part = data[at : at + self._MOST]
            out += (len(part) << 3).to_bytes(3, "little") + part
        return out

    def end(self) -> bytes:
        return self._head() + b"\x01\x00\x00"

    def _head(self) -> bytes:
        head = b"" if self._begun else b"\x28\xb5\x2f\xfd\x00\x50"
        self._begun = True
        return head
