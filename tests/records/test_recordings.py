"""Reading recordings: framing taken off as RFC 9112 says, and errors that name their place."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from streamguard.core.events import Alternative, Entry
from streamguard.errors import InputError
from streamguard.records.recordings import (
    PIECE_BYTES,
    Answer,
    Kind,
    TokenRecord,
    kind_of,
    open_answer,
    read_records,
)

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def read(path: Path, raw: bytes, kind: Kind = "response") -> tuple[Answer, bytes]:
    path.write_bytes(raw)
    with open_answer(path, kind) as answer:
        return answer, b"".join(answer.pieces())


@pytest.mark.parametrize(
    ("raw", "body", "clean"),
    [
        (CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"abcde", True),
        (CHUNKED + b"A;x=1\r\n0123456789\r\n0\r\nX-T: 1\r\n\r\n", b"0123456789", True),
        (CHUNKED + b"3 \r\nabc\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n", b"abc", True),
        (CHUNKED + b"3\nabc\n0\n\n", b"abc", True),
        (CHUNKED + b"0\r\n\r\n", b"", True),
        (CHUNKED, b"", False),
        (CHUNKED + b"3\r\nabc\r\n", b"abc", False),
        (CHUNKED + b"3\r\nabc", b"abc", False),
        (CHUNKED + b"3\r\nab", b"ab", False),
        (CHUNKED + b"3\r\nabc\r\n1", b"abc", False),
        (CHUNKED + b"3\r\nabc\r\n0\r\n", b"abc", False),
        (CHUNKED + b"3\r\nabcX", b"abc", False),
        (HEAD + b"Content-Length: 3\r\n\r\nabc", b"abc", True),
        (HEAD + b"Content-Length: 3\r\n\r\nabcde", b"abc", True),
        (HEAD + b"content-length: 3, 3\r\n\r\nab", b"ab", False),
        (HEAD + b"Content-Length: 0\r\n\r\n", b"", True),
        (HEAD + b"\r\nabc", b"abc", True),
        (HEAD + b"Transfer-Encoding: identity\r\n\r\nabc", b"abc", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"1\r\na\r\n0\r\n\r\n", b"a", True),
        (b"HTTP/1.0 200\n\nabc", b"abc", True),
        (b"HTTP/2 200 \r\n\r\nabc", b"abc", True),
    ],
)
def test_framing_is_taken_off(tmp_path: Path, raw: bytes, body: bytes, clean: bool) -> None:
    """Chunked, counted or open-ended; whether it is whole is told apart from what it holds."""
    answer, got = read(tmp_path / "a.http", raw)
    assert (got, answer.clean, answer.status) == (body, clean, 200)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "status line"),
        (b"data: x\n\n", "status line"),
        (b"HTTP/1.1 two OK\r\n\r\n", "status line"),
        (b"HTTP/1.1 200 OK", "status line"),
        (b"HTTP/1.1 200 OK\r\nA: b\r\n", "no end"),
        (b"HTTP/1.1 200 OK\r\nnothing\r\n\r\n", "no field"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70_000 + b"\r\n\r\n", "no end"),
        (HEAD + b"Content-Length: -3\r\n\r\nabc", "Content-Length"),
        (HEAD + b"Content-Length: 3, 4\r\n\r\nabc", "Content-Length"),
        (HEAD + "Content-Length: \u0663\r\n\r\nabc".encode(), "Content-Length"),
        (CHUNKED + b"data: x\n\n", "--raw"),
        (CHUNKED + b"-3\r\nabc\r\n", "--raw"),
        (CHUNKED + b"f" * 40, "--raw"),
    ],
)
def test_what_is_no_response_is_named(tmp_path: Path, raw: bytes, problem: str) -> None:
    """The error names the file and the fault, and shows none of the content."""
    with pytest.raises(InputError, match=problem) as caught:
        read(tmp_path / "a.http", raw)
    assert caught.value.path == str(tmp_path / "a.http")


def test_missing_file_and_directory_are_named(tmp_path: Path) -> None:
    """What can't be opened is an input error with the system's words."""
    for path in (tmp_path / "none.http", tmp_path):
        with pytest.raises(InputError, match="can't be opened"), open_answer(path, "body"):
            pass
        with pytest.raises(InputError, match="can't be opened"):
            list(read_records(path))


def test_fields_of_the_head(tmp_path: Path) -> None:
    """Names in any case; a coding on the way counts as a content coding."""
    answer, _ = read(tmp_path / "a.http", b"HTTP/1.1 502 Bad\r\nCONTENT-type:  a/b ; c\r\n\r\n")
    assert (answer.status, answer.content_type, answer.content_encoding) == (502, "a/b ; c", None)
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n0\r\n\r\n"
    assert read(tmp_path / "b.http", raw)[0].content_encoding == "gzip"
    raw = b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n\r\n"
    assert read(tmp_path / "c.http", raw)[0].content_encoding == "br"


def test_bare_body_has_no_status(tmp_path: Path) -> None:
    """A bare body is whole by definition and is what its suffix says."""
    answer, body = read(tmp_path / "a.sse", b"data: x", "body")
    assert (answer.status, answer.content_type, answer.clean) == (None, "text/event-stream", True)
    assert body == b"data: x"
    assert read(tmp_path / "a.json", b"{}", "body")[0].content_type == "application/json"


@pytest.mark.parametrize(
    ("name", "start", "kind"),
    [
        ("a.http", b"", "response"),
        ("a.SSE", b"HTTP/1.1 200 OK\r\n", "body"),
        ("a.jsonl", b"", "records"),
        ("a.json", b'{"tokens": []}\n', "body"),
        ("a", b"HTTP/1.1 200 OK\r\n", "response"),
        ("a.log", b"data: {}\n\n", "body"),
        ("a.txt", b'\xef\xbb\xbf{"id": "a", "tokens": []}\n', "records"),
        ("a.txt", b'{"choices": []}\n', "body"),
        ("a.txt", b"", "body"),
    ],
)
def test_kind_by_suffix_else_by_content(
    tmp_path: Path, name: str, start: bytes, kind: Kind
) -> None:
    """A known suffix decides; any other name is told by its first bytes."""
    (tmp_path / name).write_bytes(start)
    assert kind_of(tmp_path / name) == kind


def test_large_bodies_are_not_held(tmp_path: Path) -> None:
    """A body comes in pieces: memory does not grow with the file."""
    body = b"x" * (4 * 1024 * 1024)
    path = tmp_path / "a.http"
    path.write_bytes(CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    tracemalloc.start()
    try:
        with open_answer(path, "response") as answer:
            sizes = [len(piece) for piece in answer.pieces()]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(sizes) == len(body)
    assert max(sizes) <= PIECE_BYTES
    assert peak < 8 * PIECE_BYTES


# --------------------------------------------------------------------------- JSON Lines


def lines(path: Path, *text: str) -> list[TokenRecord | InputError]:
    path.write_text("\n".join(text), encoding="utf-8")
    return list(read_records(path))


def test_records_hold_ids_and_entries(tmp_path: Path) -> None:
    """Unknown fields are ignored; alternatives may be missing; blank lines say nothing."""
    got = lines(
        tmp_path / "a.jsonl",
        '\ufeff{"x": {"y": 1}, "id": "one", "tokens": [["a", -0.5, [["a", -0.5], ["b", null]]]]}',
        "",
        '{"id": 2, "tokens": [["a", -1], [null, null, null], ["", 0.0, []]]}\r',
        '{"tokens": []}',
    )
    two = [Alternative("a", -0.5), Alternative("b")]
    assert got == [
        TokenRecord("one", (Entry("a", -0.5, None, two),)),
        TokenRecord("2", (Entry("a", -1.0), Entry(), Entry("", 0.0, None, []))),
        TokenRecord(None, ()),
    ]


@pytest.mark.parametrize(
    "literal", ["NaN", "-Infinity", "1e999", "true", '"-1"', "[]", "9" * 5000, "1" + "0" * 310]
)
def test_what_is_no_number_makes_an_entry_without_one(tmp_path: Path, literal: str) -> None:
    """A line with an odd number is a record all the same."""
    (record,) = lines(tmp_path / "a.jsonl", f'{{"id": "a", "tokens": [["t", {literal}]]}}')
    assert record == TokenRecord("a", (Entry("t"),))


def test_lone_surrogate_in_an_id_is_replaced(tmp_path: Path) -> None:
    """An id must be printable, whatever it was."""
    (record,) = lines(tmp_path / "a.jsonl", '{"id": "a\\ud800", "tokens": []}')
    assert record == TokenRecord("a?", ())


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "no JSON object"),
        ("[1]", "no JSON object"),
        ('{"id": "a"}', "no JSON object"),
        ('{"tokens": {}}', "no JSON object"),
        ("[" * 100_000, "no JSON object"),
        ('{"tokens": ["a"]}', "token 1 is no list"),
        ('{"tokens": [["a", -1], ["a"]]}', "token 2 is no list"),
        ('{"tokens": [[1, -1]]}', "token 1 is no list"),
        ('{"tokens": [["a", -1, 5]]}', "alternatives of token 1"),
        ('{"tokens": [["a", -1, ["b"]]]}', "alternative of token 1"),
        ('{"tokens": [["a", -1, [["b", -1, 3]]]]}', "alternative of token 1"),
    ],
)
def test_malformed_line_is_named_and_skipped(tmp_path: Path, line: str, problem: str) -> None:
    """The error names file and line; the lines around it are read."""
    good = '{"id": "g", "tokens": []}'
    first, bad, last = lines(tmp_path / "a.jsonl", good, line, good)
    assert first == last == TokenRecord("g", ())
    assert isinstance(bad, InputError)
    assert bad.path == f"{tmp_path / 'a.jsonl'}:2"
    assert problem in bad.problem


def test_endless_line_is_named_and_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line above the limit is never held whole."""
    monkeypatch.setattr("streamguard.records.recordings.MAX_LINE_BYTES", 100)
    good = '{"id": "g", "tokens": []}'
    exact = good + " " * (100 - len(good) - 1)
    got = lines(tmp_path / "a.jsonl", "x" * 200_000, good, exact, "y" * 101)
    assert [isinstance(item, InputError) for item in got] == [True, False, False, True]
