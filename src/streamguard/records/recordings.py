"""Reading recordings: raw HTTP responses, bare bodies, JSON Lines of tokens.

What is recorded is read piece by piece, so size costs time and no memory. A recording that breaks
off is a fact about the stream (`Answer.clean` is then false) and is read as far as it goes;
something that is no recording raises `InputError`. Nothing here judges or decodes what a body says.

HTTP framing follows RFC 9112 as a client sees it: the status line, fields, then chunked (7.1),
Content-Length (6.2) or until the end of the file. Interim 1xx responses are skipped. Lone LF line
ends are taken too, since recordings pass through editors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple

import msgspec

from streamguard.core.dialects import lenient
from streamguard.core.events import Alternative, Entry
from streamguard.errors import InputError

Kind = Literal["response", "body", "records"]

SUFFIXES: Final[dict[str, Kind]] = {
    ".http": "response",
    ".sse": "body",
    ".json": "body",
    ".jsonl": "records",
}
"""What a directory is searched for. A file that is named itself may have any suffix."""

PIECE_BYTES: Final = 64 * 1024
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""One JSON Lines record: 100,000 tokens with five alternatives each are about 15 MB."""

_STATUS_LINE: Final = re.compile(rb"HTTP/\d(?:\.\d)? (\d{3})(?: [^\r\n]*)?\r?\n")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")
_BOM: Final = b"\xef\xbb\xbf"


def kind_of(path: Path) -> Kind:
    """By suffix; by the first bytes where that says nothing.

    Raises:
        InputError: the file can't be read.
    """
    known = SUFFIXES.get(path.suffix.lower())
    if known is not None:
        return known
    with _opened(path) as file:
        start = file.read(4096)
    if start.startswith(b"HTTP/"):
        return "response"
    line, ended, _ = start.removeprefix(_BOM).lstrip().partition(b"\n")
    return "records" if ended and line.startswith(b"{") and b'"tokens"' in line else "body"


# --------------------------------------------------------------------------- one answer


class Answer:
    """One recorded answer: its head, and its body in pieces, transfer framing taken off.

    Attributes:
        status: None for a bare body.
        content_type: as the head has it; for a bare body what its suffix promises.
        content_encoding: None if there is none.
        clean: the framing says that the body is whole. Settled once `pieces` is used up.
    """

    def __init__(self, path: Path, file: BinaryIO, kind: Kind) -> None:
        self._path = path
        self._file = file
        self.status: int | None = None
        self.content_type: str | None = None
        self.content_encoding: str | None = None
        self.clean = False
        self._body: Callable[[], Iterator[bytes]] = self._until_end
        if kind == "response":
            self._read_head()
        elif path.suffix.lower() == ".json":
            self.content_type = "application/json"
        else:
            self.content_type = "text/event-stream"

    def pieces(self) -> Iterator[bytes]:
        """The body, once, in pieces of at most `PIECE_BYTES`.

        Raises:
            InputError: the framing is none.
        """
        return self._body()

    # ------------------------------------------------------------------ the head

    def _read_head(self) -> None:
        left = MAX_HEAD_BYTES
        while True:
            line = self._file.readline(left)
            left -= len(line)
            status = _STATUS_LINE.fullmatch(line)
            if status is None:
                raise self._error("does not begin with an HTTP status line")
            fields: dict[str, str] = {}
            while (line := self._file.readline(left)) not in (b"\r\n", b"\n"):
                left -= len(line)
                name, colon, value = line.decode("latin-1").partition(":")
                if not colon or not line.endswith(b"\n"):
                    raise self._error("its head has no end, or a line that is no field")
                key = name.strip().lower()
                fields[key] = f"{fields[key]}, {value.strip()}" if key in fields else value.strip()
            self.status = int(status[1])
            if self.status >= 200 or self.status == 101:
                break
        self.content_type = fields.get("content-type")
        self.content_encoding = fields.get("content-encoding")
        self._choose_framing(fields)

    def _choose_framing(self, fields: dict[str, str]) -> None:
        codings = [c.strip().lower() for c in fields.get("transfer-encoding", "").split(",")]
        if codings[-1] == "chunked":
            self._body = self._chunked
            if len(codings) > 1:  # compressed on the way: as unreadable as a content coding
                self.content_encoding = self.content_encoding or codings[0]
        elif "content-length" in fields:
            lengths = {part.strip() for part in fields["content-length"].split(",")}
            length = lengths.pop()
            if lengths or not (length.isascii() and length.isdecimal() and len(length) < 16):
                raise self._error("its Content-Length is no number, or more than one")
            self._body = lambda: self._exactly(int(length))

    # ------------------------------------------------------------------ the body

    def _until_end(self) -> Iterator[bytes]:
        while piece := self._file.read(PIECE_BYTES):
            yield piece
        self.clean = True

    def _exactly(self, length: int) -> Iterator[bytes]:
        left = length
        while left and (piece := self._file.read(min(left, PIECE_BYTES))):
            left -= len(piece)
            yield piece
        self.clean = not left

    def _chunked(self) -> Iterator[bytes]:
        while line := self._file.readline(MAX_HEAD_BYTES):
            size = _CHUNK_SIZE.fullmatch(line)
            if size is None:
                if line.endswith(b"\n") or len(line) > 16:
                    # What `curl -i` writes: the head of a chunked answer over a plain body.
                    raise self._error("its body is not chunked, as its head says (curl: --raw)")
                return  # broken off inside a size
            left = int(size[1], 16)
            if not left:
                self.clean = self._ends_after_trailers()
                return
            while left and (piece := self._file.read(min(left, PIECE_BYTES))):
                left -= len(piece)
                yield piece
            if left or self._file.readline(3) not in (b"\r\n", b"\n"):
                return

    def _ends_after_trailers(self) -> bool:
        while line := self._file.readline(MAX_HEAD_BYTES):
            if line in (b"\r\n", b"\n"):
                return True
        return False

    def _error(self, problem: str) -> InputError:
        return InputError(str(self._path), problem)


@contextmanager
def open_answer(path: Path, kind: Kind) -> Iterator[Answer]:
    """Open a recorded answer; the file is closed at the end of the block.

    Raises:
        InputError: it can't be opened, or is no recording.
    """
    with _opened(path) as file:
        yield Answer(path, file, kind)


# --------------------------------------------------------------------------- JSON Lines


class TokenRecord(NamedTuple):
    """One line: an answer as a list of entries, its text and provider left behind."""

    id: str | None
    entries: tuple[Entry, ...]


def read_records(path: Path) -> Iterator[TokenRecord | InputError]:
    """The records of a JSON Lines file, and in its place an error for each line that is none.

    A line is `{"id", "tokens": [[token, logprob, [[alternative, logprob], ...]], ...]}`; other
    fields are ignored. A logprob that is no finite number makes an entry without one.

    Raises:
        InputError: the file can't be read.
    """
    with _opened(path) as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            where = f"{path}:{number}"
            if len(line) > MAX_LINE_BYTES:
                yield InputError(where, f"is longer than {MAX_LINE_BYTES >> 20} MiB")
                while line and not line.endswith(b"\n"):
                    line = file.readline(PIECE_BYTES)
                continue
            if number == 1:
                line = line.removeprefix(_BOM)
            if line.strip():
                try:
                    yield _record(line)
                except ValueError as error:
                    yield InputError(where, str(error))


def _record(line: bytes) -> TokenRecord:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):  # NaN, 1e999, a lone surrogate, or no JSON
        found = lenient.load(line)
    tokens = found.get("tokens") if isinstance(found, dict) else None
    if not isinstance(tokens, list):
        raise ValueError('is no JSON object with a list "tokens"')
    name = found.get("id")
    return TokenRecord(
        None if name is None else str(name).encode("utf-8", "replace").decode(),
        tuple(_entry(number, item) for number, item in enumerate(tokens, 1)),
    )


def _entry(number: int, item: Any) -> Entry:
    if not isinstance(item, list) or len(item) < 2 or not isinstance(item[0], (str, type(None))):
        raise ValueError(f"token {number} is no list [token, logprob, ...]")
    listed = item[2] if len(item) > 2 else None
    if listed is None:
        return Entry(item[0], _number(item[1]))
    if not isinstance(listed, list):
        raise ValueError(f"the alternatives of token {number} are no list")
    return Entry(item[0], _number(item[1]), None, [_alternative(number, pair) for pair in listed])


def _alternative(number: int, pair: Any) -> Alternative:
    if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], (str, type(None))):
        raise ValueError(f"an alternative of token {number} is no list [token, logprob]")
    return Alternative(pair[0], _number(pair[1]))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(str(path), f"can't be opened: {error.strerror}") from None
    with file:
        try:
            yield file
        except OSError as error:
            raise InputError(str(path), f"can't be read: {error.strerror}") from None
