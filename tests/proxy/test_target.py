"""Where a request goes: the configured upstream with the client's bytes behind it, or nowhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.errors import ConfigError
from streamguard.proxy.target import BadTarget, Upstream


@pytest.mark.parametrize(
    ("url", "scheme", "host", "port", "authority", "prefix"),
    [
        ("http://h", "http", "h", 80, b"h", ""),
        ("https://h/v1", "https", "h", 443, b"h", "/v1"),
        ("http://h:443/", "http", "h", 443, b"h:443", ""),
        ("http://[::1]:8000/a/b/", "http", "::1", 8000, b"[::1]:8000", "/a/b"),
        ("https://bücher.example", "https", "xn--bcher-kva.example", 443, None, ""),
    ],
)
def test_parsing(
    url: str, scheme: str, host: str, port: int, authority: bytes | None, prefix: str
) -> None:
    """The parts that the connection uses, parsed once."""
    found = Upstream.parse(url)
    assert (found.scheme, found.host, found.port, found.prefix) == (scheme, host, port, prefix)
    assert found.authority == (authority or host.encode())
    assert found.tls is (scheme == "https")


@pytest.mark.parametrize(
    "url", ["http://h/a/../b", "http://h//b", "http://h/ü", f"http://{'a' * 70}"]
)
def test_an_unusable_upstream_is_refused(url: str) -> None:
    """At start, and without repeating the URL."""
    with pytest.raises(ConfigError) as caught:
        Upstream.parse(url)
    assert "http" not in str(caught.value)


@pytest.mark.parametrize(
    ("base", "raw", "target"),
    [
        ("http://h/v1", "/v1/models", b"/v1/models"),
        ("http://h/v1", "/models", b"/v1/models"),
        ("http://h/v1", "/v1/v1/x", b"/v1/v1/x"),
        ("http://h/v1", "/v1?x=1", b"/v1?x=1"),
        ("http://h/v1", "/v1beta/x", b"/v1/v1beta/x"),
        ("http://h/openai/v1", "/v1/chat/completions", b"/openai/v1/chat/completions"),
        ("http://h", "/v1/models", b"/v1/models"),
        ("http://h/api", "/v1/models", b"/api/v1/models"),
        (
            "http://h",
            "/a%2Fb/%7E;p=1/@cf/x?k=%2e%2e/../y&z",
            b"/a%2Fb/%7E;p=1/@cf/x?k=%2e%2e/../y&z",
        ),
        ("http://h", "/", b"/"),
    ],
)
def test_joining(base: str, raw: str, target: bytes) -> None:
    """One leading /v1 is dropped where the base ends in one; everything else byte for byte."""
    assert Upstream.parse(base).target(raw) == target


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "*",
        "models",
        "@evil/",
        ":80/",
        "http://evil/v1",
        "//evil/v1",
        "/v1/../x",
        "/v1/./x",
        "/..",
        "/v1/%2e%2e/x",
        "/v1/.%2E",
        "/v1/%2e",
        "/v1/..%2fx",
        "/v1%2F..%5cx",
        "/v1/..;a=b/x",
        "/v1\\x",
        "/v1#x",
        "/v1?x#y",
    ],
)
@pytest.mark.parametrize("base", ["http://h", "http://h/v1"])
def test_what_could_mean_two_things_is_refused(base: str, raw: str) -> None:
    """No parser behind us may find another path in it (F10)."""
    with pytest.raises(BadTarget):
        Upstream.parse(base).target(raw)


@given(st.text(alphabet="/.%2eE5cC;\\@:?#av1", max_size=24))
def test_no_target_climbs(raw: str) -> None:
    """Whatever is accepted stays below the prefix, also after decoding and normalising."""
    try:
        target = Upstream.parse("http://h/v1").target(raw).decode()
    except BadTarget:
        return
    path = target.partition("?")[0]
    assert path == "/v1" or path.startswith("/v1/")
    decoded = path.lower().replace("%2e", ".").replace("%2f", "/").replace("%5c", "/")
    assert not {".", ".."} & {part.partition(";")[0] for part in decoded.split("/")}
