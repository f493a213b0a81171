"""I9 and I15: what the upstream receives, how often, and from nobody else's request."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.bench import GUARD, Bench, Serve
from tests.support.command import until
from tests.support.streams import PATHS, Dialect, nulled, request, stream
from tests.support.upstream import Exchange, Upstream, answer, sse

# Everything a hop adds or takes for itself.
OURS = {"host", "via", "accept-encoding", "content-length"}


@pytest.mark.parametrize(
    ("dialect", "asked"),
    [
        ("chat", {"logprobs": True, "top_logprobs": 1}),
        ("completions", {"logprobs": 1}),
    ],
)
def test_only_the_evidence_is_asked_for(
    guard: Bench, dialect: Dialect, asked: dict[str, Any]
) -> None:
    """The upstream's body is the client's plus the fields a plain rule needs, nothing re-made."""
    body = request(dialect, temperature=0.1, big=12345678901234567890, text="é\u2028")
    guard.upstream.answers(sse(stream(dialect, [0.9] * 3)))
    client = guard.client()
    client.request("POST", PATHS[dialect], body)
    client.answer()

    received = guard.upstream.exchange().request.body
    assert json.loads(received) == {**json.loads(body), **asked}
    assert body.strip(b"{}") in received, "the client's own bytes were re-serialised"


def test_what_the_client_asked_is_left_alone(guard: Bench) -> None:
    """A client that asks itself: its body passes byte for byte, its logprobs come back."""
    body = request("chat", logprobs=True, top_logprobs=5)
    events = stream("chat", [0.9] * 3)
    guard.upstream.answers(sse(events))
    client = guard.client()
    client.request("POST", PATHS["chat"], body)

    assert client.answer().body == b"".join(events)
    assert guard.upstream.exchange().request.body == body


SENT = [
    "Authorization: Bearer sk-1",
    "X-Custom: a",
    "x-custom: b",
    "OpenAI-Organization: org",
    "User-Agent: test/1.0",
    "Cookie: session=1",
    "Accept: text/event-stream",
    "X-Stainless-Retry-Count: 0",
]
NOT_SENT = [
    "Proxy-Authorization: Basic secret",
    "x-streamguard-mode: off",
    "X-Streamguard-Id: spoofed",
    "Connection: keep-alive, X-Hop",
    "X-Hop: 1",
    "Keep-Alive: timeout=5",
    "TE: trailers",
    "Accept-Encoding: gzip, br",
]


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/chat/completions"), ("GET", "/v1/x")])
def test_headers_are_this_request_s_and_no_more(guard: Bench, method: str, path: str) -> None:
    """End-to-end fields in order and spelling; hop-by-hop and our own never; Host is right."""
    guard.upstream.answers(sse(stream("chat", [0.9] * 3)))
    client = guard.client()
    body = request("chat") if method == "POST" else b""
    client.request(method, path, body, [*SENT, *NOT_SENT])
    client.answer()

    head = guard.upstream.exchange().request.head
    assert head.all("host") == [guard.upstream.authority]
    fields = [f"{k}: {v}" for k, v in head.fields if k.lower() not in OURS]
    expected = ["Content-Type: application/json", *SENT] if body else SENT
    if method == "GET":  # passing through keeps what the client accepts
        expected = [*expected, "Accept-Encoding: gzip, br"]
        fields += [f"{k}: {v}" for k, v in head.fields if k.lower() == "accept-encoding"]
    assert fields == expected
    if body:
        assert head.get("accept-encoding") == "identity"


def test_a_credential_cannot_be_listed_away(guard: Bench) -> None:
    """`Connection: authorization` does not remove the key from the upstream's request (F21)."""
    guard.upstream.answers(answer("200 OK", b"{}"))
    client = guard.client()
    client.request("GET", "/v1/x", b"", ["Connection: close, Authorization", "Authorization: k"])
    got = client.answer()

    if got.status != 400:
        assert guard.upstream.exchange().request.head.get("authorization") == "k"


@pytest.mark.parametrize(
    "value",
    [
        "Bearer \"'; DROP TABLE x; --",
        "Bearer {{7*7}} %s {0} ${x}",
        "Bearer " + "x" * 7000,
        "Bearer \xe9\xff",
    ],
    ids=["quotes", "templates", "long", "bytes"],
)
def test_keys_are_opaque(guard: Bench, value: str) -> None:
    """Whatever a key looks like, it arrives exactly (F05)."""
    guard.upstream.answers(sse(stream("chat", [0.9] * 3)))

    guard.stream("chat", f"Authorization: {value}")

    assert guard.upstream.exchange().request.head.get("authorization") == value


def test_a_key_in_the_query_is_forwarded(guard: Bench) -> None:
    """`?key=` reaches the upstream as it was written (F02)."""
    guard.upstream.answers(sse(stream("chat", [0.9] * 3)))

    guard.ask("chat", path="/v1/chat/completions?key=a%2Bb&x").answer()

    assert guard.upstream.exchange().request.target == "/v1/chat/completions?key=a%2Bb&x"


TRICKS = [
    "http://evil.example/v1/models",
    "//evil.example/v1/models",
    "/v1/../admin",
    "/v1/%2e%2e/admin",
    "/v1/%2E./admin",
    "/v1/..%2fadmin",
    "/v1/./models",
    "/v1/..;/admin",
    "/v1\\..\\admin",
    "/v1/models#x",
    "/v1/@evil.example/models",
    "/v1/models/@evil.example:80/",
    "@evil.example/v1/models",
    ":80/v1/models",
    "*",
]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("target", TRICKS)
def test_no_target_leads_elsewhere(guard: Bench, target: str, method: str) -> None:
    """Target confusion: 400, or the configured upstream with the path as sent (F10)."""
    guard.upstream.answers(answer("200 OK", b"{}"))
    client = guard.client()
    client.request(method, target, b"{}" if method == "POST" else b"")
    got = client.answer()

    if got.status == 400:
        assert guard.upstream.exchanges == []
    else:
        received = guard.upstream.exchange().request
        assert "@" in target, "only an @ in a plain path means the same to every reader"
        assert received.target == target
        assert received.head.all("host") == [guard.upstream.authority]


def test_the_body_cannot_choose_the_upstream(guard: Bench) -> None:
    """`api_base` and friends, in body or headers, have no effect on the target (F09)."""
    elsewhere = Upstream()
    try:
        guard.upstream.answers(sse(stream("chat", [0.9] * 3)))
        fields = [
            f"X-Forwarded-Host: {elsewhere.authority}",
            f"Forwarded: host={elsewhere.authority}",
            f"X-OpenAI-Base-Url: {elsewhere.url}",
        ]
        guard.stream(
            "chat", *fields, api_base=elsewhere.url, base_url=elsewhere.url, extra_headers={"a": 1}
        )

        assert elsewhere.accepted == 0
        head = guard.upstream.exchange().request.head
        assert head.all("host") == [guard.upstream.authority]
    finally:
        elsewhere.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
def test_cookies_never_cross_users(serve: Serve, path: str) -> None:
    """Set-Cookie for one user is never sent with another one's request (F12)."""
    bench = serve(*GUARD, host="localhost")
    bench.upstream.answers(
        answer("200 OK", b"{}", "Set-Cookie: session=of-a; Path=/"), answer("200 OK", b"{}")
    )
    for user in ("a", "b"):
        client = bench.client()
        client.request("POST", path, request("chat"), [f"Authorization: Bearer {user}"])
        client.answer()

    assert bench.upstream.exchange(1).request.head.all("cookie") == []


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
def test_redirects_are_passed_on(guard: Bench, status: str, path: str) -> None:
    """A redirect goes to the client; its target hears nothing (F31)."""
    elsewhere = Upstream()
    try:
        guard.upstream.answers(answer(status, b"", f"Location: {elsewhere.url}/v1/x"))
        client = guard.client()
        client.request("POST", path, request("chat"))
        got = client.answer()

        assert got.head.start == f"HTTP/1.1 {status}"
        assert got.head.get("location") == f"{elsewhere.url}/v1/x"
        assert elsewhere.accepted == 0
    finally:
        elsewhere.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
def test_the_environment_does_not_choose_the_way(serve: Serve, tmp_path: Path, path: str) -> None:
    """Proxy variables are ignored, a `.netrc` never supplies a key (F33)."""
    elsewhere = Upstream()
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login u password p\ndefault login u password p\n")
    netrc.chmod(0o600)
    names = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    env = dict.fromkeys(names, elsewhere.url) | {"NETRC": str(netrc), "HOME": str(tmp_path)}
    try:
        bench = serve(*GUARD, env=env, fresh=True)
        bench.upstream.answers(sse(stream("chat", [0.9] * 3)))
        client = bench.client()
        client.request("POST", path, request("chat"))
        client.answer()

        assert elsewhere.accepted == 0
        assert bench.upstream.exchange().request.head.all("authorization") == []
    finally:
        elsewhere.close()


# --------------------------------------------------------------------------- I9


def test_connections_are_reused(guard: Bench) -> None:
    """After a clean end the next request takes the same upstream connection."""
    guard.upstream.answers(sse(stream("chat", [0.9] * 3)))
    for _ in range(3):
        guard.stream("chat")
        # The pool takes the connection back before the record is written.
        guard.records(len(guard.upstream.exchanges))

    numbers = {exchange.connection.number for exchange in guard.upstream.exchanges}
    assert len(numbers) == 1


def test_a_pooled_connection_found_closed_is_replaced(guard: Bench) -> None:
    """The provider closed it meanwhile: a new one is opened, and nobody notices."""
    body = nulled(b"".join(stream("chat", [0.9] * 3)))
    guard.upstream.answers(sse(stream("chat", [0.9] * 3)))
    guard.stream("chat")
    guard.records(1)
    held = guard.command.sockets()
    guard.upstream.drop_idle()
    until(lambda: guard.command.sockets() < held, "the closed connection is let go")

    assert guard.stream("chat").body == body
    assert len(guard.upstream.exchanges) == 2


def test_a_request_that_was_written_is_never_repeated(guard: Bench) -> None:
    """The connection dies after it took the request: 502, and still one attempt."""
    guard.upstream.answers(lambda exchange: exchange.connection.rst())

    assert guard.stream("chat").status == 502
    assert len(guard.upstream.exchanges) == 1


def test_a_connection_is_not_reused_after_surplus_bytes(guard: Bench) -> None:
    """Bytes after the end of an answer would be the next client's answer: closed instead."""
    body = nulled(b"".join(stream("chat", [0.9] * 3)))
    guard.upstream.answers(
        sse(stream("chat", [0.9] * 3), after=lambda e: e.send(b"0\r\n\r\nHTTP/1.1 200 OK\r\n")),
        sse(stream("chat", [0.9] * 3)),
    )
    guard.stream("chat")

    assert guard.stream("chat").body == body
    first, second = guard.upstream.exchanges
    assert first.connection is not second.connection


def test_concurrent_requests_do_not_mix(guard: Bench) -> None:
    """Thirty at once: each answer belongs to its own request."""

    def script(exchange: Exchange) -> None:
        model = json.loads(exchange.request.body)["model"]
        events = [part.replace(b"test-model", model.encode()) for part in stream("chat", [0.9] * 5)]
        sse(events, pace_s=0.003)(exchange)

    guard.upstream.answers(script)
    clients = [guard.client() for _ in range(30)]
    answers: dict[int, bytes] = {}

    def run(number: int) -> None:
        clients[number].request("POST", PATHS["chat"], request("chat", model=f"model-{number}."))
        answers[number] = clients[number].answer().body

    threads = [threading.Thread(target=run, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    for number in range(30):
        assert answers[number].count(b'"model": "model-%d."' % number) == 7
