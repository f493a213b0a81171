"""SseParser against other readers of event streams, on generated and on recorded bodies.

The others are httpx-sse, the OpenAI SDK's decoder, and a slow one written here from the HTML
standard (9.2.6) alone. Known differences, each with a test of its own below:

* All three drop an event without its blank line; ours gives it at the end.
* An event with empty data is none to us (the standard dispatches it, nobody sends it).
* httpx-sse and the SDK keep a byte order mark as text and lose the first event.
* A CR that ends the body's last event may still get its LF, so ours waits for one byte more, or
  for the end.
* The SDK gives an empty event for every blank line once an `id` was seen, and raises on bytes
  that are no UTF-8.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import httpx
import pytest
from httpx_sse import EventSource
from hypothesis import given, settings
from hypothesis import strategies as st
from openai._streaming import SSEDecoder
from tests.conformance import corpus

from streamguard.core.sse import SseParser

Event = tuple[str, bytes]
"""Its name, empty for none, and its data."""
BOM = b"\xef\xbb\xbf"
EXAMPLES = settings(max_examples=200, deadline=None)


# --------------------------------------------------------------------------- the readers


def ours(reads: list[bytes]) -> list[Event]:
    """The events that SseParser gives before the end of the body."""
    parser = SseParser()
    # A CR at the very end may still wait for an LF of its own: one more byte settles it.
    events = [event for read in [*reads, b":"] for event in parser.feed(read)]
    assert b"".join(e.raw for e in events) + parser.rest() == b"".join(reads) + b":"
    return [(e.name.decode("utf-8", "replace"), e.data) for e in events if e.data is not None]


def unterminated(body: bytes) -> bytes | None:
    """The data of the event that SseParser gives at the end."""
    parser = SseParser()
    parser.feed(body)
    last = parser.end()
    return last.data if last else None


def httpx_sse(body: bytes) -> list[Event]:
    """httpx-sse, events without data left out; its name for no name is "message"."""
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    return [
        ("" if event.event == "message" else event.event, event.data.encode())
        for event in EventSource(response).iter_sse()
        if event.data
    ]


def openai_sdk(reads: list[bytes]) -> list[Event]:
    """The decoder that every OpenAI stream goes through, events without data left out."""
    return [
        (event.event or "", event.data.encode())
        for event in SSEDecoder().iter_bytes(iter(reads))
        if event.data
    ]


def standard(body: bytes) -> list[Event]:
    """Section 9.2.6, sentence by sentence, one byte at a time; empty data left out."""
    events: list[Event] = []
    name, data = b"", b""
    for line in lines(body.removeprefix(BOM)):
        if line == b"":
            # "If the data buffer is an empty string, set the data buffer and the event type
            # buffer to the empty string and return."
            if data.endswith(b"\n"):
                data = data[:-1]
                if data:
                    events.append((name.decode("utf-8", "replace"), data))
            name, data = b"", b""
            continue
        if line[:1] == b":":
            continue
        field, value = line, b""
        if b":" in line:
            place = line.index(b":")
            field, value = line[:place], line[place + 1 :]
            if value[:1] == b" ":
                value = value[1:]
        if field == b"event":
            name = value
        elif field == b"data":
            data += value + b"\n"
    # "Once the end of the file is reached, any pending data must be discarded."
    return events


def lines(body: bytes) -> Iterator[bytes]:
    """Each line that has an end: CRLF, LF or CR."""
    line = b""
    at = 0
    while at < len(body):
        byte = body[at : at + 1]
        at += 1
        if byte == b"\r":
            if body[at : at + 1] == b"\n":
                at += 1
            yield line
            line = b""
        elif byte == b"\n":
            yield line
            line = b""
        else:
            line += byte


# --------------------------------------------------------------------------- generated bodies

TEXT = st.sampled_from(
    [
        "",
        "x",
        " ",
        "{}",
        "[DONE]",
        ":",
        "a:b",
        "\u2028",
        "\x85",
        "\x0b\x0c\x1c",
        "é\U0001f600",
        "\x00",
    ]
)
FIELDS = st.sampled_from(
    ["data: ", "data:", "data", "event: ", "event:", "event", ": ", ":", "retry: ", "x: ", " data:"]
)
ENDS = st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"])


@st.composite
def bodies(draw: st.DrawFn, *, ids: bool = True) -> bytes:
    """Lines of any kind under any line ends, blank ones often."""
    body = b""
    one = draw(st.none() | ENDS)
    for _ in range(draw(st.integers(0, 14))):
        line = b""
        if draw(st.integers(0, 2)):
            field = draw(FIELDS) if not ids or draw(st.integers(0, 5)) else "id: "
            line = (field + draw(TEXT)).encode()
        body += line + (one or draw(ENDS))
    return body + draw(st.sampled_from([b"", b"", b"data: cut", b"data", b":"]))


@st.composite
def cut(draw: st.DrawFn, body: bytes) -> list[bytes]:
    """The same bytes as several reads, empty ones left out."""
    places = sorted(draw(st.lists(st.integers(0, len(body)), max_size=6)))
    return [body[a:b] for a, b in itertools.pairwise([0, *places, len(body)]) if a < b]


@EXAMPLES
@given(st.data())
def test_the_standard(data: st.DataObject) -> None:
    """Every body, however it is cut, with and without a byte order mark."""
    body = data.draw(st.sampled_from([b"", b"", BOM])) + data.draw(bodies())
    assert ours(data.draw(cut(body))) == standard(body)


@EXAMPLES
@given(st.data())
def test_any_bytes_against_the_standard(data: st.DataObject) -> None:
    """Made of the bytes that matter, and of anything."""
    alphabet = st.sampled_from([b"data:", b"data", b":", b" ", b"\r", b"\n", b"\r\n", b"\xff"])
    body = data.draw(st.lists(alphabet, max_size=25).map(b"".join) | st.binary(max_size=60))
    assert ours(data.draw(cut(body))) == standard(body)


@EXAMPLES
@given(st.data())
def test_httpx_sse(data: st.DataObject) -> None:
    """The same events for every body without a mark."""
    body = data.draw(bodies())
    assert ours(data.draw(cut(body))) == httpx_sse(body)


@EXAMPLES
@given(st.data())
def test_the_openai_sdk(data: st.DataObject) -> None:
    """The same events for every body without a mark, the reads cut the same way."""
    body = data.draw(bodies())
    reads = data.draw(cut(body))
    assert ours(reads) == openai_sdk(reads)


# --------------------------------------------------------------------------- recorded bodies

RECORDED = [
    name for name in corpus.NAMES if corpus.response(name).content_type == "text/event-stream"
]


def test_recorded_bodies() -> None:
    """Real servers' streams: four readers, one reading."""
    assert len(RECORDED) > 100
    for name in RECORDED:
        body = corpus.response(name).body
        reads = [body[at : at + 997] for at in range(0, len(body), 997)]
        found = ours(reads)
        assert found == httpx_sse(body) == openai_sdk(reads), name
        assert unterminated(body) is None, name  # even those that break off: between events
        if len(body) < 20_000:
            assert found == standard(body), name


# --------------------------------------------------------------------------- known differences


def test_the_others_drop_an_unterminated_event() -> None:
    """For us it is evidence that was paid for."""
    body = b"data: a\n\ndata: b\n"
    assert (ours([body]), unterminated(body)) == ([("", b"a")], b"b")
    assert httpx_sse(body) == openai_sdk([body]) == standard(body) == [("", b"a")]


def test_a_cr_at_the_very_end() -> None:
    """The others need not know whose an LF behind it would be."""
    body = b"data: a\r\n\r"
    assert SseParser().feed(body) == []
    assert (ours([body]), unterminated(body)) == ([("", b"a")], b"a")
    assert httpx_sse(body) == openai_sdk([body]) == standard(body) == [("", b"a")]


def test_the_others_lose_the_first_event_to_a_mark() -> None:
    """One leading BOM is no text."""
    body = BOM + b"data: a\n\ndata: b\n\n"
    assert ours([body]) == standard(body) == [("", b"a"), ("", b"b")]
    assert httpx_sse(body) == openai_sdk([body]) == [("", b"b")]


def test_the_sdk_invents_empty_events_after_an_id() -> None:
    """Its check for emptiness looks at the last id, which is kept on purpose."""
    body = b"id: 1\ndata: a\n\n\n\n"
    assert ours([body]) == [("", b"a")]
    assert [event.data for event in SSEDecoder().iter_bytes(iter([body]))] == ["a", "", ""]


def test_the_sdk_raises_on_bytes_that_are_no_text() -> None:
    """We pass them on: what they mean is the client's business."""
    body = b"data: \xff\n\n"
    assert ours([body]) == standard(body) == [("", b"\xff")]
    with pytest.raises(UnicodeDecodeError):
        openai_sdk([body])


@pytest.mark.parametrize(
    "text", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"]
)
def test_the_traps_of_splitlines(text: str) -> None:
    """str.splitlines would cut here; none of the readers does."""
    body = f'data: {{"a":"x{text}y"}}\n\n'.encode()
    expected = [("", body[6:-2])]
    assert len(body.decode().splitlines()) == 3
    assert ours([body]) == httpx_sse(body) == openai_sdk([body]) == standard(body) == expected
