"""What holds for every stream, however it is made and however it is cut into reads.

Streams come from a grammar (whole events with entries, sentinels, comments, any line ending,
several choices, errors, garbage), from recorded answers that were damaged, and from nothing at
all. The oracle counts with the standard library's json and shares no code with the product.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.conformance import corpus
from tests.reference import reader

from streamguard.core.capabilities import Limits
from streamguard.core.events import Action, Again, Cancel, End, Refuse, Send, StreamReport
from streamguard.core.guard import MAX_REFUSAL_BYTES, Guard
from streamguard.core.request import Prepared, prepare
from streamguard.core.specs import AllOf, AnyOf, FailPolicy, Policy, Rule, Spec

EXAMPLES = settings(max_examples=120, deadline=None)
MAX_EVENT = 4096

# --------------------------------------------------------------------------- policies and requests

MEAN = Rule("mean_prob", 0.5, 3)
RULES: tuple[Spec, ...] = (
    Rule("first_prob", 0.5, 1),
    MEAN,
    Rule("min_prob", 0.2, 4, start=1, patience=2),
    AnyOf((Rule("min_prob", 0.05, 2, start=1), MEAN)),
    AllOf((Rule("first_prob", 0.6, 1), Rule("quantile_prob", 0.4, 4, skip=("blank",)))),
)
RULES_OR_NONE = st.sampled_from((None, *RULES))
POLICIES = st.builds(
    Policy,
    mode=st.sampled_from(("enforce", "observe")),
    on_abort=st.sampled_from(("finish", "error")),
    refused=st.sampled_from(("retry", "retry", "pass", "reject")),
    dead=st.sampled_from(("all", "any")),
    fail=st.sampled_from((FailPolicy(), FailPolicy(), FailPolicy.all("closed"))),
    rule=RULES_OR_NONE,
)
REQUESTS = st.sampled_from(
    [
        b'{"stream":true%s%s}' % (fields, n)
        for fields in (b"", b"", b',"logprobs":true', b',"logprobs":true,"top_logprobs":1')
        for n in (b"", b',"n":2', b',"n":2,"stream_options":{"include_usage":true}')
    ]
)


def request(policy: Policy, body: bytes) -> Prepared:
    return prepare("/v1/chat/completions", body, policy, limits=Limits())


# --------------------------------------------------------------------------- the grammar

LOGPROBS = st.one_of(
    st.floats(-6.0, 0.0),
    st.sampled_from(
        [0.0, -0.0, 1e-7, 0.5, -9999.0, -3.4028234663852886e38, None, True, "x", math.nan, math.inf]
    ),
)
TOKENS = st.sampled_from(["a", " b", "", " \n", "ü", "\u2028", "</s>", '"logprobs":'])


@st.composite
def entries(draw: st.DrawFn) -> dict[str, Any]:
    entry: dict[str, Any] = {"token": draw(TOKENS), "logprob": draw(LOGPROBS)}
    if draw(st.booleans()):
        entry["top_logprobs"] = [{"token": entry["token"], "logprob": entry["logprob"]}]
    if not draw(st.integers(0, 7)):
        del entry["logprob"]
    return entry


@st.composite
def evidence(draw: st.DrawFn) -> Any:
    listed = draw(st.lists(entries(), max_size=3))
    match draw(st.integers(0, 9)):
        case 0:
            return None
        case 1:
            return {}
        case 2:
            return {"content": None}
        case 3:
            return {"content": None, "refusal": listed}
        case 4:
            return {
                "tokens": [entry["token"] for entry in listed],
                "token_logprobs": [entry.get("logprob") for entry in listed],
                "top_logprobs": None,
            }
        case _:
            return {"content": listed}


@st.composite
def choices(draw: st.DrawFn, index: int) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "delta": {"content": draw(TOKENS)}}
    if draw(st.integers(0, 5)):
        choice["logprobs"] = draw(evidence())
    choice["finish_reason"] = draw(st.sampled_from((None,) * 9 + ("stop",)))
    return choice


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """The data of one event."""
    match draw(st.integers(0, 15)):
        case 0:
            return b"[DONE]"
        case 1:
            return draw(st.sampled_from((b'{"error":{"message":"no logprobs"}}', b'{"error":1}')))
        case 2:
            return draw(st.sampled_from((b"{", b"null", b"1", b"{}", b"[" * 9, b'{"a":"\xff"}')))
        case _:
            listed = [draw(choices(index)) for index in draw(st.sampled_from(((0,), (1,), (0, 1))))]
            value = {"id": "x", "created": 7, "model": "m", "choices": listed}
            indent = draw(st.sampled_from((None, None, None, 1)))
            return json.dumps(value, indent=indent, ensure_ascii=draw(st.booleans())).encode()


@st.composite
def blocks(draw: st.DrawFn, ends: tuple[bytes, ...]) -> bytes:
    """One event, or something between events."""

    def end() -> bytes:
        return draw(st.sampled_from(ends))

    match draw(st.integers(0, 11)):
        case 0:
            return b": ping" + end() + end()
        case 1:
            return end()
        case 2:
            return b"id: 7" + end() + end()
        case 3:
            return b"event: error" + end() + b"data: x" + end() + end()
        case _:
            lines = draw(payloads()).split(b"\n")
            colon = draw(st.sampled_from((b"data: ", b"data:")))
            before = draw(st.sampled_from((b"", b"", b"", b"event: message", b"id: 1")))
            text = before + end() if before else b""
            return text + b"".join(colon + line + end() for line in lines) + end()


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """A whole body."""
    ends = draw(st.sampled_from(((b"\n",), (b"\r\n",), (b"\r",), (b"\n", b"\r\n", b"\r"))))
    first: bytes = draw(
        st.sampled_from((b"",) * 3 + (b'data: {"error":"no logprobs"}' + ends[0] * 2,))
    )
    body: bytes = first + b"".join(draw(st.lists(blocks(ends), max_size=9)))
    if draw(st.booleans()):
        body += draw(st.sampled_from((b"data: [DONE]", b": bye", b"data"))) + ends[0] * draw(
            st.integers(0, 2)
        )
    if not draw(st.integers(0, 4)):
        body = body[: draw(st.integers(0, len(body)))]
    mark: bytes = draw(st.sampled_from((b"", b"", b"", b"\xef\xbb\xbf")))
    return mark + body


@st.composite
def splits(draw: st.DrawFn, body: bytes) -> list[bytes]:
    """The same bytes as several reads."""
    if draw(st.integers(0, 9)) == 0:
        return [body[at : at + 1] for at in range(len(body))]
    places = sorted(draw(st.lists(st.integers(0, len(body)), max_size=9)))
    return [body[a:b] for a, b in itertools.pairwise([0, *places, len(body)])]


# --------------------------------------------------------------------------- running one


@dataclass
class Run:
    """What came of a stream: bytes and the other actions, in one line of events."""

    trace: list[Action]
    report: StreamReport
    most_held: int
    """Bytes told but not yet sent, at most, over the whole run."""

    @property
    def sent(self) -> bytes:
        return b"".join(action.data for action in self.trace if isinstance(action, Send))


def run(
    policy: Policy,
    body: bytes,
    reads: list[bytes],
    *,
    clean: bool = True,
    content_type: str = "text/event-stream",
    max_event_bytes: int = MAX_EVENT,
) -> Run:
    """One stream through a Guard; after an `Again` the same reads come once more."""
    guard = Guard(policy, request(policy, body), id="i", now=0.0, max_event_bytes=max_event_bytes)
    trace: list[Action] = guard.start()
    most_held = 0
    while not _over(guard):
        new = guard.receive_head(200, content_type, None, 0.0)
        told = sent = 0
        for read in reads:
            told += len(read)
            came = guard.receive_data(read, 0.0)
            new += came
            sent += sum(len(action.data) for action in came if isinstance(action, Send))
            if _over(guard) or Again in map(type, came):
                break
            most_held = max(most_held, told - sent)
        else:
            new += guard.receive_eof(0.0, clean=clean)
        trace += new
        assert _over(guard) or Again in map(type, new)
    return Run(_joined(trace), guard.report(), most_held)


def _over(guard: Guard) -> bool:
    return guard.ended


def _joined(trace: list[Action]) -> list[Action]:
    """Neighbouring sends as one."""
    out: list[Action] = []
    for is_send, group in itertools.groupby(trace, key=lambda action: isinstance(action, Send)):
        if is_send:
            out.append(Send(b"".join(a.data for a in group if isinstance(a, Send))))
        else:
            out += group
    return out


# --------------------------------------------------------------------------- the properties


@EXAMPLES
@given(st.data())
def test_any_split_gives_the_same(data: st.DataObject) -> None:
    """Bytes, verdicts and the place of every other action depend on the bytes alone."""
    policy, body = data.draw(POLICIES), data.draw(REQUESTS)
    stream = data.draw(streams())
    clean = data.draw(st.booleans())
    content_type = data.draw(st.sampled_from(("text/event-stream", "application/json")))

    whole = run(policy, body, [stream], clean=clean, content_type=content_type)
    parts = run(policy, body, data.draw(splits(stream)), clean=clean, content_type=content_type)

    assert parts.trace == whole.trace
    assert parts.report == whole.report


@EXAMPLES
@given(st.data())
def test_a_limit_on_events_depends_on_events(data: st.DataObject) -> None:
    """Whether something is too large does not depend on the reads either."""
    policy = data.draw(POLICIES)
    stream = data.draw(streams())
    limit = data.draw(st.integers(8, 400))

    whole = run(policy, b'{"stream":true,"logprobs":true}', [stream], max_event_bytes=limit)
    parts = run(
        policy,
        b'{"stream":true,"logprobs":true}',
        data.draw(splits(stream)),
        max_event_bytes=limit,
    )

    assert (parts.trace, parts.report) == (whole.trace, whole.report)


@EXAMPLES
@given(POLICIES, streams(), st.booleans())
def test_no_action_means_no_difference(policy: Policy, stream: bytes, own: bool) -> None:
    """What goes out is what came in, apart from the values that we asked for ourselves.

    Where the stream breaks off, an event of ours stands behind it.
    """
    body = b'{"stream":true,"logprobs":true}' if own else b'{"stream":true}'
    seen = run(msgspec.structs.replace(policy, mode="observe"), body, [stream])
    refused = any(isinstance(action, (Refuse, Again)) for action in seen.trace)
    assume(not refused)

    expected = stream
    if not own:
        expected = masked(stream)
    outcome = seen.report.outcome
    if outcome in ("complete", "upstream_error"):
        assert seen.sent == expected
    else:
        assert outcome == "upstream_truncated"
        assert seen.sent.startswith(expected)
        rest = seen.sent[len(expected) :].strip()
        assert not rest or json.loads(rest.removeprefix(b"data: "))["error"]["code"] == outcome
    assert [a for a in seen.trace if isinstance(a, Cancel)] == []
    assert seen.trace[-1] == End(clean=outcome != "upstream_truncated")


def masked(stream: bytes) -> bytes:
    """Injected values replaced by null, found by a scanner of the oracle's own."""
    out, at = b"", 0
    for start, end in payload_spans(stream):
        out += stream[at:start] + mask_payload(stream[start:end])
        at = end
    return out + stream[at:]


def payload_spans(stream: bytes) -> list[tuple[int, int]]:
    """Where each event's lines stand: from its first data byte to the end of its last data line.

    Only what can be masked by itself is listed: the lines of one event.
    """
    spans: list[tuple[int, int]] = []
    first = last = -1
    for start, end in lines_of(stream):
        line = stream[start:end]
        if not line:
            if first >= 0:
                spans.append((first, last))
            first = -1
        elif line.startswith(b"data:"):
            if first < 0:
                first = start
            last = end
    if first >= 0:
        spans.append((first, last))
    return spans


def lines_of(stream: bytes) -> list[tuple[int, int]]:
    """Where each line's text stands, one byte at a time."""
    lines: list[tuple[int, int]] = []
    start = at = 3 if stream.startswith(b"\xef\xbb\xbf") else 0
    while at < len(stream):
        if stream[at : at + 1] in (b"\r", b"\n"):
            lines.append((start, at))
            at += 2 if stream[at : at + 2] == b"\r\n" else 1
            start = at
        else:
            at += 1
    lines.append((start, at))
    return lines


def mask_payload(block: bytes) -> bytes:
    """One event's data lines with each `choices[].logprobs` value as null.

    The places are found with the standard library's own scanner: `raw_decode` tells where the
    value ends. Only text of the shape that this file's grammar writes is understood.
    """
    fields = [block[s:e] for s, e in lines_of(block)]
    data = [f[5:].removeprefix(b" ") for f in fields if f.startswith(b"data:")]
    kind, value = reader.classify(b"\n".join(data).decode("utf-8", "replace"))
    if kind != "chunk":
        return block
    for choice in value["choices"]:
        if choice.get("logprobs") is None:
            continue
        block = mask_one(block, choice["logprobs"])
    return block


def mask_one(block: bytes, value: Any) -> bytes:
    """Replace the first not yet masked `"logprobs"` member whose value is `value`."""
    key = b'"logprobs": '
    at = block.index(key + b"{") + len(key)
    depth, quoted, place = 0, False, at
    while True:
        byte = block[place : place + 1]
        if quoted:
            place += byte == b"\\"
            quoted = byte != b'"'
        elif byte == b'"':
            quoted = True
        elif byte in (b"{", b"["):
            depth += 1
        elif byte in (b"}", b"]"):
            depth -= 1
        place += 1
        if not depth:
            break
    return block[:at] + b"null" + block[place:]


@EXAMPLES
@given(st.data())
def test_lowering_one_logprob_never_saves_an_answer(data: st.DataObject) -> None:
    """An abort stays an abort, at the same place or earlier, when a scorable entry gets worse."""
    rule = data.draw(st.sampled_from(RULES))
    policy = Policy(rule=rule)
    logs = data.draw(st.lists(st.floats(-6.0, 0.0), min_size=1, max_size=8))
    tokens = [data.draw(TOKENS) for _ in logs]
    at = data.draw(st.integers(0, len(logs) - 1))
    lower = data.draw(st.floats(-8000.0, logs[at]))
    last = data.draw(st.booleans())

    def verdict(values: list[float]) -> tuple[str | None, int | None]:
        chunks = [chunk(t, v) for t, v in zip(tokens, values, strict=True)]
        tail = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
        body = b'{"stream":true,"logprobs":true,"top_logprobs":1}'
        report = run(policy, body, [*chunks, tail] if last else chunks).report
        (choice,) = report.choices
        return choice.verdict, choice.position

    before, place = verdict(logs)
    after, earlier = verdict([*logs[:at], lower, *logs[at + 1 :]])
    if before == "abort":
        assert after == "abort"
        assert place is not None
        assert earlier is not None
        assert earlier <= place


def chunk(token: str, logprob: float) -> bytes:
    """One token with its entry."""
    entry = {"token": token, "logprob": logprob}
    listed = {"content": [{**entry, "top_logprobs": [entry]}]}
    choice = {"index": 0, "delta": {"content": token}, "logprobs": listed, "finish_reason": None}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


@EXAMPLES
@given(RULES_OR_NONE, streams(), st.integers(16, 300), st.integers(1, 200), st.integers(0, 900))
def test_held_bytes_are_bounded(
    rule: Spec | None, stream: bytes, limit: int, size: int, more: int
) -> None:
    """Never more than one event and one read wait, while nothing is left out."""
    stream += b"data: " + b"x" * more
    reads = [stream[at : at + size] for at in range(0, len(stream), size)]
    policy = Policy(mode="observe", rule=rule)

    seen = run(policy, b'{"stream":true,"logprobs":true}', reads, max_event_bytes=limit)

    assert seen.most_held <= limit + size


@EXAMPLES
@given(st.sampled_from(RULES), streams())
def test_a_cut_keeps_what_came_before_it(rule: Spec, stream: bytes) -> None:
    """Up to the deciding event the client has the upstream's bytes, then events of ours only."""
    stream += chunk("a", -5.0) * 4 + chunk("b", -0.1)
    seen = run(Policy(rule=rule), b'{"stream":true,"logprobs":true}', [stream])
    assume(seen.report.outcome == "aborted")
    assume(len(seen.report.choices) == 1)

    same = 0
    while same < min(len(seen.sent), len(stream)) and seen.sent[same] == stream[same]:
        same += 1
    (ours, *_), _ = reader.sse_events(seen.sent[seen.sent.rindex(b"data: {", 0, same + 8) :])
    assert json.loads(ours.data)["streamguard"]["verdict"] == "abort"
    assert [type(action) for action in seen.trace[-3:]] == [Cancel, Send, End]


def test_comments_that_wait_for_a_refusal_are_bounded() -> None:
    """An upstream that sends keep-alives for ever before its first event can't fill the memory."""
    policy = Policy(rule=MEAN)
    guard = Guard(policy, request(policy, b'{"stream":true}'), id="i", now=0.0)
    guard.receive_head(200, "text/event-stream", None, 0.0)
    ping = b": " + b"x" * 500 + b"\n\n"
    told = sent = most = 0
    while told < 4 * MAX_REFUSAL_BYTES:
        told += len(ping)
        actions = guard.receive_data(ping, 0.0)
        sent += sum(len(action.data) for action in actions if isinstance(action, Send))
        most = max(most, told - sent)
    assert MAX_REFUSAL_BYTES // 2 < most <= MAX_REFUSAL_BYTES + len(ping)


# --------------------------------------------------------------------------- nothing raises

RECORDED = [
    corpus.response(name).body
    for name in corpus.NAMES
    if corpus.response(name).content_type == "text/event-stream"
    and 0 < len(corpus.response(name).body) < 20_000
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A recorded answer with some bytes changed, left out or put in."""
    body = bytearray(draw(st.sampled_from(RECORDED)))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(body) - 1))
        match draw(st.integers(0, 3)):
            case 0:
                body[at] = draw(st.integers(0, 255))
            case 1:
                del body[at : at + draw(st.integers(1, 40))]
            case 2:
                body[at:at] = draw(st.binary(max_size=8))
            case _:
                word = draw(
                    st.sampled_from((b"NaN", b"1e999", b"null", b"\r\r", b'"', b"}", b"[[[["))
                )
                body[at:at] = word
        body = body or bytearray(b"\n")
    return bytes(body)


@EXAMPLES
@given(
    POLICIES,
    REQUESTS,
    st.one_of(st.binary(max_size=300), damaged(), streams()),
    st.sampled_from((200, 200, 200, 400, 404, 500)),
    st.sampled_from(("text/event-stream", "application/json", None)),
    st.sampled_from((None, None, None, "gzip")),
    st.booleans(),
    st.integers(1, 400),
)
@example(Policy(), b'{"stream":true}', b"", 200, None, None, True, 1)
def test_nothing_raises(
    policy: Policy,
    body: bytes,
    stream: bytes,
    status: int,
    content_type: str | None,
    encoding: str | None,
    clean: bool,
    size: int,
) -> None:
    """Whatever comes, every request ends once, with a report, and stays ended."""
    guard = Guard(policy, request(policy, body), id="i", now=0.0, max_event_bytes=MAX_EVENT)
    actions = guard.start()
    for _ in range(2):
        actions += guard.receive_head(status, content_type, encoding, 0.0)
        for at in range(0, len(stream), size):
            actions += guard.receive_data(stream[at : at + size], 0.0)
        actions += guard.receive_eof(0.0, clean=clean)
        if guard.ended:
            break

    assert guard.ended
    assert guard.outcome is not None
    endings = [action for action in actions if isinstance(action, (End, Refuse))]
    assert endings == actions[-1:]
    assert len([action for action in actions if isinstance(action, Cancel)]) <= 2
    assert guard.receive_data(b"data: x\n\n", 0.0) == []
    encoded = json.loads(json.dumps(guard.report().as_dict(), allow_nan=False))
    assert encoded["outcome"] == guard.outcome


# --------------------------------------------------------------------------- the counts are right


@EXAMPLES
@given(streams(), st.sampled_from((None, 0, 1)), st.booleans())
@example(b"event: error\ndata: x\r\n\r", 1, False)
@example(b"data: x\r\n\r", 1, False)
@example(b"event: error\ndata: x", 1, False)
def test_the_counts_are_those_of_an_independent_reader(
    stream: bytes, asked: int | None, clean: bool
) -> None:
    """Events, entries, scorable ones, mean, minimum, finish and outcome, for every choice."""
    prepared = Prepared(guarded=True, dialect="chat", body=b"", original=b"", asked=asked)
    guard = Guard(Policy(mode="observe"), prepared, id="i", now=0.0, watch_all=True)
    guard.receive_head(200, "text/event-stream", None, 0.0)
    guard.receive_data(stream, 0.0)
    guard.receive_eof(0.0, clean=clean)
    report = guard.report()
    answer = reader.read_body(stream, clean=clean)
    assume(reader.looks_like_sse(stream, "text/event-stream"))

    assert (report.events, report.outcome) == (answer.events, answer.outcome)
    assert [choice.index for choice in report.choices] == sorted(answer.choices)
    for choice in report.choices:
        told = answer.choices[choice.index]
        logs = [token.logprob for _, token in told.scorable(asked)]
        assert (choice.entries, choice.scorable) == (len(told.entries), len(logs))
        assert choice.finish_reason == told.finish_reason
        assert choice.min_logprob == (min(logs) if logs else None)
        assert choice.mean_logprob == (pytest.approx(math.fsum(logs) / len(logs)) if logs else None)


def test_the_grammar_reaches_every_ending() -> None:
    """The properties above are about something: cuts, second attempts and refusals all occur."""
    found: set[str] = set()

    @settings(max_examples=200, deadline=None, database=None, derandomize=True)
    @given(POLICIES, REQUESTS, streams())
    def look(policy: Policy, body: bytes, stream: bytes) -> None:
        seen = run(policy, body, [stream])
        found.add(seen.report.outcome)
        found.update(type(action).__name__ for action in seen.trace)

    look()
    assert found >= {
        "aborted",
        "complete",
        "upstream_error",
        "upstream_truncated",
        "Send",
        "Cancel",
        "End",
        "Refuse",
        "Again",
    }
