"""The two edits ever made to an event: nulls by span, and dead choices out."""

from __future__ import annotations

import json
import time

import pytest
from tests.reference.build import D, E, L, event

from streamguard.core.edits import line_end, put_null, without_choices
from streamguard.core.events import SseEvent
from streamguard.core.jsonspan import find_spans
from streamguard.core.sse import fields_of


def nulled(raw: bytes) -> bytes:
    """The event with every `choices[].logprobs` as null."""
    name, data = fields_of(raw)
    assert data is not None
    spans = tuple(find_spans(data, ("choices", None, "logprobs")))
    return put_null(SseEvent(raw, data, name), spans)


@pytest.mark.parametrize(
    ("raw", "end"),
    [
        (b"data: x\n\n", b"\n"),
        (b"data: x\r\n\r\n", b"\r\n"),
        (b"data: x\r\r", b"\r"),
        (b"data: x\r\n\n", b"\n"),
        (b"data: x", b"\n"),
    ],
)
def test_the_line_end_of_an_event(raw: bytes, end: bytes) -> None:
    """The one that it ends with; LF where it has none."""
    assert line_end(raw) == end


ONE = b'{"id":"x","choices":[{"index":0,"logprobs":{"content":[1]},"x":[2]}]}'
NULL = b'{"id":"x","choices":[{"index":0,"logprobs":null,"x":[2]}]}'


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(
    "before", [b"data: ", b"data:", b"data:  ", b": c\ndata: ", b"id: 1\ndata:"]
)
def test_one_data_line(before: bytes, end: bytes) -> None:
    """Wherever the line stands in its event, nothing else changes."""
    before = before.replace(b"\n", end)
    assert nulled(before + ONE + end * 2) == before + NULL + end * 2


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_data_over_several_lines(end: bytes) -> None:
    """A value that spans lines becomes one null; lines outside it stay as they are."""
    lines = [
        b'data: {"choices":[',
        b": a comment",
        b'data:{"logprobs": {"content":',
        b"data:   [1,",
        b'data: 2]}, "x":',
        b"data",
        b"event: e",
        b'data: 3}, {"logprobs":4}]}',
    ]
    expected = [
        b'data: {"choices":[',
        b": a comment",
        b'data:{"logprobs": null, "x":',
        b"data",
        b"event: e",
        b'data: 3}, {"logprobs":null}]}',
    ]
    assert nulled(end.join(lines) + end * 2) == end.join(expected) + end * 2


def test_a_value_at_the_edges_of_its_line() -> None:
    """From the first byte of a line to the last of another."""
    raw = b'data: {"choices":[{"logprobs":\ndata: {"a":\ndata: 1}\ndata: }]}\n\n'
    assert nulled(raw) == b'data: {"choices":[{"logprobs":\ndata: null\ndata: }]}\n\n'


def test_an_event_without_its_blank_line() -> None:
    """The last of a body may lack its line ends."""
    assert nulled(b"data: " + ONE) == b"data: " + NULL
    assert nulled(b": c\ndata: " + ONE) == b": c\ndata: " + NULL


def test_no_spans_no_change() -> None:
    """Nothing to take out: the bytes as they came."""
    found = SseEvent(b"data: " + ONE + b"\n\n", ONE)
    assert put_null(found, ()) == found.raw
    assert put_null(SseEvent(b": c\n", None), ((0, 1),)) == b": c\n"


# --------------------------------------------------------------------------- dead choices


def choices(*indices: int) -> bytes:
    """An event that speaks for these choices."""
    listed = [
        {"index": i, "delta": {"content": str(i)}, "logprobs": L(E("a", -1))} for i in indices
    ]
    return event({"id": "x", "choices": listed, "usage": None})


@pytest.mark.parametrize(
    ("there", "dead", "left"),
    [
        ((0, 1), {0}, (1,)),
        ((0, 1, 2), {1}, (0, 2)),
        ((2, 0, 1), {2, 1}, (0,)),
        ((0, 0, 1), {0}, (1,)),
    ],
)
def test_dead_choices_are_taken_out(
    there: tuple[int, ...], dead: set[int], left: tuple[int, ...]
) -> None:
    """The living ones keep their bytes and their order."""
    assert without_choices(choices(*there), dead) == choices(*left)


def test_an_event_of_dead_choices_only_is_dropped() -> None:
    """It speaks for nobody any more."""
    assert without_choices(choices(0, 1), {0, 1, 2}) == b""


def test_what_speaks_for_no_dead_choice_stays() -> None:
    """Usage chunks, end marks, comments and living choices, to the byte."""
    usage = event({"choices": [], "usage": {}})
    for raw in (choices(1), usage, D, b": ping\n\n", b'data: {"choices": 1}\n\n'):
        assert without_choices(raw, {0}) == raw


def test_a_choice_without_an_index_is_the_first() -> None:
    """As it is read, so it is silenced; an index that makes no sense counts as none."""
    raw = event({"choices": [{"text": "a"}, {"index": "x"}, {"index": -1}, {"index": 1}]})
    assert json.loads(without_choices(raw, {0})[6:]) == {"choices": [{"index": 1}]}


@pytest.mark.parametrize(
    "odd", [b"NaN", b"1e999", b'"\\ud800"', b'"\xff"', b"[" * 600 + b"]" * 600]
)
def test_an_odd_value_does_not_change_who_speaks(odd: bytes) -> None:
    """What the typed decoder refuses is read again: a living choice is not taken for the first."""
    living = b'{"index":1,"logprobs":' + odd + b"}"
    assert without_choices(b'data: {"choices":[' + living + b"]}\n\n", {0}) != b""
    both = b'data: {"choices":[{"index":0},' + living + b"]}\n\n"
    assert without_choices(both, {0}) == b'data: {"choices":[' + living + b"]}\n\n"


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_several_lines_become_one(end: bytes) -> None:
    """The line ends between JSON tokens are blanks; the event's own line end stays."""
    raw = end.join((b'data: {"choices":[{"index":0},', b'data: {"index":1}],', b'data: "a":1}'))
    expected = b'data: {"choices":[{"index":1}], "a":1}' + end * 2
    assert without_choices(raw + end * 2, {0}) == expected


def test_choices_given_twice() -> None:
    """Readers take the last one: nothing of a dead choice may be left in it."""
    raw = b'data: {"choices":[{"index":1}],"choices":[{"index":0,"text":"dead"},{"index":1}]}\n\n'
    assert b"dead" not in without_choices(raw, {0})


def test_many_values_over_many_lines_cost_linear_time() -> None:
    """Sixteen thousand values in as many data lines: a moment, not minutes (wide bound)."""
    lines = [b'{"choices":['] + [b'{"logprobs":1},'] * 16_000 + [b'{"logprobs":1}]}']
    raw = b"".join(b"data:" + line + b"\n" for line in lines) + b"\n"
    payload = b"\n".join(lines)
    spans = tuple(find_spans(payload, ("choices", None, "logprobs")))

    begun = time.perf_counter()
    edited = put_null(SseEvent(raw, payload), spans)

    assert edited == raw.replace(b":1", b":null")
    assert time.perf_counter() - begun < 5
