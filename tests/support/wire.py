"""HTTP/1.1 read by hand, for both ends of the bench. Not a client library: an oracle.

Nothing here is lenient and nothing is shared with the subject, so that what it reads is evidence.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Head:
    """A start line and its fields, in the order and spelling received."""

    raw: bytes
    start: str
    fields: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, raw: bytes) -> Head:
        """Read a whole head, the empty line included."""
        lines = raw.decode("latin-1").split("\r\n")
        assert lines[-2:] == ["", ""], "a head ends with an empty line"
        fields = []
        for line in lines[1:-2]:
            name, colon, value = line.partition(":")
            assert colon, f"no colon in {line!r}"
            fields.append((name, value.strip(" \t")))
        return cls(raw, lines[0], tuple(fields))

    def all(self, name: str) -> list[str]:
        """Every value of a field, in order."""
        return [value for key, value in self.fields if key.lower() == name.lower()]

    def get(self, name: str) -> str | None:
        """The value of a field that may stand at most once."""
        values = self.all(name)
        assert len(values) <= 1, f"{name} stands {len(values)} times"
        return values[0] if values else None

    @property
    def names(self) -> list[str]:
        """The field names in lower case, in order."""
        return [name.lower() for name, _ in self.fields]


@dataclass(slots=True)
class Dechunker:
    """Chunked framing taken off, strictly.

    Attributes:
        body: the payload so far.
        done: the last chunk and the end of the trailer section were seen.
        rest: bytes after the end.
    """

    body: bytearray = field(default_factory=bytearray)
    done: bool = False
    rest: bytes = b""
    _pending: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> bytes:
        """Take bytes in, give the new payload out."""
        before = len(self.body)
        self._pending += data
        while not self.done and self._take_chunk():
            pass
        if self.done:
            self.rest += bytes(self._pending)
            self._pending.clear()
        return bytes(self.body[before:])

    def _take_chunk(self) -> bool:
        end = self._pending.find(b"\r\n")
        if end < 0:
            return False
        size = int(bytes(self._pending[:end]).split(b";")[0], 16)
        if size == 0:
            trailer_end = self._pending.find(b"\r\n\r\n", end)
            if trailer_end < 0:
                return False
            del self._pending[: trailer_end + 4]
            self.done = True
            return True
        if len(self._pending) < end + 2 + size + 2:
            return False
        self.body += self._pending[end + 2 : end + 2 + size]
        assert self._pending[end + 2 + size : end + 4 + size] == b"\r\n", "a chunk ends with CRLF"
        del self._pending[: end + 4 + size]
        return True


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def reset(sock: socket.socket) -> None:
    """Close so that the peer sees RST, whatever is in flight."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
