"""What may not come in: smuggled requests, oversized heads, doubled fields, foreign pages."""

from __future__ import annotations

import json

import pytest
from tests.support.bench import GUARD, Bench, Serve
from tests.support.client import Client
from tests.support.streams import request, stream
from tests.support.upstream import answer, sse

HOST = b"Host: 127.0.0.1\r\n"
GUARDED = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST
PASSING = b"POST /v1/files HTTP/1.1\r\n" + HOST
SMUGGLED = b"GET /v1/smuggled HTTP/1.1\r\n" + HOST + b"\r\n"
BODY = b'{"stream": true, "messages": []}'


def framed(*fields: bytes, body: bytes = BODY) -> bytes:
    """Framing fields, the empty line, a body."""
    return b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body


LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)

# What stands after the start line and Host; each hides a second request in a body, or tries to.
SMUGGLING: dict[str, bytes] = {
    "cl.te": framed(LENGTH, b"Transfer-Encoding: chunked", body=b"0\r\n\r\n" + SMUGGLED),
    "te.cl": framed(b"Transfer-Encoding: chunked", b"Content-Length: 4", body=CHUNKS + SMUGGLED),
    "te.te": framed(b"Transfer-Encoding: chunked", b"Transfer-Encoding: x", body=CHUNKS + SMUGGLED),
    "te twice": framed(*[b"Transfer-Encoding: chunked"] * 2, body=CHUNKS + SMUGGLED),
    "te identity": framed(b"Transfer-Encoding: identity", LENGTH, body=BODY + SMUGGLED),
    "te xchunked": framed(b"Transfer-Encoding: xchunked", body=CHUNKS + SMUGGLED),
    "te chunked, identity": framed(b"Transfer-Encoding: chunked, identity", body=CHUNKS + SMUGGLED),
    "te vertical tab": framed(b"Transfer-Encoding: \x0bchunked", body=CHUNKS + SMUGGLED),
    "te quoted": framed(b'Transfer-Encoding: "chunked"', body=CHUNKS + SMUGGLED),
    "te space before colon": framed(b"Transfer-Encoding : chunked", LENGTH, body=CHUNKS),
    "te folded": framed(b"Transfer-Encoding:\r\n chunked", LENGTH, body=CHUNKS),
    "te with nul": framed(b"Transfer-Encoding: chunked\x00", body=CHUNKS + SMUGGLED),
    "te underscore": framed(b"Transfer_Encoding: chunked", LENGTH, body=BODY),
    "two lengths": framed(LENGTH, b"Content-Length: 0", body=BODY + SMUGGLED),
    "two equal lengths": framed(LENGTH, LENGTH, body=BODY),
    "length list": framed(b"Content-Length: 5, 5", body=b"hello" + SMUGGLED),
    "length plus": framed(b"Content-Length: +5", body=b"hello" + SMUGGLED),
    "length minus": framed(b"Content-Length: -5", body=SMUGGLED),
    "length hex": framed(b"Content-Length: 0x5", body=b"hello" + SMUGGLED),
    "length overflow": framed(b"Content-Length: 18446744073709551621", body=b"hello" + SMUGGLED),
    "length space inside": framed(b"Content-Length: 1 0", body=SMUGGLED),
    "length empty": framed(b"Content-Length:", body=SMUGGLED),
    "length float": framed(b"Content-Length: 5.0", body=b"hello" + SMUGGLED),
    "length underscore": framed(b"Content-Length: 1_0", body=SMUGGLED),
    "length arabic digits": framed(b"Content-Length: \xd9\xa5", body=b"hello" + SMUGGLED),
    "length space before colon": framed(b"Content-Length : 5", body=b"hello" + SMUGGLED),
    "length folded": framed(b"Content-Length:\r\n 5", body=b"hello" + SMUGGLED),
    "folded first": framed(b" X: 1", LENGTH),
    "bare lf": framed(b"X: 1\n" + LENGTH),
    "bare lf at the end": b"X: 1\r\n" + LENGTH + b"\n\n" + SMUGGLED,
    "bare cr in value": framed(b"X: a\rContent-Length: 0", LENGTH),
    "nul in value": framed(b"X: a\x00b", LENGTH),
    "no colon": framed(b"Content-Length", LENGTH),
    "empty name": framed(b": x", LENGTH),
    "name with space": framed(b"X Y: 1", LENGTH),
    "chunk size minus": framed(b"Transfer-Encoding: chunked", body=b"-1\r\n" + SMUGGLED),
    "chunk size hex": framed(b"Transfer-Encoding: chunked", body=b"0x5\r\nhello\r\n0\r\n\r\n"),
    "chunk size overflow": framed(
        b"Transfer-Encoding: chunked", body=b"1" + b"0" * 16 + b"\r\n" + SMUGGLED
    ),
    "chunk size space": framed(b"Transfer-Encoding: chunked", body=b"5 \r\nhello\r\n0\r\n\r\n"),
    "chunk size bare lf": framed(b"Transfer-Encoding: chunked", body=b"5\nhello\r\n0\r\n\r\n"),
    "chunk extension bare lf": framed(
        b"Transfer-Encoding: chunked", body=b"5;a\nhello\r\n0\r\n\r\n" + SMUGGLED
    ),
    "chunk without end": framed(
        b"Transfer-Encoding: chunked", body=b"5\r\nhelloX0\r\n\r\n" + SMUGGLED
    ),
    "length as trailer": framed(
        b"Transfer-Encoding: chunked", body=b"0\r\nContent-Length: 40\r\n\r\n"
    ),
    "after close": framed(b"Connection: close", LENGTH, body=BODY + SMUGGLED),
}

# Whole heads that are wrong in their first lines.
STARTS: dict[str, bytes] = {
    "http/0.9": b"GET /v1/models\r\n\r\n",
    "http/2.0": b"GET /v1/models HTTP/2.0\r\n" + HOST + b"\r\n",
    "http/3.7": b"GET /v1/models HTTP/3.7\r\n" + HOST + b"\r\n",
    "preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /v1/models HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "tab": b"GET\t/v1/models\tHTTP/1.1\r\n" + HOST + b"\r\n",
    "lower method": b"get /v1/models HTTP/1.1\r\n" + HOST + b"\r\n",
    "control in target": b"GET /v1/mo\x01dels HTTP/1.1\r\n" + HOST + b"\r\n",
    "connect": b"CONNECT evil.example:443 HTTP/1.1\r\n" + HOST + b"\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


def drained(client: Client) -> bytes:
    """What comes back until the command closes, or a whole answer has come."""
    client.sock.settimeout(0.8)
    found = b""
    try:
        while data := client.sock.recv(65536):
            found += data
    except TimeoutError:
        return found
    except ConnectionResetError:
        return found
    return found


@pytest.fixture
def door(serve: Serve) -> Bench:
    """A guard with short clocks for heads and bodies; the records are not counted here."""
    bench = serve(*GUARD, env={"STREAMGUARD_HEAD_S": "0.4", "STREAMGUARD_BODY_S": "0.4"})
    bench.uncounted = True
    bench.upstream.answers(sse(stream("chat", [0.9] * 3)))
    return bench


def check_one_at_most(door: Bench, found: bytes, *, closed: bool) -> None:
    """One upstream request at most and never the smuggled one; a refusal closes."""
    probe = door.client()
    probe.request("GET", "/v1/probe")
    assert probe.answer().status == 200
    targets = [exchange.request.target for exchange in door.upstream.exchanges]
    assert targets.pop() == "/v1/probe"
    assert "/v1/smuggled" not in targets
    assert len(targets) <= 1
    if not targets:
        assert found.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")) or not found
        assert closed, "a refused connection stays open"
        assert b"sk-" not in found


@pytest.mark.parametrize("start", [GUARDED, PASSING], ids=["guarded", "passing"])
@pytest.mark.parametrize("case", list(SMUGGLING))
def test_nothing_is_smuggled(door: Bench, case: str, start: bytes) -> None:
    """At most one upstream request, or 400 and close (F19)."""
    client = door.client()
    client.send(start + SMUGGLING[case])
    found = drained(client)

    assert found.count(b"HTTP/1.1 200") <= 1
    check_one_at_most(door, found, closed=_is_closed(client))


@pytest.mark.parametrize("case", list(STARTS))
def test_strange_starts_are_refused(door: Bench, case: str) -> None:
    """What is not an HTTP/1 request to this server is refused and closed."""
    client = door.client()
    client.send(STARTS[case])
    found = drained(client)

    assert found == b"" or 400 <= int(found.split(b" ")[1]) < 600, found
    check_one_at_most(door, found, closed=_is_closed(client))


def _is_closed(client: Client) -> bool:
    try:
        return client.sock.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_pipelined_requests_are_served_in_order(guard: Bench) -> None:
    """Two honest requests in one write: two answers, two upstream requests, in order."""
    guard.upstream.answers(answer("200 OK", b"first"), answer("200 OK", b"second"))
    client = guard.client()
    client.requests += 2
    client.send((b"GET /v1/a HTTP/1.1\r\n" + HOST + b"\r\n") + b"GET /v1/b HTTP/1.1\r\n" + HOST)
    client.send(b"\r\n")

    assert [client.answer().body, client.answer().body] == [b"first", b"second"]
    assert [e.request.target for e in guard.upstream.exchanges] == ["/v1/a", "/v1/b"]


# --------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    "fields",
    [
        b"".join(b"X-%d: 1\r\n" % number for number in range(1200)),
        b"X: " + b"x" * 9000 + b"\r\n",
        b"X" * 9000 + b": x\r\n",
        b"".join(b"X-%d: %b\r\n" % (number, b"x" * 8000) for number in range(130)),
    ],
    ids=["many", "long value", "long name", "a megabyte"],
)
def test_heads_have_limits(door: Bench, fields: bytes) -> None:
    """Too many fields, too long a line, too large a head: 400 or 431, and closed (F20)."""
    client = door.client()
    try:
        client.send(GUARDED + fields + LENGTH + b"\r\n\r\n" + BODY)
    except OSError:
        pass  # it did not wait for the rest
    found = drained(client)

    assert found == b"" or found.split(b" ")[1] in (b"400", b"431")
    assert door.upstream.exchanges == []


def test_a_long_target_is_refused(door: Bench) -> None:
    """A request line beyond the limit."""
    client = door.client()
    client.send(b"GET /v1/" + b"x" * 9000 + b" HTTP/1.1\r\n" + HOST + b"\r\n")

    assert drained(client).split(b" ")[1] in (b"400", b"414", b"431")
    assert door.upstream.exchanges == []


def test_many_trailers_are_refused(door: Bench) -> None:
    """Ten thousand trailer fields behind a body."""
    trailers = b"".join(b"X-%d: 1\r\n" % number for number in range(10_000))
    client = door.client()
    head = PASSING + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"
    try:
        client.send(head + trailers + b"\r\n")
    except OSError:
        pass  # it did not wait for the rest
    found = drained(client)

    assert found.count(b"HTTP/1.1 ") <= 1
    for exchange in door.upstream.exchanges:
        assert "x-1" not in exchange.request.head.names


@pytest.mark.parametrize("over", [0, 1])
def test_a_guarded_body_has_a_limit(serve: Serve, over: int) -> None:
    """The limit itself passes; one byte more is 413 before the upstream is asked (C10)."""
    bench = serve(*GUARD, env={"STREAMGUARD_BODY_MAX_BYTES": "100000"})
    bench.upstream.answers(sse(stream("chat", [0.9] * 3)))
    empty = len(request("chat", prompt=""))
    client = bench.client()
    client.request(
        "POST", "/v1/chat/completions", request("chat", prompt="x" * (100_000 - empty + over))
    )
    got = client.answer()

    assert got.status == (413 if over else 200)
    assert len(bench.upstream.exchanges) == (0 if over else 1)
    assert bench.record()["outcome"] == ("bad_request" if over else "complete")


def test_a_body_without_a_length_has_a_limit_too(serve: Serve) -> None:
    """Received bytes count, not announced ones."""
    bench = serve(*GUARD, env={"STREAMGUARD_BODY_MAX_BYTES": "100000"})
    client = bench.client()
    client.requests += 1
    client.send(GUARDED + b"Transfer-Encoding: chunked\r\n\r\n")
    try:
        for _ in range(12):
            client.send(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
        client.send(b"0\r\n\r\n")
    except OSError:
        pass  # it did not wait for the rest
    assert client.answer().status == 413
    assert bench.upstream.exchanges == []


@pytest.mark.parametrize(("path", "status"), [("/v1/chat/completions", 413), ("/v1/files", 200)])
def test_expectations(serve: Serve, path: str, status: int) -> None:
    """100-continue: a body too large is refused unread; one that passes is asked for (C09)."""
    bench = serve(*GUARD, env={"STREAMGUARD_BODY_MAX_BYTES": "100000"})
    bench.upstream.answers(answer("200 OK", b"{}"))
    client = bench.client()
    client.requests += 1
    client.send(
        b"POST %b HTTP/1.1\r\n%bExpect: 100-continue\r\nContent-Length: 200000\r\n\r\n"
        % (path.encode(), HOST)
    )
    if status == 200:
        assert client.sock.recv(100).startswith(b"HTTP/1.1 100 ")
        client.send(b"x" * 200_000)

    assert client.answer().status == status


# --------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    "doubled",
    [
        "Authorization: Bearer a|Authorization: Bearer b",
        "x-api-key: a|X-Api-Key: b",
        "Content-Type: text/plain",  # beside the one every request here has
    ],
)
def test_doubled_fields_are_refused(guard: Bench, doubled: str) -> None:
    """First or last: nobody could say. 400, and the upstream hears nothing (F23)."""
    client = guard.client()
    client.request("POST", "/v1/chat/completions", request("chat"), doubled.split("|"))

    assert client.answer().status == 400
    assert guard.upstream.exchanges == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:8787", "127.0.0.1.evil.example"])
@pytest.mark.parametrize("origin", ["", "Origin: http://evil.example"])
def test_a_rebound_name_is_refused(guard: Bench, host: str, origin: str, path: str) -> None:
    """On a loopback bind only loopback names are ours (F15)."""
    client = guard.client()
    client.request("POST", path, request("chat"), [origin] if origin else [], host=host)

    assert client.answer().status == 403
    assert guard.upstream.exchanges == []


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST"])
@pytest.mark.parametrize("port", ["", ":8787"])
def test_loopback_names_are_served(guard: Bench, host: str, port: str) -> None:
    """Every loopback name, with and without a port."""
    guard.upstream.answers(answer("200 OK", b"{}"))
    client = guard.client()
    client.request("GET", "/v1/models", host=host + port)

    assert client.answer().status == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/json"])
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:3000"])
def test_pages_are_refused(guard: Bench, origin: str, kind: str) -> None:
    """A browser's request carries its origin; none is let in, and none may read (F16)."""
    client = guard.client()
    body = request("chat")
    client.requests += 1
    head = f"Origin: {origin}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    client.send(GUARDED + head.encode() + body)
    got = client.answer()

    assert got.status == 403
    assert not any(name.startswith("access-control-") for name in got.head.names)
    assert guard.upstream.exchanges == []


def test_preflights_are_refused(guard: Bench) -> None:
    """OPTIONS with an origin gets no permission."""
    client = guard.client()
    fields = ["Origin: http://evil.example", "Access-Control-Request-Method: POST"]
    client.request("OPTIONS", "/v1/chat/completions", b"", fields)
    got = client.answer()

    assert got.status == 403
    assert not any(name.startswith("access-control-") for name in got.head.names)


def test_a_loop_is_cut(guard: Bench) -> None:
    """A request that has been here before is answered 508, and goes no further (F11)."""
    guard.upstream.answers(answer("200 OK", b"{}"))
    client = guard.client()
    client.request("GET", "/v1/models")
    client.answer()
    signed = guard.upstream.exchange().request.head.get("via")
    client = guard.client()
    client.request("GET", "/v1/models", b"", [f"Via: {signed}"])

    assert client.answer().status == 508
    assert len(guard.upstream.exchanges) == 1


def test_upgrades_are_refused(guard: Bench) -> None:
    """A websocket is not something that can be passed through here: said clearly (C15)."""
    client = guard.client()
    fields = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
    client.request("GET", "/v1/realtime", b"", fields)

    assert client.answer().status == 501
    assert guard.upstream.exchanges == []


def test_our_errors_have_the_shape_sdks_read(guard: Bench) -> None:
    """JSON, OpenAI-shaped, with a code, and nothing of the request."""
    client = guard.client()
    client.request("GET", "/v1/../x", b"", ["Authorization: Bearer sk-canary"])
    got = client.answer()

    assert got.head.get("content-type") == "application/json"
    assert set(json.loads(got.body)["error"]) == {"message", "type", "param", "code"}
    assert b"canary" not in got.head.raw + got.body
