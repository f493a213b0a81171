"""Reading one event: every shape met in the wild, and what no decoder likes."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.build import C, E, L, T, U, legacy

from streamguard.core.dialects import DIALECTS, Reader, Reading, lenient, read_answer
from streamguard.core.events import Alternative, ChoiceDelta, Chunk, Entry


def payload(raw: bytes) -> bytes:
    """The data of a one-line event."""
    return raw[6:-2]


def chunk(logprobs: Any, **more: Any) -> bytes:
    """One chat chunk with this logprobs value."""
    choice = {"index": 0, "delta": {"content": "a"}, "logprobs": logprobs, "finish_reason": None}
    return json.dumps({"choices": [choice | more]}).encode()


def entries(data: bytes, **how: bool) -> list[Entry]:
    """What the first choice carries."""
    reading = Reader(**how).read(data)
    assert reading.kind == "chunk"
    assert reading.chunk is not None
    return list(reading.chunk.choices[0].entries)


def logprobs_of(data: bytes) -> list[float | None]:
    """Their logprobs, the same for each way to read."""
    found = [entry.logprob for entry in entries(data)]
    assert found == [entry.logprob for entry in entries(data, locate=True)]
    return found


# --------------------------------------------------------------------------- kinds


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"[DONE]", "done"),
        (b" [DONE]", "unparsable"),
        (b'"[DONE]"', "foreign"),
        (b'{"choices":[]}', "chunk"),
        (b'{"choices":null}', "foreign"),
        (b'{"type":"ping"}', "foreign"),
        (b"{}", "foreign"),
        (b"[]", "foreign"),
        (b"1", "foreign"),
        (b'{"error":{"message":"x"}}', "error"),
        (b'{"error":"x"}', "error"),
        (b'{"error":{"message":"x"},"choices":[]}', "error"),
        (b'{"object":"error","message":"x"}', "error"),
        (b'{"error":null,"choices":[]}', "chunk"),
        (b'{"error":{},"choices":[]}', "chunk"),
        (b'{"error":"","choices":[]}', "chunk"),
        (b'{"error":false}', "foreign"),
        (b"{", "unparsable"),
        (b"", "unparsable"),
        (b"null", "unparsable"),
        (b"data", "unparsable"),
        (b'{"choices":[]} x', "unparsable"),
    ],
)
def test_what_a_payload_is(data: bytes, kind: str) -> None:
    """One answer, for every way to read it."""
    for reader in (Reader(), Reader(locate=True), Reader(texts=True)):
        assert reader.read(data).kind == kind
    assert Reader().read_ends(data).kind == kind
    assert read_answer(data).kind == kind


def test_an_event_named_error_is_one() -> None:
    """Whatever it holds, the end mark apart."""
    for data in (b"x", b'{"choices":[]}'):
        assert Reader().read(data, b"error").kind == "error"
        assert Reader().read_ends(data, b"error").kind == "error"
    assert Reader().read(b"[DONE]", b"error").kind == "done"
    assert Reader().read(b'{"choices":[]}', b"message").kind == "chunk"


@pytest.mark.parametrize(
    ("data", "dialect"),
    [
        (payload(C(0, "a")), "chat"),
        (payload(T("a")), "completions"),
        (b'{"choices":[{"message":{"content":"a"}}]}', "chat"),
        (b'{"choices":[]}', None),
        (payload(U(1)), None),
        (b'{"choices":[{"text":"a","logprobs":{"content":[]}}]}', "completions"),
    ],
)
def test_the_shape_of_what_arrives(data: bytes, dialect: str | None) -> None:
    """By the choice's own members, whatever the path or the logprobs look like."""
    assert Reader().read(data).dialect == dialect
    assert Reader().read(data.replace(b"{", b'{"x":NaN,', 1)).dialect == dialect


# --------------------------------------------------------------------------- entries


ABC = [{"token": "a", "logprob": -1.5, "bytes": [97], "top_logprobs": []}]


@pytest.mark.parametrize(
    "nothing",
    [
        None,
        {},
        {"content": None},
        {"content": []},
        {"content": None, "refusal": None},
        {"content": [], "refusal": []},
        {"tokens": None, "token_logprobs": None, "top_logprobs": None},
        {"tokens": [], "token_logprobs": []},
        {"tokens": [None], "token_logprobs": [None], "top_logprobs": [None]},
    ],
)
def test_nothing_to_add(nothing: Any) -> None:
    """Null, absent and empty are facts, never confidence 0 and never an end."""
    assert logprobs_of(chunk(nothing)) == []
    assert logprobs_of(b'{"choices":[{"index":0,"delta":{}}]}') == []


def test_chat_entries() -> None:
    """Token, number, bytes and alternatives as sent, unknown members skipped."""
    top = [{"token": "a", "logprob": -1.5, "bytes": [97], "id": 3}, {"token": "b"}]
    data = chunk({"content": [{"id": 3, **ABC[0], "top_logprobs": top, "x": {"y": [1]}}]})
    assert entries(data) == [
        Entry("a", -1.5, [97], [Alternative("a", -1.5, [97]), Alternative("b")])
    ]


def test_refusal_entries_count() -> None:
    """Alone or behind the content's."""
    assert logprobs_of(chunk({"content": None, "refusal": ABC})) == [-1.5]
    assert logprobs_of(chunk({"content": ABC, "refusal": ABC})) == [-1.5, -1.5]
    assert logprobs_of(chunk({"refusal": ABC, "content": []})) == [-1.5]


def test_completions_entries() -> None:
    """Parallel arrays, as far as the longer of tokens and numbers goes."""
    found = legacy(["a", "b"], [-1.0, -2.0], [{"a": -1.0, "c": -3.0}, None])
    assert entries(payload(T("ab", found))) == [
        Entry("a", -1.0, None, [Alternative("a", -1.0), Alternative("c", -3.0)]),
        Entry("b", -2.0),
    ]
    assert logprobs_of(chunk({"tokens": ["a", "b"], "token_logprobs": [-1]})) == [-1.0, None]
    assert logprobs_of(chunk({"token_logprobs": [-1, None, -2]})) == [-1.0, -2.0]
    assert logprobs_of(chunk({"tokens": ["a"], "token_logprobs": [None]})) == [None]


def test_either_shape_on_either_path() -> None:
    """llama-server answers completions with chat's lists; old servers the other way round."""
    assert logprobs_of(payload(T("a", {"content": ABC}))) == [-1.5]
    assert logprobs_of(chunk(legacy(["a"], [-1.5]))) == [-1.5]


def test_a_bare_number() -> None:
    """One provider's chat chunks carry a float in the object's place."""
    assert logprobs_of(chunk(-0.25)) == [-0.25]
    for odd in (True, "x", [1], math.nan):
        assert logprobs_of(chunk(odd)) in ([], [None])


@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_zero_one_or_many_entries(count: int) -> None:
    """A chunk is not a token."""
    assert logprobs_of(chunk({"content": ABC * count})) == [-1.5] * count


def test_a_unary_answer_is_one_event() -> None:
    """All entries and the finish, in either shape."""
    message = {"role": "assistant", "content": "aa"}
    choice = {"index": 0, "message": message, "logprobs": {"content": ABC * 2}}
    answer = json.dumps({"choices": [choice | {"finish_reason": "stop"}]}).encode()
    found = read_answer(answer)
    assert found.dialect == "chat"
    assert found.chunk == Chunk((ChoiceDelta(0, (Entry("a", -1.5, [97], []),) * 2, "stop"),))


# --------------------------------------------------------------------------- odd numbers


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-1.5", -1.5),
        ("0", 0.0),
        ("-0.0", 0.0),
        ("-9999.0", -9999.0),
        ("-3.4028234663852886e+38", -3.4028234663852886e38),
        ("1e-400", 0.0),
        ("0.5", 0.5),
        ("null", None),
        ("NaN", None),
        ("Infinity", None),
        ("-Infinity", None),
        ("1e999", None),
        ("-1e999", None),
        ('"-1.5"', None),
        ('""', None),
        ("true", None),
        ("false", None),
        ("[]", None),
        ("{}", None),
        ("[-1.5]", None),
        ("-" + "9" * 5000, None),
        ("9" * 399, None),
        ("123456789012345678901234567890", 123456789012345678901234567890.0),
    ],
)
def test_a_number_or_none(text: str, value: float | None) -> None:
    """Whatever stands in a logprob's place, it is one entry; its neighbours are read as ever."""
    first = '{"token":"a","logprob":?,"top_logprobs":[{"token":"a","logprob":?}]}'
    chat = '{"content":[' + first + ',{"token":"b","logprob":-2}]}'
    arrays = '{"tokens":["a","b"],"token_logprobs":[?,-2],"top_logprobs":[{"a":?},{}]}'
    for shape in (chat, arrays):
        found = '{"choices":[{"logprobs":' + shape.replace("?", text) + "}]}"
        assert logprobs_of(found.encode()) == [value, -2.0]


@pytest.mark.parametrize(
    "record",
    [
        {"token": "a"},
        {"token": None, "logprob": None},
        {"token": 7, "logprob": "x"},
        {"token": "a", "bytes": "a"},
        {"token": "a", "top_logprobs": {"a": -1}},
        {"token": "a", "top_logprobs": [None, 1, "x"]},
        {},
        [],
        "a",
        -1.5,
        True,
    ],
)
def test_a_record_without_a_number_is_an_entry(record: Any) -> None:
    """Missing keys, wrong types, no object at all: counted, never dropped."""
    found = entries(chunk({"content": [record, ABC[0]]}))
    assert [entry.logprob for entry in found] == [None, -1.5]


def test_a_null_record_says_nothing() -> None:
    """An empty place in the list is no token."""
    assert logprobs_of(chunk({"content": [None, ABC[0], None]})) == [-1.5]


@pytest.mark.parametrize("text", [b'"\\ud800"', b'"\xff"', b'"\xc3"', b'"\\ud83d"'])
def test_tokens_that_are_no_text(text: bytes) -> None:
    """Lone surrogates and bytes that are no UTF-8 hide no number."""
    data = b'{"choices":[{"logprobs":{"content":[{"token":%b,"logprob":-2}]}}]}' % text
    assert logprobs_of(data) == [-2.0]


@pytest.mark.parametrize(
    ("index", "read"),
    [("0", 0), ("1", 1), ("127", 127), ("-1", 0), ("null", 0), ('"1"', 0), ("true", 0), ("1e3", 0),
     ("1" * 30, 0), (str(lenient.MAX_INDEX), 0)],
)  # fmt: skip
def test_the_index(index: str, read: int) -> None:
    """One that makes no sense counts as 0, for every way to read."""
    data = f'{{"choices":[{{"index":{index},"delta":{{}},"finish_reason":"x"}}]}}'.encode()
    for reading in (
        Reader().read(data),
        Reader(locate=True).read(data),
        Reader().read_ends(data),
        Reader().read(data.replace(b"{", b'{"x":NaN,', 1)),
    ):
        assert reading.chunk is not None
        assert [(c.index, c.finish_reason) for c in reading.chunk.choices] == [(read, "x")]


@pytest.mark.parametrize("choices", [b"[null]", b"[1]", b'["x"]', b"[[]]"])
def test_choices_that_are_none(choices: bytes) -> None:
    """Skipped, like any other noise."""
    assert Reader().read(b'{"choices":%b}' % choices) == Reading("chunk", Chunk())
    assert Reader().read(b'{"choices":{}}').kind == "foreign"


# --------------------------------------------------------------------------- both paths agree

SCALARS = st.sampled_from(
    [None, "a", "", " ", -1.5, 0.0, -9999.0, 1e-7, 2, "\u2028", '"logprobs":']
)
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "token": st.sampled_from([None, "a", "é", '"logprobs"']),
        "logprob": st.sampled_from([None, -1.5, 0.0, -9999.0, 3]),
        "bytes": st.sampled_from([None, [], [97]]),
        "top_logprobs": st.sampled_from([None, [], [{"token": "b", "logprob": -2.0}]]),
        "extra": SCALARS,
    },
)
LISTS = st.none() | st.lists(RECORDS, max_size=3)
ARRAYS = st.fixed_dictionaries(
    {},
    optional={
        "tokens": st.none() | st.lists(st.sampled_from([None, "a"]), max_size=3),
        "token_logprobs": st.none() | st.lists(st.sampled_from([None, -1.0, 0.0]), max_size=3),
        "top_logprobs": st.none()
        | st.lists(st.sampled_from([None, {}, {"a": -1.0, "b": None}]), max_size=3),
        "content": LISTS,
        "refusal": LISTS,
    },
)
CHOICES = st.fixed_dictionaries(
    {},
    optional={
        "index": st.integers(0, 3),
        "delta": st.sampled_from(
            [None, {}, {"content": ""}, {"content": "a"}, {"reasoning": "r"}, {"tool_calls": [1]},
             {"role": "assistant", "content": None}]
        ),
        "text": st.sampled_from([None, "", "a"]),
        "logprobs": st.none() | ARRAYS,
        "finish_reason": st.sampled_from([None, "stop"]),
        "x": SCALARS,
    },
)  # fmt: skip
EVENTS = st.fixed_dictionaries(
    {"choices": st.lists(CHOICES, max_size=3)}, optional={"error": st.none(), "id": SCALARS}
)


@settings(max_examples=200, deadline=None)
@given(EVENTS, st.booleans(), st.sampled_from([None, 1]))
def test_the_cold_path_reads_what_the_typed_one_reads(
    value: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    """A NaN somewhere sends an event the other way: the evidence is the same."""
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    cold = text.replace(b"{", b'{"nan":NaN,', 1)
    for locate in (False, True):
        reader = Reader(locate=locate, texts=True)
        typed, lax = reader.read(text), reader.read(cold)
        assert (typed.kind, typed.chunk, typed.dialect) == (lax.kind, lax.chunk, lax.dialect)
        assert [text[a:b] for a, b in typed.logprobs] == [cold[a:b] for a, b in lax.logprobs]


@settings(max_examples=100, deadline=None)
@given(EVENTS, st.booleans(), st.sampled_from([None, 1]))
def test_the_places_are_those_of_the_values(
    value: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    """One place for each logprobs value of a choice that is not null, in order."""
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    places = Reader(locate=True).read(text).logprobs
    expected = [c["logprobs"] for c in value["choices"] if c.get("logprobs") is not None]
    assert [json.loads(text[start:end]) for start, end in places] == expected


def test_places_only_where_asked_for() -> None:
    """Looking for them costs, and nobody else needs them."""
    assert Reader().read(chunk({"content": ABC})).logprobs == ()


@pytest.mark.parametrize(
    "decoy",
    [
        b'"x":"logprobs","y":{"content":[]},',
        b'"delta":{"logprobs":{"content":[]}},',
        b'"delta":{"content":"\\"logprobs\\":{\\"content\\":[]}"},',
        b'"logprobs":{"content":[]},',
    ],
)
def test_places_behind_a_decoy(decoy: bytes) -> None:
    """The same word elsewhere is not the choice's own; a member given twice is found twice."""
    data = b'{"choices":[{%b"logprobs":{"content":[]}}]}' % decoy
    places = Reader(locate=True).read(data).logprobs
    assert places[-1] == (len(data) - 17, len(data) - 3)
    assert len(places) == 1 + decoy.startswith(b'"logprobs"')


# --------------------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("choice", "has"),
    [
        ({"delta": {"content": "a"}}, True),
        ({"delta": {"content": ""}}, False),
        ({"delta": {"content": None}}, False),
        ({"delta": {"role": "assistant"}}, False),
        ({"delta": {}}, False),
        ({"delta": None}, False),
        ({"delta": {"refusal": "no"}}, True),
        ({"delta": {"reasoning_content": "r"}}, True),
        ({"delta": {"reasoning": "r"}}, True),
        ({"delta": {"tool_calls": [{"index": 0}]}}, True),
        ({"delta": {"tool_calls": []}}, False),
        ({"text": "a"}, True),
        ({"text": ""}, False),
        ({}, False),
    ],
)
def test_whether_there_is_text(choice: dict[str, Any], has: bool) -> None:
    """Visible text, reasoning and tool calls; told only where asked for."""
    data = json.dumps({"choices": [choice]}).encode()
    for reader in (Reader(texts=True), Reader(texts=True, locate=True)):
        reading = reader.read(data)
        assert reading.chunk is not None
        assert reading.chunk.choices[0].has_text is has
    silent = Reader().read(data).chunk
    assert silent is not None
    assert not silent.choices[0].has_text


def test_reading_the_ends_only() -> None:
    """Finish reasons and errors, no entries."""
    data = payload(C(1, "a", L(E("a", -1)), "stop"))
    assert Reader().read_ends(data).chunk == Chunk((ChoiceDelta(1, (), "stop"),))


# --------------------------------------------------------------------------- hostile


HOSTILE = {
    "brackets": b"[" * 100_000,
    "closed brackets": b"[" * 100_000 + b"]" * 100_000,
    "objects": b'{"choices":' * 50_000,
    "deep choices": b'{"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep logprobs": b'{"choices":[{"logprobs":' + b"[" * 50_000 + b"]" * 50_000 + b"}]}",
    "deep delta": b'{"choices":[{"delta":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}]}",
    "digits": b'{"choices":[{"index":' + b"9" * 1_000_000 + b"}]}",
    "fraction": b'{"choices":[{"logprobs":0.' + b"9" * 900_000 + b"}]}",
    "many numbers": b'{"choices":[{"x":[' + b"9" * 300 + (b"," + b"9" * 300) * 3000 + b"]}]}",
    "quotes": b'{"choices":[{"x":"' + b'\\"' * 400_000 + b'"}]}',
    "keys": b'{"choices":[{' + b",".join(b'"logprobs":[]' for _ in range(60_000)) + b"}]}",
    "unclosed": b'{"choices":[{"x":"' + b"\\" * 900_001,
    "large and odd": b'{"choices":[{"x":NaN,"y":"' + b"y" * 4_000_000 + b'"}]}',
    "invalid": b"\xff" * 1_000_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_payloads_cost_bounded_time(name: str) -> None:
    """No exception, no seconds: read, or passed on marked."""
    begin = time.perf_counter()
    for reader in (Reader(), Reader(locate=True, texts=True)):
        assert reader.read(HOSTILE[name]).kind in ("chunk", "foreign", "unparsable")
    assert Reader().read_ends(HOSTILE[name]).kind in ("chunk", "foreign", "unparsable")
    assert time.perf_counter() - begin < 10


def test_what_is_too_large_for_the_cold_path_is_passed_on() -> None:
    """Bounded on purpose; the typed path has no such limit."""
    text = b"y" * lenient.MAX_BYTES
    assert lenient.load(b'"' + text + b'"') is None
    assert Reader().read(b'{"choices":[{"text":"' + text + b'"}]}').kind == "chunk"
    assert Reader().read(b'{"choices":[{"x":NaN,"text":"' + text + b'"}]}').kind == "unparsable"


def test_cold_values_go_back_as_strict_json() -> None:
    """Lone surrogates and numbers beyond all floats become something that every decoder takes."""
    assert lenient.dump({"a": [1, None, "é"]}) == '{"a": [1, null, "é"]}'.encode()
    assert lenient.dump("\ud800x") == b'"?x"'
    assert lenient.dump(math.inf) == b"null"


# --------------------------------------------------------------------------- asking


@pytest.mark.parametrize(
    ("logprobs", "top", "asked"),
    [
        (None, None, None),
        (False, None, None),
        (False, 5, None),
        (None, 5, None),
        (0, None, None),
        (True, None, 0),
        (True, 0, 0),
        (True, 3, 3),
        (True, "3", 0),
        (True, True, 0),
        (5, None, 5),
        (5, 2, 2),
    ],
)
def test_what_a_chat_request_asks_for(logprobs: object, top: object, asked: int | None) -> None:
    """A boolean switch and a number of alternatives."""
    assert DIALECTS["chat"].asked(logprobs, top) == asked


def test_the_whole_vocabulary() -> None:
    """-1 is more than any rule needs."""
    found = DIALECTS["chat"].asked(True, -1)
    assert found is not None
    assert found > 100_000


@pytest.mark.parametrize(
    ("logprobs", "asked"),
    [(None, None), (False, None), (True, 1), (0, 0), (5, 5), (-1, None), ("5", None), (2.0, None)],
)
def test_what_a_completions_request_asks_for(logprobs: object, asked: int | None) -> None:
    """A count, and 0 is not off."""
    assert DIALECTS["completions"].asked(logprobs, 7) == asked


@pytest.mark.parametrize(("needed", "sent"), [(0, 1), (1, 1), (5, 5)])
def test_evidence_is_asked_for_with_one_alternative_at_least(needed: int, sent: int) -> None:
    """So that an empty list always means a placeholder."""
    chat = json.loads(b"{" + DIALECTS["chat"].evidence_fields(needed) + b"}")
    completions = json.loads(b"{" + DIALECTS["completions"].evidence_fields(needed) + b"}")
    assert chat == {"logprobs": True, "top_logprobs": sent}
    assert completions == {"logprobs": sent}
