"""Where a value stands in JSON text: exact places, whatever else the text holds."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamguard.core.jsonspan import Pattern, find_spans, replace_spans

LOGPROBS: Pattern = ("choices", None, "logprobs")


def found(text: str | bytes, pattern: Pattern = LOGPROBS) -> list[bytes]:
    """The texts of the values found."""
    data = text if isinstance(text, bytes) else text.encode()
    return [data[start:end] for start, end in find_spans(data, pattern)]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"choices":[{"logprobs":null}]}', [b"null"]),
        ('{"choices":[{"logprobs": {"a":[1]} }]}', [b'{"a":[1]}']),
        ('{ "choices" : [ { "logprobs" :\t1e9\n} ] }', [b"1e9"]),
        ('{"choices":[{"logprobs":1},{"x":2},{"logprobs":[3]}]}', [b"1", b"[3]"]),
        ('{"choices":[{"logprobs":1,"logprobs":2}]}', [b"1", b"2"]),
        (r'{"choices":[{"logprob\u0073":1}]}', [b"1"]),
        ('{"choices":[{"logprobs":NaN},{"logprobs":-Infinity}]}', [b"NaN", b"-Infinity"]),
        ('{"choices":[{"logprobs":"a,]}\\""}]}', [b'"a,]}\\""']),
        ('{"choices":[{"logprobs":""}]}', [b'""']),
        ('{"choices":[{"a":"\\"logprobs\\":5","logprobs":6}]}', [b"6"]),
    ],
)
def test_found(text: str, values: list[bytes]) -> None:
    """Blanks around it are not part of a value; escapes in keys are read; each twin is found."""
    assert found(text) == values


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "1",
        '"choices"',
        '{"logprobs":1}',
        '{"choices":{"logprobs":1}}',
        '{"choices":[[{"logprobs":1}]]}',
        '{"choices":[{"delta":{"logprobs":1}}]}',
        '{"x":{"choices":[{"logprobs":1}]}}',
        '{"choices":["logprobs",1]}',
        '{"choices":[{"a":"logprobs"}]}',
        '[{"choices":[{"logprobs":1}]}]',
        '{"choices":[{"Logprobs":1}]}',
        '{"choices":[{"logprobs ":1}]}',
    ],
)
def test_not_found(text: str) -> None:
    """The same word at another place is another thing."""
    assert found(text) == []


def test_elements_of_an_array() -> None:
    """None stands for any element; blanks and empty arrays are no elements."""
    assert found('{"choices":[ 1 , {"a":[2,3]} ]}', ("choices", None)) == [b"1", b'{"a":[2,3]}']
    assert found('{"choices":[ ]}', ("choices", None)) == []
    assert found('{"choices":[]}', ("choices",)) == [b"[]"]


def test_text_that_is_no_unicode() -> None:
    """Bytes that are no UTF-8 and lone surrogates are stepped over, as keys and as values."""
    assert found(b'{"\xff":1,"choices":[{"\\ud800":2,"logprobs":"\xfe"}]}') == [b'"\xfe"']


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "logprobs", "a", '"', "\\", "{", "\u2028"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(VALUES, VALUES, st.sampled_from([None, 0, 2]), st.booleans())
def test_replacing_is_what_json_says(
    value: Any, other: Any, indent: int | None, ascii_only: bool
) -> None:
    """Null in every place found: the value with every such member null, and no other change."""
    event = {"id": value, "choices": [{"logprobs": value, "x": other}, value], "z": other}
    text = json.dumps(event, indent=indent, ensure_ascii=ascii_only).encode()
    nulled = replace_spans(text, find_spans(text, LOGPROBS), b"null")

    expected = json.loads(text)
    for choice in expected["choices"]:
        if isinstance(choice, dict) and "logprobs" in choice:
            choice["logprobs"] = None
    assert nulled == json.dumps(expected, indent=indent, ensure_ascii=ascii_only).encode()


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'"' * 99_999,
        b'"' + b"\\" * 500_000,
        b'{"choices":[' + b'{"logprobs":[],"a":{}},' * 20_000,
        b":" * 100_000 + b"}" * 100_000,
    ],
)
def test_any_bytes_cost_linear_time(text: bytes) -> None:
    """It promises nothing about what is no JSON, but neither hangs nor raises."""
    begin = time.perf_counter()
    find_spans(text, LOGPROBS)
    assert time.perf_counter() - begin < 10


def test_replace_spans() -> None:
    """Ascending and disjoint, touching ones and empty lists included."""
    assert replace_spans(b"abcdef", [(1, 2), (2, 4)], b"-") == b"a--ef"
    assert replace_spans(b"abc", [], b"-") == b"abc"
    assert replace_spans(b"abc", [(0, 3)], b"") == b""
