"""I3 and I14: without an action nothing changes; with one, chunking changes nothing."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from tests.support.bench import GUARD, Bench, Serve
from tests.support.streams import (
    PATHS,
    Dialect,
    event,
    nulled,
    payloads,
    request,
    sliced,
    stream,
)
from tests.support.upstream import SSE_HEAD, answer, pieces, raw, sse
from tests.support.wire import Dechunker

FIXTURES = Path(__file__).parent.parent / "fixtures"
RECORDINGS = sorted(FIXTURES.glob("**/*stream*.http"))


def recording(path: Path) -> tuple[bytes, bytes]:
    """The head, with its empty line, and the body as it was framed."""
    data = path.read_bytes()
    end = data.index(b"\r\n\r\n") + 4
    return data[:end], data[end:]


def payload(head: bytes, framed: bytes) -> bytes:
    """The body without its framing."""
    if b"transfer-encoding: chunked" not in head.lower():
        return framed
    dechunker = Dechunker()
    dechunker.feed(framed)
    return bytes(dechunker.body)


def dialect_of(path: Path) -> Dialect:
    """By the name of the recording."""
    return "completions" if path.name.startswith("completions") else "chat"


def replayable(path: Path) -> bool:
    """A whole answer to a guarded request: what breaks off has tests of its own."""
    return not path.name.startswith(("responses", "native", "messages", "die-"))


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "injected"])
@pytest.mark.parametrize(
    "path", [p for p in RECORDINGS if replayable(p)], ids=lambda p: f"{p.parent.name}/{p.stem}"
)
def test_recordings_come_through_unchanged(serve: Serve, path: Path, asked: bool) -> None:
    """A recorded answer of a real server reaches the client byte for byte (I3).

    Where the guard asked on the client's behalf, the values it asked for are null instead.
    """
    bench = serve("--signal", "mean_prob", "--below", "0", "--first", "3")
    head, framed = recording(path)
    bench.upstream.answers(raw(head + framed))
    dialect = dialect_of(path)
    # A refusal is remembered by the model's name: no two recordings may share one.
    more: dict[str, object] = {"model": f"{path.parent.name}/{path.stem}"}
    if asked:
        more |= {"logprobs": True, "top_logprobs": 1} if dialect == "chat" else {"logprobs": 1}

    got = bench.stream(dialect, **more)

    body = payload(head, framed)
    is_stream = b"content-type: text/event-stream" in head.lower()
    if not is_stream and not asked and b'"logprobs":{' in body:
        # A plain answer although a stream was asked: the values are null in it too.
        whole = json.loads(body)
        for choice in whole["choices"]:
            choice["logprobs"] = None
        assert json.loads(got.body) == whole
        assert len(got.body) < len(body)
    else:
        assert got.body == (nulled(body) if is_stream and not asked else body)
    assert got.ending == "complete"


def test_headers_come_through_unchanged(guard: Bench) -> None:
    """Every end-to-end field of the answer arrives, in order and spelling; hop-by-hop do not."""
    fields = [
        ("Content-Type", "text/event-stream; charset=utf-8"),
        ("X-Request-Id", "abc"),
        ("x-ratelimit-remaining-tokens", "17"),
        ("retry-after-ms", "20"),
        ("OpenAI-Processing-Ms", "3"),
        ("Server", "somebody"),
        ("Date", "Mon, 30 Nov 2026 23:48:06 GMT"),
        ("Set-Cookie", "a=1; Path=/"),
        ("Set-Cookie", "b=2; Path=/"),
    ]
    hops = [("Connection", "keep-alive, X-Hop"), ("X-Hop", "1"), ("Keep-Alive", "timeout=5")]
    head = "\r\n".join(
        [
            "HTTP/1.1 200 Fine",
            *(f"{name}: {value}" for name, value in fields + hops),
            "Transfer-Encoding: chunked",
            "",
            "",
        ]
    )
    guard.upstream.answers(sse(stream("chat", [0.9] * 3), head=head.encode()))

    got = guard.stream("chat")

    ours = {"transfer-encoding", "connection"}
    theirs = [
        (name, value)
        for name, value in got.head.fields
        if name.lower() not in ours and not name.lower().startswith("x-streamguard-")
    ]
    assert got.head.start == "HTTP/1.1 200 Fine"
    assert theirs == fields


@pytest.mark.parametrize(
    "status",
    [
        "400 Bad Request",
        "401 Unauthorized",
        "403 Forbidden",
        "404 Not Found",
        "409 Conflict",
        "429 Too Many Requests",
        "500 Internal Server Error",
        "503 Busy",
        "529 Overloaded",
    ],
)
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b'{"error": {"message": "no", "type": "t", "code": "c"}}'),
        ("text/html", b"<html>no</html>"),
        ("text/plain", b""),
    ],
    ids=["json", "html", "empty"],
)
def test_error_answers_pass_verbatim(guard: Bench, status: str, kind: str, body: bytes) -> None:
    """An HTTP error answer keeps its status, body and the fields that SDKs read (B03)."""
    fields = ["Retry-After: 7", "retry-after-ms: 7000", "x-ratelimit-limit: 1", "x-request-id: r"]
    guard.upstream.answers(answer(status, body, *fields, content_type=kind))

    got = guard.stream("chat")

    assert got.head.start == f"HTTP/1.1 {status}"
    assert got.body == body
    for line in [*fields, f"Content-Type: {kind}"]:
        name, _, value = line.partition(": ")
        assert got.head.get(name) == value
    assert len(guard.upstream.exchanges) == 1
    assert guard.record()["outcome"] == "complete"


def test_plain_json_although_a_stream_was_asked(guard: Bench) -> None:
    """A JSON answer with status 200 is passed verbatim, and counted as what it is (B01)."""
    body = b'{"choices": [{"index": 0, "message": {"content": "x"}}]}'
    guard.upstream.answers(answer("200 OK", body))

    got = guard.stream("chat", model="answers-in-json")

    injected = b'{"content": [{"token": "x", "logprob": -0.1}]}'
    assert got.body == body.replace(injected, b"null")
    assert got.head.get("x-streamguard-status") == "opaque"
    record = guard.record()
    assert (record["outcome"], record["opaque_reason"]) == ("complete", "not_sse")


def test_plain_json_with_logprobs_is_no_refusal(guard: Bench) -> None:
    """A JSON answer that carries what we asked for names logprobs too: it is bought once."""
    body = json.dumps(
        {
            "object": "chat.completion",
            "choices": [
                {
                    "index": 0,
                    "message": {"content": "x"},
                    "logprobs": {"content": [{"token": "x", "logprob": -0.1}]},
                    "finish_reason": "stop",
                }
            ],
        }
    ).encode()
    guard.upstream.answers(answer("200 OK", body))

    got = guard.stream("chat", model="answers-in-json")

    injected = b'{"content": [{"token": "x", "logprob": -0.1}]}'
    assert got.body == body.replace(injected, b"null")
    assert got.head.get("x-streamguard-status") == "opaque"
    assert len(guard.upstream.exchanges) == 1


@pytest.mark.parametrize("length", [0, 1, 65536, 3_000_000])
def test_bodies_pass_through_both_ways(guard: Bench, length: int) -> None:
    """What is not guarded passes byte for byte, in both directions."""
    sent = random.Random(length).randbytes(length)
    back = sent[::-1]
    guard.upstream.answers(answer("200 OK", back, content_type="application/octet-stream"))
    client = guard.client()
    client.request("POST", "/v1/files", sent, ["X-Anything: 1"])

    got = client.answer()

    assert got.body == back
    assert guard.upstream.exchange().request.body == sent


def test_a_chunked_request_body_passes(guard: Bench) -> None:
    """A body without a length passes chunk by chunk while it is still being sent."""
    guard.upstream.answers(answer("200 OK", b"{}"))
    client = guard.client()
    client.requests += 1
    client.send(
        b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    )
    client.send(b"6\r\n world\r\n0\r\n\r\n")

    assert client.answer().body == b"{}"
    assert guard.upstream.exchange().request.body == b"hello world"


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"])
def test_any_method_and_path_passes(guard: Bench, method: str) -> None:
    """Method, raw path and query reach the upstream as they were sent."""
    body = b"" if method in ("GET", "HEAD") else b"{}"
    guard.upstream.answers(answer("200 OK", b"" if method == "HEAD" else b"ok"))
    client = guard.client()
    client.request(method, "/v1/x/%7Ey;z=1/%C3%A9?q=a%2Fb&&c", body)

    got = client.answer()

    assert got.status == 200
    received = guard.upstream.exchange().request
    assert (received.method, received.target) == (method, "/v1/x/%7Ey;z=1/%C3%A9?q=a%2Fb&&c")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
def test_with_and_without_v1(guard: Bench, path: str) -> None:
    """`--upstream .../v1` serves both spellings of a path."""
    guard.upstream.answers(sse(stream("chat", [0.9] * 3)))
    guard.ask("chat", path=path).answer()

    assert guard.upstream.exchange().request.target == "/v1/chat/completions"


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_answers_without_a_body(guard: Bench, status: str) -> None:
    """An answer that has no body ends with its head, and the connection is kept (B25)."""
    guard.upstream.answers(
        lambda e: e.send(f"HTTP/1.1 {status}\r\nETag: x\r\n\r\n".encode()),
        answer("200 OK", b"next"),
    )
    client = guard.client()
    client.request("GET", "/v1/a")
    first = client.answer()
    client.request("GET", "/v1/b")

    assert first.head.start == f"HTTP/1.1 {status}"
    assert client.answer().body == b"next"


def test_trailers_do_not_reach_the_body(guard: Bench) -> None:
    """Fields behind the last chunk are dropped; the body is whole."""
    events = stream("chat", [0.9] * 3)
    guard.upstream.answers(sse(events, after=lambda e: e.send(b"0\r\nX-Sum: 1\r\n\r\n")))

    got = guard.stream("chat")

    assert (got.body, got.ending) == (nulled(b"".join(events)), "complete")


def test_http_1_0_clients_get_no_chunks(guard: Bench) -> None:
    """A client that cannot read chunks gets the body until the close."""
    events = stream("chat", [0.9] * 3)
    guard.upstream.answers(sse(events))
    client = guard.client()
    client.requests += 1
    body = request("chat")
    client.send(b"POST /v1/chat/completions HTTP/1.0\r\nHost: 127.0.0.1\r\n")
    client.send(b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body))
    client.send(body)

    head, _, got = client.read_all().partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert got == nulled(b"".join(events))


def test_the_answer_says_who_watched_it(guard: Bench) -> None:
    """The marks on a guarded answer: the record's id, policy, mode and status."""
    guard.upstream.answers(sse(stream("chat", [0.9] * 3)))

    head = guard.stream("chat").head

    assert head.get("x-streamguard-id") == guard.record()["id"]
    assert head.get("x-streamguard-policy") == "default"
    assert head.get("x-streamguard-mode") == "enforce"
    assert head.get("x-streamguard-status") == "guarded"
    assert head.get("x-streamguard-reason") is None


# --------------------------------------------------------------------------- I14


@pytest.mark.parametrize("dialect", list(PATHS))
@pytest.mark.parametrize("sizes", [[1], [2, 3, 5], [7], [64], [1000], [10**6]])
def test_chunking_changes_nothing(guard: Bench, dialect: Dialect, sizes: list[int]) -> None:
    """The same stream cut anywhere: same bytes, same verdict, same position (I14)."""
    body = b"".join(stream(dialect, [0.9, 0.2, 0.05, 0.1, 0.1]))
    guard.upstream.answers(pieces(sliced(body, sizes)))

    got = guard.stream(dialect)

    told = payloads(got.body)
    finish = told[-2]["streamguard"]
    record = guard.record()
    assert finish["position"] == record["choices"][0]["position"] == 3
    assert finish["score"] == pytest.approx(math.exp(math.log(0.9 * 0.2 * 0.05) / 3))
    assert record["choices"][0]["entries"] == 3
    deciding = 4 if dialect == "chat" else 3
    prefix = nulled(b"".join(stream(dialect, [0.9, 0.2, 0.05, 0.1, 0.1])[:deciding]))
    assert got.body.startswith(prefix)
    assert len(told) == deciding + 2


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_line_ends_are_kept_and_imitated(guard: Bench, ending: bytes) -> None:
    """CR, LF or CRLF: bytes pass as they came, the tail uses the stream's own line end."""
    body = b"".join(stream("chat", [0.1] * 5)).replace(b"\n", ending)
    guard.upstream.answers(pieces(sliced(body, [11])))

    got = guard.stream("chat")

    assert got.body.endswith(b"data: [DONE]" + ending * 2)
    if ending != b"\n":
        assert b"\n" not in got.body.replace(b"\r\n", b"") or ending == b"\r\n"
    assert payloads(got.body.replace(ending, b"\n"))[-2]["streamguard"]["position"] == 3


def test_a_slow_byte_by_byte_stream(guard: Bench) -> None:
    """One byte a segment on the raw socket, HTTP framing included (A12)."""
    events = stream("completions", [0.9] * 3)
    guard.upstream.answers(sse(events, slice_bytes=1))

    assert guard.stream("completions").body == nulled(b"".join(events))


def test_comments_and_foreign_fields_pass(guard: Bench) -> None:
    """Comments, `event:`, `id:`, `retry:` and events that are not ours pass untouched."""
    parts = [
        b": OPENROUTER PROCESSING\n\n",
        b"event: message\nid: 7\nretry: 3\n",
        stream("chat", [])[0],
        b":\n",
        event({"object": "timing", "x": [1, 2]}),
        *stream("chat", [0.9] * 3)[1:],
        b": bye\n\n",
    ]
    guard.upstream.answers(pieces(parts))

    assert guard.stream("chat").body == nulled(b"".join(parts))


def test_an_answer_until_close_is_whole(guard: Bench) -> None:
    """A body framed by the close of the connection ends cleanly for the client too."""
    body = b"".join(stream("chat", [0.9] * 3))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    guard.upstream.answers(raw(head + body))

    got = guard.stream("chat")

    assert (got.body, got.ending) == (nulled(body), "complete")
    assert guard.record()["outcome"] == "complete"


def test_mode_off_changes_no_byte(serve: Serve) -> None:
    """`--mode off` neither asks nor reads."""
    bench = serve(*GUARD, "--mode", "off")
    body = b"".join(stream("chat", [0.1] * 5))
    bench.upstream.answers(pieces([body], head=SSE_HEAD))
    client = bench.client()
    sent = request("chat")
    client.request("POST", PATHS["chat"], sent)

    assert client.answer().body == body
    assert bench.upstream.exchange().request.body == sent
