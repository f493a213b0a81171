"""I6: no key, no prompt and no answer text in any log, metric or error, whatever goes wrong.

Each class of secret has a canary of its own, searched in every sink: as it is, as any piece of
twelve characters, base64-, URL- and JSON-escaped. A search that cannot find what is there on
purpose proves nothing: the model's name, which the record does show, is the positive control.
"""

from __future__ import annotations

import base64
import http.client
import urllib.parse
from collections.abc import Callable

import pytest
from tests.support.bench import GUARD, Bench, Serve
from tests.support.client import Client
from tests.support.streams import PATHS, event, request, stream, token_event
from tests.support.upstream import answer, fin, rst, silence, sse

AUTHORIZATION = "sk-canaryAUTHa8Qk29vLmZ"
API_KEY = "canaryXAPIKEY7hT3bWq0pR"
AZURE_KEY = "canaryAZURE5nJx81cVyE2"
COOKIE = "canaryCOOKIE4mGd6sKf9U"
PROXY = "canaryPROXY2zBo7wHiN5t"
QUERY = "canaryQUERY8eLp3aXrD1"
PROMPT = "canary PROMPT text 6uYj4qSg, naïve"
ANSWER = "canary ANSWER text 0kMv5fOc, é"
MODEL = "canary-MODEL-name-9iTz1"

SECRETS = (AUTHORIZATION, API_KEY, AZURE_KEY, COOKIE, PROXY, QUERY, PROMPT, ANSWER)
PIECE = 12

KEYS = [
    f"Authorization: Bearer {AUTHORIZATION}",
    f"x-api-key: {API_KEY}",
    f"api-key: {AZURE_KEY}",
    f"Cookie: session={COOKIE}",
    f"Proxy-Authorization: Basic {PROXY}",
]
PATH = f"/v1/chat/completions?key={QUERY}"


def forms(secret: str) -> set[str]:
    """What a secret may look like once something has quoted it."""
    raw = secret.encode()
    escaped = secret.encode("unicode_escape").decode()
    encoded = {base64.b64encode(b" " * pad + raw).decode()[8:-4] for pad in (3, 4, 5)}
    pieces = {secret[at : at + PIECE] for at in range(len(secret) - PIECE + 1)}
    return pieces | {escaped, urllib.parse.quote(secret), urllib.parse.quote_plus(secret)} | encoded


def leaks(secret: str, text: str) -> list[str]:
    """Every form of the secret that stands in the text."""
    return sorted(form for form in forms(secret) if form in text)


@pytest.fixture
def loud(serve: Serve) -> Bench:
    """A guard that says as much as it can."""
    env = {
        "STREAMGUARD_FIRST_BYTE_S": "0.3",
        "STREAMGUARD_HEAD_S": "0.3",
        "STREAMGUARD_BODY_S": "0.3",
    }
    return serve(*GUARD, "--log-level", "debug", "--admin-port", "0", env=env)


def metrics(bench: Bench) -> str:
    """A scrape."""
    admin = http.client.HTTPConnection("127.0.0.1", bench.command.admin_port, timeout=5)
    try:
        admin.request("GET", "/metrics")
        return admin.getresponse().read().decode()
    finally:
        admin.close()


def check(bench: Bench, *said: bytes) -> None:
    """No secret in any sink; `said` are errors of ours that a client has read."""
    sinks = {
        "stdout": bench.command.stdout,
        "stderr": bench.command.stderr,
        "metrics": metrics(bench),
        "answers": b"".join(said).decode("utf-8", "replace"),
    }
    for name, text in sinks.items():
        for secret in SECRETS:
            assert leaks(secret, text) == [], f"{secret!r} on {name}"


def ask(bench: Bench, **more: object) -> Client:
    """A streaming request that carries every secret."""
    client = bench.client()
    body = request("chat", model=MODEL, prompt=PROMPT, **more)
    client.request("POST", PATH, body, KEYS)
    return client


def said(low: bool = False) -> list[bytes]:
    """An answer made of the answer canary."""
    logprob = -3.0 if low else -0.05
    tokens = [token_event("chat", ANSWER, logprob) for _ in range(6)]
    whole = stream("chat", [])
    return [whole[0], *tokens, *whole[1:]]


def test_an_answer_leaves_no_trace(loud: Bench) -> None:
    """A complete stream and a cut one: the record shows the model, nothing else of the text."""
    loud.upstream.answers(sse(said()), sse(said(low=True), pace_s=0.005))
    ask(loud).answer()
    ask(loud).answer()
    loud.records(2)

    assert leaks(MODEL, loud.command.stdout), "the positive control was not found"
    check(loud)


FAULTS: dict[str, Callable[[Bench], None]] = {
    "reset": lambda b: b.upstream.answers(sse(said()[:2], after=rst)),
    "broken off": lambda b: b.upstream.answers(sse(said()[:2], pace_s=0.01, after=fin)),
    "silent": lambda b: b.upstream.answers(silence),
    "error in the stream": lambda b: b.upstream.answers(
        sse([event({"error": {"message": ANSWER + AUTHORIZATION}})])
    ),
    "not json": lambda b: b.upstream.answers(
        sse([b"data: {" + ANSWER.encode() + b"\n\n", b"data: NaN " + PROMPT.encode() + b"\n\n"])
    ),
    "refusal that quotes": lambda b: b.upstream.answers(
        answer("400 Bad Request", f'{{"error": "logprobs {PROMPT} {API_KEY}"}}'.encode()),
        sse(said()),
    ),
    "server error that quotes": lambda b: b.upstream.answers(
        answer("500 Oops", f'{{"error": "{PROMPT} {AUTHORIZATION}"}}'.encode())
    ),
    "head that is none": lambda b: b.upstream.answers(
        lambda e: e.send(b"HTTP/1.1 200 OK\r\nX: \x00" + AUTHORIZATION.encode() + b"\r\n\r\n")
    ),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_faults_leave_no_trace(loud: Bench, fault: str) -> None:
    """Every way of going wrong upstream, with every secret in flight (F03)."""
    FAULTS[fault](loud)
    got = ask(loud).answer()
    loud.records(1)

    ours = got.head.raw + (got.body if got.status in (502, 504) else b"")
    assert leaks(MODEL, loud.command.stdout), "the positive control was not found"
    check(loud, ours)


SECRET = AUTHORIZATION.encode()
TEXT = PROMPT.encode()
START = b"POST /v1/chat/completions?key=" + QUERY.encode() + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n"
MALFORMED = {
    "control in the key": START + b"Authorization: Bearer " + SECRET + b"\x01\r\n\r\n",
    "nul in the key": START + b"Authorization: Bearer " + SECRET + b"\x00\r\n\r\n",
    "key too long": START + b"Authorization: Bearer " + SECRET * 400 + b"\r\n\r\n",
    "space before the colon": START + b"Authorization : Bearer " + SECRET + b"\r\n\r\n",
    "no colon": START + b"Authorization Bearer " + SECRET + b"\r\n\r\n",
    "key as name": START + SECRET + b"\x7f: x\r\n\r\n",
    "folded key": START + b"Authorization:\r\n " + SECRET + b"\r\n\r\n",
    "bad start line": b"POST /" + SECRET + b" " + SECRET + b" HTTP/1.1\r\n\r\n",
    "bad version": b"GET /x HTTP/9.9\r\nHost: 127.0.0.1\r\nAuthorization: " + SECRET + b"\r\n\r\n",
    "bad chunk line": START + b"Transfer-Encoding: chunked\r\n\r\n" + TEXT + b"\r\n",
    "bad chunk end": START + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello" + TEXT + b"\r\n",
    "bad length": START + b"Content-Length: " + SECRET + b"\r\n\r\n",
    "two keys": START + b"Authorization: " + SECRET + b"\r\nAuthorization: " + SECRET + b"\r\n\r\n",
    "head that stops": START + b"Authorization: Bearer " + SECRET,
    "body that stops": START + b"Content-Length: 900\r\n\r\n" + TEXT,
}


def test_malformed_heads_leave_no_trace(loud: Bench) -> None:
    """Heads and bodies that carry a secret and cannot be parsed: fixed texts only (F01)."""
    loud.extra += len(MALFORMED)
    heard = []
    for sent in MALFORMED.values():
        client = loud.client()
        client.send(sent)
        heard.append(client.read_all())
    loud.upstream.answers(sse(said()))
    assert ask(loud).answer().status == 200

    assert all(text == b"" or text.split(b" ")[1].startswith((b"4", b"5")) for text in heard), heard
    assert len(loud.upstream.exchanges) == 1
    check(loud, *heard)


def test_a_search_that_finds() -> None:
    """The search itself: every way of quoting is found, and nothing else."""
    padded = base64.b64encode(b"u:" + AUTHORIZATION.encode() + b"==").decode()
    for text in (f"x{AUTHORIZATION[3:18]}y", padded, urllib.parse.quote(f"?k={AUTHORIZATION}")):
        assert leaks(AUTHORIZATION, text), text
    assert leaks(PROMPT, urllib.parse.quote(PROMPT))
    assert leaks(AUTHORIZATION, "sk-something-else, canaryAUTH") == []


def test_the_settings_do_not_show_keys(loud: Bench) -> None:
    """The command line and the environment of the process carry no client's key (F35)."""
    loud.upstream.answers(sse(said()))
    ask(loud).answer()

    assert PATHS["chat"] not in loud.command.stderr
    for name in ("cmdline", "environ"):
        with open(f"/proc/{loud.command.pid}/{name}", "rb") as file:  # noqa: PTH123
            text = file.read().decode("utf-8", "replace")
        for secret in SECRETS:
            assert leaks(secret, text) == []
