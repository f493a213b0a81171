"""Public bug reports, kinds A and B: entries lost, doubled, misplaced; values that are no values.

Each test names its case, states the rule, and takes its numbers from the oracle.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.bench import SURE, check, oracle, prepared, run
from tests.reference.build import C, D, E, L, T, U, chat_object, event, legacy, said
from tests.reference.http import chunked

from streamguard.core.events import Send
from streamguard.core.specs import Policy, Rule
from streamguard.errors import InputError
from streamguard.lab.replay import replay

ROLE = C(0, {"role": "assistant", "content": ""})
WORDS = [E("The", -0.4, 1), E(" sea", -1.9, 1), E(" is", -0.02, 1), E(" red", -3.1, 1)]
NOTHING: list[Any] = [
    None,
    {},
    [],
    {"content": None},
    {"content": []},
    {"content": None, "refusal": None},
    {"content": [], "refusal": []},
    {"tokens": None, "token_logprobs": None, "top_logprobs": None, "text_offset": None},
    {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []},
]
SILENT: list[Any] = [None, {}, [], {"content": []}, {"content": None, "refusal": None}]


# --------------------------------------------------------------------------- A: content


@pytest.mark.parametrize(
    "groups",
    [[1, 1, 1, 1], [4], [2, 2], [1, 3], [0, 1, 0, 3]],
    ids=lambda groups: "+".join(map(str, groups)),
)
@pytest.mark.parametrize("finish_rides", [True, False], ids=["finish-rides", "finish-alone"])
def test_b02_streamed_entries_equal_unary_entries(
    groups: list[int], finish_rides: bool, tmp_path: Path
) -> None:
    """B02: however the entries are spread over chunks, they are those of the unary answer."""
    stream, left = ROLE, list(WORDS)
    for size in groups:
        stream += C(0, "".join(e["token"] for e in left[:size]), L(*left[:size]))
        del left[:size]
    if finish_rides:
        last = stream.rindex(b"data: ")
        stream = stream[:last] + stream[last:].replace(b"null}]", b'"stop"}]')
    else:
        stream += C(0, {}, None, "stop")
    streamed = check(stream + D).choice

    message = {"role": "assistant", "content": "The sea is red"}
    choice = {"index": 0, "message": message, "logprobs": L(*WORDS), "finish_reason": "stop"}
    path = tmp_path / "unary.json"
    path.write_text(json.dumps({"id": "x1", "choices": [choice]}), encoding="utf-8")
    (unary,) = replay(path, Policy(mode="observe"), requested=1)
    assert not isinstance(unary, InputError)
    assert unary.choices[0] == streamed
    assert streamed.entries == 4


@pytest.mark.parametrize("asked", [None, 1])
def test_b03_list_accumulates_and_is_null_only_when_nothing_came(asked: int | None) -> None:
    """B03: every chunk adds; without any entry there is no mean, which is not a mean of 0."""
    assert check(said(("a", -1.0), ("b", -2.0), ("c", -3.0)), asked=asked).choice.entries == 3
    silent = check(ROLE + C(0, "a") + C(0, {}, None, "stop") + D, asked=asked).choice
    assert (silent.entries, silent.mean_logprob, silent.min_logprob) == (0, None, None)


@pytest.mark.parametrize("nothing", NOTHING, ids=json.dumps)
def test_b06_nothing_adds_nothing(nothing: Any) -> None:
    """B06: null, or an object of nothing, after chunks with entries leaves the tally as it was."""
    entries = C(0, "a", L(E("a", -1.0, 1))) + C(0, "b", L(E("b", -2.0, 1)))
    choice = check(entries + C(0, "c", nothing) + C(0, {}, nothing, "stop") + D).choice
    assert (choice.entries, choice.unscorable, choice.mean_logprob) == (2, 0, -1.5)


def test_b06_absent_key_adds_nothing() -> None:
    """B06: a choice without a logprobs key is as good as null."""
    chunk = chat_object(0, {"content": "c"})
    del chunk["choices"][0]["logprobs"]
    choice = check(C(0, "a", L(E("a", -1.0, 1))) + event(chunk) + D).choice
    assert choice.entries == 1


def test_b07_bytes_are_relayed_never_written_again() -> None:
    """B07: spacing, key order, escapes, unknown keys and number spelling survive."""
    odd = (
        b'data:{ "choices":[ {"logprobs":{"content":[{"token":"\\u0061","logprob":-1.50E+0,'
        b'"top_logprobs":[{"token":"a","logprob":-1.5}], "x":1e-7}]}, "index":0,'
        b'"delta":{"content":"\\u0061\\/"},"finish_reason":null} ],"zz":{"b":1,"a":[ ]},'
        b'"id":"x1"}\r\nid: 7\r\n\r\n'
    )
    body = odd + b": note\r\n\r\n" + C(0, {}, None, "stop") + D
    assert check(body).choice.mean_logprob == -1.5


@pytest.mark.parametrize("silence", SILENT, ids=json.dumps)
def test_b09_parser_that_nulls_all_logprobs_leaves_the_stream_unscored(silence: Any) -> None:
    """B09: null on the whole stream: unscored, passed in full, never an abort."""
    body = ROLE + C(0, {"reasoning_content": "hm"}, silence) + C(0, "a", silence)
    body += C(0, {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, silence)
    body += C(0, {}, silence, "tool_calls") + D
    found = run(body, SURE)
    assert (found.sent, found.cancelled) == (body, False)
    assert (found.report.status, found.report.outcome) == ("unscored", "complete")
    assert (found.choice.verdict, found.choice.reason) == (None, "no_signal")


def test_b12_entries_belong_to_their_own_choice() -> None:
    """B12: interleaved choices, several in one event, unequal lengths: each by itself."""
    head = {"id": "x1", "object": "text_completion", "created": 7, "model": "m"}
    both = [
        {"index": 1, "text": "q", "logprobs": legacy(["q"], [-5.0]), "finish_reason": None},
        {"index": 0, "text": "ab", "logprobs": legacy(["a", "b"], [-0.1, -0.3])},
    ]
    body = event({**head, "choices": both})
    body += T("r", legacy(["r"], [-7.0]), i=1) + T("c", legacy(["c"], [-0.2]), "stop")
    body += T("s", legacy(["s"], [-6.0]), "length", i=1) + D
    first, second = check(body).report.choices
    assert first.entries == 3
    assert first.mean_logprob == pytest.approx(-0.2)
    assert (second.entries, second.mean_logprob) == (3, -6.0)


@pytest.mark.parametrize("silence", SILENT, ids=json.dumps)
def test_b13_b14_b47_b48_asked_and_never_delivered(silence: Any) -> None:
    """B13, B14, B47, B48: 200 without logprobs passes; the record says so, once."""
    body = ROLE + C(0, "a", silence) + C(0, "b", silence) + C(0, {}, silence, "stop") + D
    found = run(body, SURE)
    assert (found.sent, found.report.status) == (body, "unscored")
    assert found.guard.status == "guarded"  # the header went out before anybody could know
    assert found.guard.receive_eof(1.0) == []


def test_b18_usage_need_not_equal_the_entries() -> None:
    """B18: completion_tokens may be entries, one more, or any number."""
    tokens = C(0, "a", L(E("a", -1.0, 1))) + C(0, "b", L(E("b", -1.0, 1))) + C(0, {}, None, "stop")
    seen = [check(tokens + U(count) + D).choice for count in (2, 3, 40)]
    assert seen[0] == seen[1] == seen[2]


def test_b20_entries_may_exceed_the_text() -> None:
    """B20: entries whose text was cut at a stop string are entries all the same."""
    body = C(0, "1,", L(E("1", -0.1, 1), E(",", -0.2, 1), E(" 2", -0.3, 1), E(" END", -4.0, 1)))
    body += C(0, {}, L(E("<|im_end|>", -0.1, 1)), "stop") + D
    assert check(body).choice.entries == 5
    # Held-back text: rows with an empty text, and then text without a row.
    body = C(0, {}, L(E("x", -0.5, 1))) + C(0, "", L(E("y", -0.5, 1))) + C(0, "xy") + D
    assert check(body).choice.entries == 2


def test_b21_events_are_never_cut_or_joined() -> None:
    """B21: every read sends whole events only, so an entry stays with its text."""
    events = [ROLE, *(C(0, e["token"], L(e)) for e in WORDS), C(0, {}, None, "stop"), D]
    body = b"".join(events)
    ends = {sum(map(len, events[:n])) for n in range(len(events) + 1)}
    for cut in range(1, len(body)):
        found = run([body[:cut], body[cut:]])
        sizes = [len(action.data) for action in found.actions if isinstance(action, Send)]
        assert {sum(sizes[:n]) for n in range(len(sizes) + 1)} <= ends


def test_b23_empty_list_is_not_delivered_evidence() -> None:
    """B23: `logprobs: []` adds nothing, in chat chunks and in Responses events."""
    body = ROLE + C(0, "a", []) + C(0, "b", []) + C(0, {}, [], "stop") + D
    assert run(body, SURE).report.status == "unscored"
    delta = {"type": "response.output_text.delta", "delta": "a", "logprobs": []}
    body = b"event: response.output_text.delta\n" + event(delta)
    found = run(body, SURE)
    assert (found.sent, found.report.status, found.report.choices) == (body, "unscored", [])


def test_b25_either_object_on_either_endpoint() -> None:
    """B25: the legacy object in chat chunks, the chat object in completions chunks."""
    arrays = legacy(["a", "b"], [-0.5, -1.5])
    chat = check(C(0, "ab", arrays) + C(0, {}, None, "stop") + D)
    other = check(T("ab", L(E("a", -0.5, 1), E("b", -1.5, 1))) + T("", None, "stop") + D)
    assert chat.choice.mean_logprob == other.choice.mean_logprob == -1.0
    assert (chat.report.dialect, other.report.dialect) == ("chat", "completions")


@pytest.mark.parametrize(
    "offsets", [[0, 1], [-1, -1], [90, 3], [], None, [7], [1e300, 2], ["0", None]], ids=json.dumps
)
def test_b26_text_offset_places_nothing(offsets: Any) -> None:
    """B26: whatever `text_offset` says, the cut is where the entries say."""
    arrays = legacy(["a", "b"], [-3.0, -3.0])
    arrays["text_offset"] = offsets
    body = T("ab", arrays) + T("c", legacy(["c"], [-0.1])) + T("", None, "stop") + D
    found = run(body, SURE, prepared(dialect="completions"))
    assert found.report.outcome == "aborted"
    assert (found.choice.position, found.choice.entries) == (2, 2)
    assert found.sent.startswith(T("ab", arrays))
    check(body)


# --------------------------------------------------------------------------- B: values


def _bare(value: float, listed: Any) -> dict[str, Any]:
    entry = E("a", value)
    if listed == "absent":
        del entry["top_logprobs"]
    else:
        entry["top_logprobs"] = listed
    return entry


@pytest.mark.parametrize("asked", [1, 5])
@pytest.mark.parametrize("listed", [[], None, "absent"], ids=str)
@pytest.mark.parametrize("zero", [0.0, -0.0, 0])
def test_b29_bare_zero_is_a_placeholder(zero: float, listed: Any, asked: int) -> None:
    """B29: 0 with nothing listed where alternatives were asked for is unscorable."""
    body = C(0, "a", L(_bare(zero, listed))) + C(0, "b", L(E("b", -2.0, 1)))
    body += C(0, "c", L(_bare(zero, listed))) + C(0, {}, None, "stop") + D
    choice = check(body, asked=asked).choice
    assert (choice.entries, choice.scorable, choice.mean_logprob) == (3, 1, -2.0)


@pytest.mark.parametrize("top", [None, {}, "short"], ids=str)
def test_b29_bare_zero_in_arrays_is_a_placeholder(top: Any) -> None:
    """B29 for the completions shape: null, empty or missing alternatives beside a 0."""
    tops: list[Any] = [{"a": -1.0}, top] if top != "short" else [{"a": -1.0}]
    body = T("ab", legacy(["a", "b"], [-1.0, 0.0], tops)) + T("", None, "stop") + D
    choice = check(body).choice
    assert (choice.entries, choice.scorable) == (2, 1)


def test_b29_a_listed_zero_is_a_sure_token() -> None:
    """B29: a 0 that lists its alternatives counts, and so does any where none were asked for."""
    assert check(said(("a", 0.0), ("b", -1.0))).choice.scorable == 2
    bare = C(0, "a", L(E("a", 0.0))) + C(0, "b", L(E("b", -1.0))) + C(0, {}, None, "stop") + D
    assert check(bare, asked=0).choice.scorable == 2


def test_b29_placeholders_do_not_disarm_the_guard() -> None:
    """B29: a rule counts credible entries only, wherever placeholders stand between them."""
    zeros = C(0, "z", L(E("z", 0.0))) * 5
    low = C(0, "a", L(E("a", -3.0, 1)))
    found = run(zeros + low + zeros + low + zeros + C(0, {}, None, "stop") + D, SURE)
    assert (found.report.outcome, found.choice.position) == ("aborted", 12)


@pytest.mark.parametrize("asked", [1, None])
def test_b30_stream_of_nothing_but_bare_zeros_is_unscored(asked: int | None) -> None:
    """B30: all entries exactly 0 without alternatives: no score, no verdict, no abort."""
    body = ROLE + C(0, "a", L(E("a", 0.0))) * 6 + C(0, {}, None, "stop") + D
    choice = check(body, asked=asked).choice
    assert (choice.entries, choice.scorable, choice.mean_logprob) == (6, 0, None)
    found = run(body, SURE, prepared(asked=asked))
    assert (found.sent, found.cancelled, found.choice.verdict) == (body, False, None)
    assert found.report.status == "unscored"


def test_b30_zeros_count_once_the_server_has_shown_a_credible_entry() -> None:
    """B30: where nobody knows what was asked for, one real value tells that zeros are meant."""
    body = C(0, "a", L(E("a", 0.0))) * 3 + C(0, "b", L(E("b", -1.0)))
    body += C(0, "c", L(E("c", 0.0))) + C(0, {}, None, "stop") + D
    assert check(body, asked=None).choice.scorable == 5
    assert check(body, asked=1).choice.scorable == 1


@pytest.mark.parametrize("status", [500, 502, 503, 429, 401])
@pytest.mark.parametrize("kind", ["application/json", "text/plain", "text/event-stream", None])
def test_b31_error_answer_is_passed_on_as_it_is(status: int, kind: str | None) -> None:
    """B31: an error status is the upstream's word: every byte of it, unread."""
    body = b'{"error": {"message": "Out of range float values are not JSON compliant: -inf"}}'
    found = run(body, SURE, status=status, content_type=kind)
    assert (found.sent, found.cancelled) == (body, False)
    assert (found.report.outcome, found.report.http_status) == ("complete", status)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_b32_null_values_anywhere(place: int) -> None:
    """B32: null in token_logprobs or in an alternative, at any position, is no number, no error."""
    values: list[float | None] = [-1.0, -2.0, -3.0]
    values[place] = None
    tops = [{"a": -1.0, "x": None}, None, {"c": None}]
    body = T("abc", legacy(["a", "b", "c"], values, tops)) + T("", None, "stop") + D
    choice = check(body).choice
    assert (choice.entries, choice.scorable) == (3, 2)
    entry = E("a", -1.0, 3)
    entry["top_logprobs"][place]["logprob"] = None
    assert check(C(0, "a", L(entry)) + C(0, {}, None, "stop") + D, asked=3).choice.scorable == 1


NO_NUMBERS = [
    "null", "true", "false", '"-1.0"', '""', "[]", "{}", "NaN", "Infinity", "-Infinity", "1e999",
    "-1e999", "-9999.0", "-9000", "-3.4028234663852886e+38", "0.5", "2e-6", "1" * 5000,
    "-" + "9" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("literal", NO_NUMBERS, ids=lambda text: text[:12])
def test_b32_what_is_no_logprob_counts_as_unscorable(literal: str) -> None:
    """B32, whole kind: an entry without a usable number is counted and never averaged."""
    text = C(0, "b", L(E("b", 777, 1))).replace(b"777", literal.encode(), 1)
    body = C(0, "a", L(E("a", -2.0, 1))) + text + C(0, "c", L(E("c", -4.0, 1)))
    choice = check(body + C(0, {}, None, "stop") + D).choice
    assert (choice.entries, choice.scorable, choice.mean_logprob) == (3, 2, -3.0)
    found = run(body + D, SURE)
    assert (found.report.outcome, found.choice.position) == ("aborted", 3)


def test_b32_missing_key_counts_as_unscorable() -> None:
    """B32: an entry without a logprob key at all."""
    body = C(0, "a", L({"token": "a", "bytes": [97]})) + C(0, "b", L(E("b", -1.0, 1))) + D
    choice = check(body).choice
    assert (choice.entries, choice.scorable) == (2, 1)


@pytest.mark.parametrize(("floor", "scorable"), [(-9000.0, 2), (-99.0, 1)])
def test_b33_finite_floor_scores_unless_the_policy_names_it(floor: float, scorable: int) -> None:
    """B33: -100 is a number; a provider that uses it for "unknown" gets a floor of its own."""
    body = said(("a", -100.0), ("b", -1.0))
    found = run(body, Policy(mode="observe", sentinel_floor=floor))
    assert (found.choice.entries, found.choice.scorable) == (2, scorable)
    assert found.sent == body


def test_b36_byte_fallback_tokens_are_told_apart_by_bytes_and_value() -> None:
    """B36: tokens spelled "" or U+FFFD: the emitted one is found by bytes, never by its string."""
    for name in ("", "\ufffd"):
        emitted: dict[str, Any] = {"token": name, "logprob": -0.2, "bytes": [0xF0, 0x9F]}
        other = {"token": name, "logprob": -1.7, "bytes": [0xE4]}
        entry = {**emitted, "top_logprobs": [other, emitted]}
        body = C(0, "", L(entry)) + C(0, {}, None, "stop") + D
        margin = check(body, asked=2).choice.signals["margin"]
        assert margin == pytest.approx(math.exp(-0.2) - math.exp(-1.7))


@pytest.mark.parametrize("token", ["Ġthe", "▁the", "<0xE2>", "ĊĊ", "token_id:42", "\u2581\u00e2"])
def test_b37_mangled_pieces_count(token: str) -> None:
    """B37: a raw vocabulary piece with bytes of the mangled form is an entry like any other."""
    entry = E(token, -0.7, 2)
    choice = check(C(0, " the", L(entry)) + C(0, {}, None, "stop") + D, asked=2).choice
    assert (choice.entries, choice.scorable) == (1, 1)
    odd = {**entry, "bytes": [300, -1]}
    assert check(C(0, " the", L(odd)) + C(0, {}, None, "stop") + D, asked=2).choice.scorable == 1


@pytest.mark.parametrize(
    "payload",
    [
        {"candidates": [{"avgLogprobs": -0.3, "finishReason": "STOP"}]},
        {**chat_object(0, {"content": "a"}, None, "stop"), "avg_logprobs": -0.3},
        chat_object(0, {"content": "a"}, {"avg_logprobs": -0.3}, "stop"),
    ],
)
def test_b38_average_alone_is_no_evidence(payload: Any) -> None:
    """B38: an average is not a per-token stream: unscored."""
    body = event(payload) + D
    found = run(body, SURE)
    assert (found.sent, found.report.status) == (body, "unscored")
    assert found.report.tokens_seen == 0


def test_every_case_holds_through_http_framing_and_replay(tmp_path: Path) -> None:
    """The same stream in a recorded response, in chunks of any size, gives the same figures."""
    body = ROLE + b"".join(C(0, e["token"], L(e)) for e in WORDS) + C(0, {}, None, "stop") + D
    wanted = oracle(body)
    for size in (1, 50, 10_000):
        path = tmp_path / f"{size}.http"
        path.write_bytes(chunked(body, size=size))
        (report,) = replay(
            path,
            Policy(mode="observe", rule=Rule(signal="min_prob", below=0.1, first=4)),
            requested=1,
        )
        assert not isinstance(report, InputError)
        assert (report.events, report.outcome) == (wanted.events, "complete")
        assert (report.choices[0].verdict, report.choices[0].position) == ("abort", 4)
