"""Where one event ends and what its data is, over bytes, for every line ending and every cut."""

from __future__ import annotations

import itertools
import time

import pytest

from streamguard.core.events import SseEvent
from streamguard.core.sse import SseParser, fields_of

ENDS = [b"\n", b"\r\n", b"\r"]
BOM = b"\xef\xbb\xbf"


def parse(*reads: bytes, limit: int = 1000) -> tuple[list[SseEvent], SseEvent | None]:
    """Every event handed out, and what the end of the body gives."""
    parser = SseParser(max_event_bytes=limit)
    events = [event for read in reads for event in parser.feed(read)]
    assert not parser.oversize
    last = parser.end()
    raws = [event.raw for event in events] + ([last.raw] if last else [])
    assert b"".join(raws) == b"".join(reads), "the raws joined are the input"
    assert parser.held_bytes == 0
    return events, last


def payloads(*reads: bytes) -> list[bytes]:
    """The data of the events that have some, the unterminated last one apart."""
    events, _ = parse(*reads)
    return [event.data for event in events if event.data is not None]


# --------------------------------------------------------------------------- line ends


@pytest.mark.parametrize("end", ENDS)
def test_each_line_ending_ends_an_event(end: bytes) -> None:
    """CR, LF and CRLF; the raw bytes keep theirs."""
    body = (b"data: a" + end * 2) + (b"data: b" + end * 2) + b": c"
    events, _ = parse(body)

    assert [(e.raw, e.data) for e in events] == [
        (b"data: a" + end * 2, b"a"),
        (b"data: b" + end * 2, b"b"),
    ]


@pytest.mark.parametrize("ends", list(itertools.product(ENDS, repeat=3)))
def test_line_endings_may_be_mixed(ends: tuple[bytes, bytes, bytes]) -> None:
    """Each line on its own."""
    one, two, three = ends
    body = b"data: a" + one + b"data: b" + two + three + b"data: c" + one + two + b":"
    # CR followed by LF is one line end whoever wrote them, so some of these have no blank line.
    lines = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    expected = [block.replace(b"data: ", b"") for block in lines.split(b"\n\n") if b"data" in block]
    if not lines.endswith(b"\n\n:"):
        expected.pop()  # the last event is not over

    assert payloads(body) == [text.strip(b"\n") for text in expected]


def test_a_crlf_may_be_cut_anywhere() -> None:
    """A CR at the end of a read may have its LF in the next one."""
    body = b"data: a\r\ndata: b\r\n\r\ndata: c\r\n\r\n: end\r\n\r\n"
    for at in range(len(body)):
        assert payloads(body[:at], body[at:]) == [b"a\nb", b"c"]


def test_a_cr_that_ends_an_event_waits_for_its_lf() -> None:
    """In a CRLF stream the event is handed out with all of its line end."""
    parser = SseParser()

    assert parser.feed(b"data: a\r\n\r") == []
    assert parser.feed(b"\n") == [SseEvent(b"data: a\r\n\r\n", b"a")]


def test_a_cr_stream_does_not_wait() -> None:
    """Once lone CRs are seen an event ends with its second one; a late LF is a filler."""
    parser = SseParser()

    assert parser.feed(b"data: a\r\r") == [SseEvent(b"data: a\r\r", b"a")]
    assert parser.feed(b"\n") == [SseEvent(b"\n", None)]


@pytest.mark.parametrize("text", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1e"])
def test_nothing_else_ends_a_line(text: str) -> None:
    """What str.splitlines takes for a line end is payload here."""
    body = b'data: "' + text.encode() + b'"\n\n'
    assert payloads(body) == [b'"' + text.encode() + b'"']


# --------------------------------------------------------------------------- what is in an event


@pytest.mark.parametrize(
    ("block", "data"),
    [
        (b"data: x", b"x"),
        (b"data:x", b"x"),
        (b"data:  x", b" x"),
        (b"data:x ", b"x "),
        (b"data", None),
        (b"data:", None),
        (b"data: ", None),
        (b"data\ndata", b"\n"),
        (b"data: a\ndata: b", b"a\nb"),
        (b"data: a\ndata\ndata: b", b"a\n\nb"),
        (b"data: a\n: comment\ndata: b", b"a\nb"),
        (b" data: x", None),
        (b"Data: x", None),
        (b"datas: x", None),
        (b"data : x", None),
        (b"data: a:b: c", b"a:b: c"),
        (b"id: 1\nretry: 5", None),
        (b"data: x\nid: 1\nretry: 5", b"x"),
        (b"nonsense\ndata: x", b"x"),
    ],
)
def test_fields(block: bytes, data: bytes | None) -> None:
    """As the standard reads a block; an empty payload is none."""
    for end in ENDS:
        text = block.replace(b"\n", end) + end * 2 + b":"
        assert [(e.raw, e.data) for e in parse(text)[0]] == [(text[:-1], data)]
        assert fields_of(block.replace(b"\n", end)) == (b"", data)


def test_the_event_field() -> None:
    """Its last value; empty where none was sent."""
    events, _ = parse(b"event: a\nevent: error\ndata: x\n\ndata: y\n\nevent\ndata: z\n\n")
    assert [(e.name, e.data) for e in events] == [(b"error", b"x"), (b"", b"y"), (b"", b"z")]


def test_bytes_that_are_no_text() -> None:
    """Invalid UTF-8, NUL and cut characters pass; a character may be cut between reads."""
    assert payloads(b"data: \xff\x00\xc3\n\n") == [b"\xff\x00\xc3"]
    text = "data: \u65e5\u672c \U0001f600\n\n".encode()
    for at in range(len(text)):
        assert payloads(text[:at], text[at:]) == [text[6:-2]]


# --------------------------------------------------------------------------- between events


def test_comments_and_blank_lines_are_handed_out_at_once() -> None:
    """A keep-alive is not held back until the next event."""
    parser = SseParser()

    assert parser.feed(b": ping\n") == [SseEvent(b": ping\n", None)]
    assert parser.feed(b"\n\n") == [SseEvent(b"\n\n", None)]
    assert parser.feed(b": pi") == []
    assert parser.feed(b"ng\ndata: x\n\n") == [
        SseEvent(b": ping\n", None),
        SseEvent(b"data: x\n\n", b"x"),
    ]


def test_a_comment_inside_an_event_is_part_of_it() -> None:
    """Its bytes belong to the block."""
    block = b"data: a\n: c\ndata: b\n\n"
    assert parse(block)[0] == [SseEvent(block, b"a\nb")]


def test_one_byte_order_mark_is_skipped() -> None:
    """The first only, also where reads cut it; it is handed out as a filler."""
    body = BOM + b"data: x\n\n"
    for at in range(5):
        events, _ = parse(body[:at], body[at:])
        assert (events[0], events[-1].data) == (SseEvent(BOM, None), b"x")
    assert payloads(BOM * 2 + b"data: x\n\n") == []
    assert payloads(b"\n" + BOM + b"data: x\n\n") == []


# --------------------------------------------------------------------------- the end


@pytest.mark.parametrize("rest", [b"data: x", b"data: x\n", b"data: x\r", b"data: x\r\n\r"])
def test_an_unterminated_event_is_given_at_the_end(rest: bytes) -> None:
    """Other readers drop it; here it is evidence that was paid for."""
    events, last = parse(b"data: a\r\n\r\n", rest)
    assert ([e.data for e in events], last) == ([b"a"], SseEvent(rest, b"x"))


def test_the_end_of_nothing() -> None:
    """Nothing held, nothing given; half a mark is bytes like others."""
    assert parse(b"data: a\n\n")[1] is None
    assert parse()[1] is None
    assert parse(BOM[:2])[1] == SseEvent(BOM[:2], None)


def test_peek_and_rest() -> None:
    """What is held can be seen, and taken once."""
    parser = SseParser()
    parser.feed(b"data: a\n\ndata: b")

    assert (parser.peek(), parser.held_bytes) == (b"data: b", 7)
    assert (parser.rest(), parser.held_bytes, parser.rest()) == (b"data: b", 0, b"")


# --------------------------------------------------------------------------- limits


def test_an_event_as_large_as_the_limit_passes() -> None:
    """The limit counts raw bytes, line ends included."""
    body = b"data: " + b"x" * 92 + b"\n\n"
    assert len(body) == 100
    for at in range(101):
        parser = SseParser(max_event_bytes=100)
        events = parser.feed(body[:at]) + parser.feed(body[at:])
        assert ([e.raw for e in events], parser.oversize) == ([body], False)


@pytest.mark.parametrize("block", [b"data: ", b": "])
def test_one_byte_more_is_oversize(block: bytes) -> None:
    """However it is cut: nothing more is handed out, and nothing is lost."""
    large = block + b"x" * (99 - len(block)) + b"\n\n"
    body = b"data: a\n\n" + large + b"data: b\n\n"
    for at in range(len(body) + 1):
        parser = SseParser(max_event_bytes=99)
        events = parser.feed(body[:at]) + parser.feed(body[at:])
        assert parser.oversize
        assert b"".join(e.raw for e in events) + parser.peek() == body
        assert parser.feed(b"more") == []
        assert parser.rest().endswith(b"data: b\n\nmore")


def test_fillers_are_no_event_together() -> None:
    """How many comments and blank lines came in one read must not matter."""
    for filler in (b": ping\n\n", b"\n", b": ping\r\n\r\n"):
        parser = SseParser(max_event_bytes=20)
        body = filler * 50
        raws = [event.raw for event in parser.feed(body + b":")]
        assert not parser.oversize
        assert b"".join(raws) == body[: sum(map(len, raws))]
        assert len(body) - sum(map(len, raws)) <= 20


@pytest.mark.parametrize("size", [1, 7, 65536])
def test_time_is_linear(size: int) -> None:
    """Megabytes in small reads cost far less than a second; a quadratic join would cost minutes."""
    total = 400_000 if size == 1 else 4_000_000
    body = b"data: " + b"x" * total + b"\n\n"
    parser = SseParser(max_event_bytes=8_000_000)
    begin = time.perf_counter()
    count = sum(len(parser.feed(body[at : at + size])) for at in range(0, len(body), size))

    assert count == 1
    assert time.perf_counter() - begin < 10
