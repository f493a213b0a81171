"""Public bug reports, kinds D and E: event framing, and Azure's events without a choice."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from tests.conformance.bench import SURE, check, oracle, prepared, refusal, run
from tests.reference import scores
from tests.reference.build import C, D, E, L, T, U, chat_object, event, said

from streamguard.core.events import End
from streamguard.core.specs import FailPolicy, Policy, Rule

BODY = said(("The", -0.4), (" sea", -0.6), (" is", -0.02))
LOW = said(("a", -2.0), ("b", -3.0), ("c", -0.1))
PLAIN = check(BODY).choice


def bytewise(body: bytes) -> list[bytes]:
    return [body[at : at + 1] for at in range(len(body))]


def cut_points(body: bytes) -> list[list[bytes]]:
    return [[body[:at], body[at:]] for at in range(1, len(body))]


@pytest.mark.parametrize("field", [b"data:", b"data: ", b"data:  ", b"data:\t"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"], ids=["", "BOM"])
def test_b52_every_spelling_of_an_event_is_the_same_event(
    field: bytes, end: bytes, bom: bytes
) -> None:
    """B52: with or without a space, any line end, with or without a BOM; cut anywhere."""
    lines = b"".join(BODY.split(b"data: [DONE]")[:1])
    body = bom + lines.replace(b"data: ", field).replace(b"\n", end) + b"data: [DONE]" + end * 2
    assert check(body).choice == PLAIN
    assert check_reads(bytewise(body), body) == PLAIN


def check_reads(reads: list[bytes], body: bytes) -> Any:
    """Any split: the same bytes out, the same figures."""
    found = run(reads, Policy(mode="observe"), prepared(choices=None))
    assert found.sent == body
    return found.choice


def test_b52_cut_looks_like_the_stream_it_ends() -> None:
    """B52: the tail after a cut uses the stream's own line ends."""
    for end in (b"\n", b"\r\n", b"\r"):
        found = run(LOW.replace(b"\n", end), SURE)
        assert found.report.outcome == "aborted"
        assert found.sent.endswith(b"data: [DONE]" + end * 2)
        assert set(re.findall(rb"\r\n|\r|\n", found.sent)) == {end}


def test_b52_multi_line_data_and_other_fields() -> None:
    """B52, whole kind: JSON over several data lines; event, id and retry lines; comments inside."""
    pretty = b'event: message\nid: 9\nretry: 10\ndata: {"choices":\n: note\ndata: [{"index":0,\n'
    pretty += b'data:"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":-1.5,'
    pretty += b'\ndata: "top_logprobs":[{"token":"a","logprob":-1.5}]}]}}]}\n\n'
    body = pretty + C(0, {}, None, "stop") + D
    assert check(body).choice.mean_logprob == -1.5
    for reads in cut_points(body):
        assert check_reads(reads, body).mean_logprob == -1.5


@pytest.mark.parametrize(
    "body",
    [b"", b": OPENROUTER PROCESSING\n\n" * 3, b":\n\n", b"\n\n\n", b"retry: 5\n\n", b"data:\n\n"],
)
@pytest.mark.parametrize("clean", [True, False])
def test_b55_comments_alone_are_no_answer(body: bytes, clean: bool) -> None:
    """B55: a body without one event is an upstream that failed, not an empty success."""
    found = run(body, SURE, clean=clean)
    assert found.report.outcome == oracle(body, clean=clean).outcome == "upstream_truncated"
    assert b"[DONE]" not in found.sent
    assert found.end != End(True)


@pytest.mark.parametrize("kind", ["text/event-stream", "text/event-stream; charset=latin-1", None])
def test_b56_event_streams_are_utf8(kind: str | None) -> None:
    """B56: 0x85 inside a character, U+0085, U+2028, U+2029 end no line, whatever the label."""
    texts = ["\u2026", "\u0085", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "à"]
    body = b"".join(C(0, t, L(E(t, -1.0, 1))) for t in texts) + C(0, {}, None, "stop") + D
    found = run(body, Policy(mode="observe"), content_type=kind)
    assert (found.choice.entries, found.report.unparsable) == (len(texts), 0)
    assert check(body).report.events == len(texts) + 2


def test_b57_characters_cut_between_reads() -> None:
    """B57: a multi-byte character over two reads, at every byte: nothing lost, nothing replaced."""
    texts = ["é", "你好", "🎉", "🇫🇷", "\u202e"]
    body = b"".join(C(0, t, L(E(t, -0.5, 1))) for t in texts) + C(0, {}, None, "stop") + D
    wanted = check(body).choice
    for reads in [*cut_points(body), bytewise(body)]:
        assert check_reads(reads, body) == wanted


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/x-ndjson", None])
def test_b59_event_stream_under_another_label(kind: str | None) -> None:
    """B59: the first bytes tell what a body is: judged and cut like any stream, never wrapped."""
    assert run(LOW, SURE, content_type=kind).sent == run(LOW, SURE).sent
    assert run(bytewise(LOW), SURE, content_type=kind).sent == run(LOW, SURE).sent
    found = run(BODY, SURE, content_type=kind)
    assert (found.sent, found.report.status) == (BODY, "guarded")


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
def test_b59_json_under_the_label_of_a_stream(kind: str) -> None:
    """B59, the other way round: a plain JSON answer is passed on and never prefixed."""
    body = b'\n {"id": "x1", "choices": [{"message": {"content": "a"}}]}\n'
    found = run(body, SURE, content_type=kind)
    assert (found.sent, found.report.status) == (body, "opaque")
    assert found.report.opaque_reason == "not_sse"


ENDINGS: list[tuple[bytes, str]] = [
    (b"", "upstream_truncated"),
    (D, "complete"),
    (C(0, {}, None, "stop"), "complete"),
    (C(0, {}, None, "insufficient_system_resource"), "complete"),
    (C(0, {}, None, "stop") + U(2), "complete"),
    (C(0, {}, None, "stop") + D, "complete"),
    (C(0, {}, None, "stop")[:-2], "complete"),
    (D[:-2], "complete"),
    (C(0, {}, None, "stop")[:-9], "upstream_truncated"),
    (C(1, "b"), "upstream_truncated"),
    (C(0, {}, None, "stop") + C(1, "b"), "upstream_truncated"),
    (event({"error": {"message": "worker died", "code": 500}}), "upstream_error"),
    (event({"error": "worker died"}) + D, "upstream_error"),
    (event({"object": "error", "message": "worker died"}), "upstream_error"),
]


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "broken"])
@pytest.mark.parametrize(("ending", "outcome"), ENDINGS)
def test_b61_truncation_never_looks_complete(ending: bytes, outcome: str, clean: bool) -> None:
    """B61: without `[DONE]` and a finish for every choice the answer is truncated, and says so."""
    first = C(0, "a", L(E("a", -0.1, 1)))
    body = first + ending
    found = run(body, SURE, prepared(choices=None), clean=clean)
    assert found.report.outcome == outcome == oracle(body, clean=clean).outcome
    if outcome == "upstream_truncated":
        # What the provider sent, whole or up to its last whole event; then at most an error.
        assert found.sent.startswith(first)
        extra = found.sent.removeprefix(body if found.sent.startswith(body) else first)
        assert extra == b"" or list(json.loads(extra.removeprefix(b"data: "))) == ["error"]
        assert found.end == End(False)
    else:
        assert found.sent == body
        assert found.end == End(clean)


def test_b61_no_error_event_of_ours_inside_half_an_event() -> None:
    """B61: where half an event is out already, nothing of ours follows it."""
    body = C(0, "a", L(E("a", -0.1, 1)))
    found = run([body + b'data: {"choices": [{"del'], SURE, clean=False)
    tail = found.sent.removeprefix(body)
    assert tail == b"" or tail.startswith(b'data: {"error"')
    assert found.end == End(False)


GLUED = [
    b'data: {"id":"x1","choices":[{"index":0,"delta":{"con\ndata: {"id":"x1","choices":[]}\n\n',
    b'data: {"id":"x1","choices":[{"index":0,"delta":data: {"id":"x1","choices":[]}\n\n',
    b"data: error: out of memory\n\n",
    b'data: {"choices": [}\n\n',
    b"data: " + b"[" * 100_000 + b"\n\n",
    b"data: \xff\xfe\n\n",
    b"data: null\n\n",
]


@pytest.mark.parametrize("noise", GLUED, ids=range(len(GLUED)))
def test_b62_one_malformed_event_costs_one_event(noise: bytes) -> None:
    """B62: it is passed on and counted; what comes after it is read, and still judged."""
    first, rest = C(0, "a", L(E("a", -2.0, 1))), C(0, "b", L(E("b", -3.0, 1)))
    body = first + noise + rest + C(0, {}, None, "stop") + D
    found = check(body)
    assert (found.report.unparsable, found.choice.entries) == (1, 2)
    cut = run(body, SURE)
    assert (cut.report.outcome, cut.choice.position) == ("aborted", 2)
    assert cut.sent.startswith(first + noise + rest)


def test_b62_a_typed_surprise_is_no_malformed_event() -> None:
    """B62, whole kind: fields of an unexpected type leave the rest of the event readable."""
    chunk = chat_object(0, ["a"], L(E("a", -1.0, 1)), "stop")
    chunk["choices"] += [7, None, {"index": "1", "delta": 3}]
    found = check(event(chunk) + D)
    assert (found.report.unparsable, found.choice.entries) == (0, 1)


def test_b62_lone_surrogates_leave_a_record_that_can_be_written() -> None:
    """B62, whole kind: half a surrogate pair in any string must not break the record's encoding."""
    entry = E("a", -1.0, 1)
    odd = event(chat_object(0, {}, L(entry), "stop")).replace(b'"stop"', b'"\\ud800"')
    found = run(odd.replace(b'"x1"', b'"\\udfff"') + D)
    assert found.report.outcome == "complete"
    assert json.loads(msgspec.json.encode(found.report))["choices"][0]["entries"] == 1


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "GZIP", "gzip, br"])
def test_b63_compressed_stream_is_passed_or_refused_never_held(encoding: str) -> None:
    """B63: compressed although identity was asked: every read goes on at once, marked."""
    body = b"\x1f\x8b\x08 not really"
    found = run(bytewise(body), SURE, encoding=encoding)
    assert len(found.actions) == len(body) + 1
    assert found.sent == body
    assert (found.report.status, found.report.opaque_reason) == ("opaque", "encoded")
    closed = Policy(rule=SURE.rule, fail=FailPolicy(encoded="closed"))
    assert refusal(run(body, closed, encoding=encoding)).status == 502


@pytest.mark.parametrize("encoding", [None, "", "identity", "Identity"])
def test_b63_identity_is_no_encoding(encoding: str | None) -> None:
    """B63: the absence of a coding, spelled any way, is watched."""
    assert run(LOW, SURE, encoding=encoding or None).report.outcome == "aborted"
    assert run(LOW, SURE, encoding=encoding).report.status == "guarded"


PROMPT_FILTER = {"id": "", "object": "", "created": 0, "model": "", "choices": []}


def _azure(**more: Any) -> bytes:
    return event({**PROMPT_FILTER, **more})


def test_b64_first_event_without_choices() -> None:
    """B64: prompt filters first, filter events without a delta, blocks of entries: all relayed."""
    filters = {"prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}]}
    late = {"index": 0, "finish_reason": None, "content_filter_offsets": {"check_offset": 1}}
    block = [E("a", -0.1, 1), E("b", -0.2, 1), E("c", -0.3, 1)]
    body = _azure(**filters) + _azure(prompt_annotations=[]) + C(0, {"role": "assistant"})
    body += C(0, "abc", L(*block)) + _azure(choices=[late]) + C(0, {}, None, "stop") + U(3) + D
    found = check(body)
    wanted = scores.figures(oracle(body).choices[0], 1)
    assert (found.choice.entries, wanted["entries"]) == (3, 3)
    assert run(body, SURE, prepared(include_usage=True)).sent == body


@pytest.mark.parametrize("choices", [[], None, {}, "x"])
def test_b64_only_such_events_make_no_answer(choices: Any) -> None:
    """B64: events that never speak of a choice leave nothing to judge and nothing to index."""
    found = run(_azure(choices=choices) + D, SURE)
    assert found.sent == _azure(choices=choices) + D
    assert found.report.choices == []


def test_b64_a_tail_never_borrows_an_empty_id() -> None:
    """B64: the tail names the stream as its own chunks do, not as the filter event did."""
    body = (
        _azure(prompt_filter_results=[]) + T("a", L(E("a", -3.0, 1))) + T("b", L(E("b", -3.0, 1)))
    )
    found = run(body, Policy(rule=Rule(signal="mean_prob", below=0.5, first=2)))
    tail = found.sent.removeprefix(body)
    assert tail.startswith(b'data: {"id":"x1","object":"text_completion","created":7,"model":"m"')
