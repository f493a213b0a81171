"""Header fields on their way through: nothing hop-by-hop crosses, nothing end-to-end is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.proxy.headers import (
    end_to_end,
    host_allowed,
    is_looped,
    repeats_a_single_field,
    request_head,
    tokens,
)

HOP = [
    b"Connection",
    b"Keep-Alive",
    b"Proxy-Authenticate",
    b"Proxy-Authorization",
    b"Proxy-Connection",
    b"TE",
    b"Trailer",
    b"Transfer-Encoding",
    b"Upgrade",
]

NAMES = st.sampled_from([*HOP, b"X-A", b"x-a", b"Set-Cookie", b"Authorization", b"Via"])


@given(st.lists(st.tuples(NAMES, st.just(b"v"))))
def test_only_hop_by_hop_fields_stay(headers: list[tuple[bytes, bytes]]) -> None:
    """What crosses is the input without the hop-by-hop set, in order, case and number kept."""
    hop = {name.lower() for name in HOP}
    assert end_to_end(headers) == [pair for pair in headers if pair[0].lower() not in hop]


def test_listed_fields_stay_too() -> None:
    """A field named in Connection belongs to this hop (RFC 9110, 7.6.1)."""
    headers = [(b"Connection", b"close, X-Hop"), (b"connection", b"x-other"), (b"X-HOP", b"1")]
    assert end_to_end([*headers, (b"X-Other", b"2"), (b"X-Kept", b"3")]) == [(b"X-Kept", b"3")]


@pytest.mark.parametrize("name", [b"Authorization", b"x-api-key", b"Content-Type", b"Cookie"])
def test_a_credential_cannot_be_listed_away(name: bytes) -> None:
    """Without these the request would mean something else."""
    headers = [(b"Connection", b"close, " + name), (name, b"value")]
    assert end_to_end(headers) == [(name, b"value")]


def test_a_request_head_is_the_client_s() -> None:
    """Spelling, order and duplicates are the client's; Host, framing and coding are ours."""
    head = request_head(
        "POST",
        b"/v1/x?a=%2B",
        b"api.example",
        [
            (b"Host", b"127.0.0.1:8787"),
            (b"X-B", b"1"),
            (b"AUTHORIZATION", b"Bearer k"),
            (b"x-b", b"2"),
            (b"X-Streamguard-Mode", b"off"),
            (b"Proxy-Authorization", b"Basic p"),
            (b"Expect", b"100-continue"),
            (b"Accept-Encoding", b"gzip"),
            (b"Content-Length", b"3"),
        ],
        identity=True,
        length=9,
    )
    assert head == (
        b"POST /v1/x?a=%2B HTTP/1.1\r\nhost: api.example\r\nX-B: 1\r\nAUTHORIZATION: Bearer k\r\n"
        b"x-b: 2\r\nvia: 1.1 streamguard\r\naccept-encoding: identity\r\ncontent-length: 9\r\n\r\n"
    )


def test_a_passing_request_keeps_its_codings() -> None:
    """Nobody reads that answer, so the client may have it compressed; no length, no framing."""
    head = request_head("GET", b"/", b"h", [(b"Accept-Encoding", b"br")])
    assert (
        head == b"GET / HTTP/1.1\r\nhost: h\r\nAccept-Encoding: br\r\nvia: 1.1 streamguard\r\n\r\n"
    )


def test_chunked_bodies_are_announced() -> None:
    """A body without a length goes out in chunks."""
    assert b"\r\ntransfer-encoding: chunked\r\n" in request_head(
        "PUT", b"/", b"h", [(b"Transfer-Encoding", b"chunked")], chunked=True
    )


def test_our_own_signature_is_a_loop() -> None:
    """Among other hops, in any case; somebody else's name is none."""
    assert is_looped([(b"Via", b"1.0 a, 1.1 StreamGuard")])
    assert not is_looped([(b"Via", b"1.1 streamguard2, 1.1 nginx")])


@pytest.mark.parametrize("name", [b"Host", b"Authorization", b"content-type", b"X-API-Key"])
def test_unique_fields_may_not_repeat(name: bytes) -> None:
    """First or last: nobody could say."""
    assert repeats_a_single_field([(name, b"a"), (name.upper(), b"a")])
    assert not repeats_a_single_field([(name, b"a"), (b"X-Free", b"1"), (b"x-free", b"2")])


@pytest.mark.parametrize(
    ("value", "bound", "allowed"),
    [
        ("localhost", "127.0.0.1", True),
        ("LOCALHOST:8787", "127.0.0.1", True),
        ("127.0.0.1:1", "127.0.0.1", True),
        ("[::1]", "127.0.0.1", True),
        ("[::1]:80", "::1", True),
        ("127.0.0.2:80", "127.0.0.2", True),
        (None, "127.0.0.1", True),
        ("evil.example", "127.0.0.1", False),
        ("localhost.evil.example:8787", "127.0.0.1", False),
        ("127.0.0.1:80:80", "127.0.0.1", False),
        ("127.0.0.3", "127.0.0.1", False),
        ("", "127.0.0.1", False),
        ("evil.example", "0.0.0.0", True),
    ],
)
def test_only_our_names_on_a_loopback_bind(value: str | None, bound: str, allowed: bool) -> None:
    """A page that resolves to this machine still sends its own name (DNS rebinding)."""
    assert host_allowed(value, bound=bound) is allowed


def test_tokens_are_split_and_lowered() -> None:
    """Several fields of one name are one list."""
    assert tokens([(b"TE", b" A ,, b"), (b"te", b"c")], b"te") == [b"a", b"b", b"c"]
