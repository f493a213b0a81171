"""Raw HTTP/1.1 responses taken apart with plain string methods. Imports nothing of the product."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Response:
    """One recorded response.

    Attributes:
        body: without its transfer framing.
        clean: the framing said that the body was over (a body without framing always is).
    """

    status: int
    headers: dict[str, str]
    body: bytes
    clean: bool

    @property
    def content_type(self) -> str:
        """Lower case, without parameters."""
        return self.headers.get("content-type", "").split(";")[0].strip().lower()


def read_response(raw: bytes) -> Response:
    """Take one response apart."""
    head, found, rest = raw.partition(b"\r\n\r\n")
    assert found, "no end of the head"
    lines = head.decode("latin-1").split("\r\n")
    assert lines[0].startswith("HTTP/1.")
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    status = int(lines[0].split(" ")[1])
    if headers.get("transfer-encoding") == "chunked":
        body, clean = dechunk(rest)
    elif "content-length" in headers:
        length = int(headers["content-length"])
        body, clean = rest[:length], len(rest) >= length
    else:
        body, clean = rest, True
    return Response(status, headers, body, clean)


def dechunk(data: bytes) -> tuple[bytes, bool]:
    """The payload of a chunked body, and whether its last chunk came."""
    body = b""
    while True:
        line, found, data = data.partition(b"\r\n")
        if not found:
            return body, False
        size = int(line.split(b";")[0], 16)
        if size == 0:
            # No trailers, or some and then an empty line.
            return body, data == b"\r\n" or data.endswith(b"\r\n\r\n")
        body += data[:size]
        if len(data) < size:
            return body, False
        data = data[size + 2 :]


def chunked(body: bytes, *, size: int = 64, status: str = "200 OK", last: bool = True) -> bytes:
    """The other direction: a response as a server would send it."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked"
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head.encode() + b"\r\n\r\n" + framed + (b"0\r\n\r\n" if last else b"")
