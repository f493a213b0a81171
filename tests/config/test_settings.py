"""Settings: where they come from, what they refuse, and what their complaints never say."""

from __future__ import annotations

import math
import resource
import traceback
from typing import Any

import pytest

from streamguard.config.settings import Settings, default_streams_max, load_settings
from streamguard.errors import ConfigError

UP = "http://models.test:8000/v1"
SECRET = "sk-canary-0123456789"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"STREAMGUARD_{name.upper()}", raising=False)


def refused(**flags: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_settings(**flags)
    return caught.value


def test_defaults() -> None:
    """The limits that the design and the documentation name."""
    expected = {
        "upstream": UP,
        "host": "127.0.0.1",
        "port": 8787,
        "admin_port": None,
        "allow_open": False,
        "connect_s": 5.0,
        "first_byte_s": 120.0,
        "idle_s": 120.0,
        "lifetime_s": 1800.0,
        "head_s": 10.0,
        "body_s": 60.0,
        "body_max_bytes": 33_554_432,
        "write_s": 60.0,
        "drain_s": 25.0,
        "event_max_bytes": 4_194_304,
        "streams_max": default_streams_max(),
        "queue_max": 64,
        "queue_wait_s": 0.5,
        "keepalive_s": 75.0,
        "log_level": "info",
    }

    assert load_settings(upstream=UP).model_dump() == expected


def test_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """`STREAMGUARD_` and the name; an empty value is none."""
    monkeypatch.setenv("STREAMGUARD_UPSTREAM", UP)
    monkeypatch.setenv("STREAMGUARD_IDLE_S", "7.5")
    monkeypatch.setenv("STREAMGUARD_PORT", "")
    monkeypatch.setenv("STREAMGUARD_LOG_LEVEL", "DEBUG")

    settings = load_settings()

    assert (settings.upstream, settings.idle_s, settings.port) == (UP, 7.5, 8787)
    assert settings.log_level == "debug"


def test_flags_beat_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag that was given wins; None means that it was not."""
    monkeypatch.setenv("STREAMGUARD_PORT", "1111")
    monkeypatch.setenv("STREAMGUARD_HOST", "127.0.0.2")

    settings = load_settings(upstream=UP, port=2222, host=None)

    assert (settings.port, settings.host) == (2222, "127.0.0.2")


def test_the_providers_variable_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """`OPENAI_BASE_URL` names this proxy on a client's machine: never an upstream."""
    monkeypatch.setenv("OPENAI_BASE_URL", UP)

    assert refused().field == "upstream"


def test_streams_follow_the_file_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the soft limit, at most 512, at least one."""
    for soft, expected in ((900, 300), (1 << 20, 512), (2, 1), (resource.RLIM_INFINITY, 512)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))

        assert load_settings(upstream=UP).streams_max == expected


def test_a_trailing_slash_is_dropped() -> None:
    """`upstream` joins with a path that begins with one."""
    assert load_settings(upstream=" http://h/v1/ ").upstream == "http://h/v1"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "does not begin with http"),
        ("models.test:8000", "does not begin with http"),
        ("ftp://h/v1", "does not begin with http"),
        ("http:///v1", "names no host"),
        ("http://h:0/v1", "port 0"),
        ("http://h:99999/v1", "not a valid URL"),
        ("http://[::1/v1", "not a valid URL"),
        ("http://h/v1?api-version=1", "query"),
        ("http://h/v1#x", "fragment"),
        ("http://h/v1?", "query"),
        ("http://h/a b", "white space"),
        ("http://h/a\r\nb", "white space or control"),
    ],
)
def test_an_upstream_that_cannot_be_one_is_refused(url: str, problem: str) -> None:
    """http or https, a host, nothing behind the path."""
    error = refused(upstream=url)

    assert error.field == "upstream"
    assert problem in error.problem


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{SECRET}@h/v1",
        f"http://{SECRET}@h/v1",
        f"http://h/v1?key={SECRET}",
        f"http://user:{SECRET}@h:99999/v1",
        f"http://user:{SECRET}@[::1/v1",
        f"ftp://user:{SECRET}@h",
        f"http://user:{SECRET} @h/v1",
    ],
)
@pytest.mark.parametrize("source", ["flag", "environment"])
def test_credentials_in_the_url_are_refused_and_never_shown(
    url: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the message, and not in a traceback's chain of causes."""
    if source == "environment":
        monkeypatch.setenv("STREAMGUARD_UPSTREAM", url)

    error = refused() if source == "environment" else refused(upstream=url)

    assert error.field == "upstream"
    shown = "".join(traceback.TracebackException.from_exception(error).format())
    assert "upstream: " in shown
    assert SECRET not in shown


def test_credentials_are_named_as_the_problem() -> None:
    """The operator learns that the key belongs to the client."""
    error = refused(upstream=f"https://user:{SECRET}@h/v1")

    assert error.problem == "carries a user name or password"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "example.test"])
def test_an_open_bind_must_be_meant(host: str) -> None:
    """Others than this machine: only with --allow-open, which the complaint names."""
    error = refused(upstream=UP, host=host)

    assert error.field == "host"
    assert "--allow-open" in error.mend
    assert load_settings(upstream=UP, host=host, allow_open=True).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_permission(host: str) -> None:
    """This machine only."""
    assert load_settings(upstream=UP, host=host).host == host.strip("[]")


@pytest.mark.parametrize(
    ("upstream", "host", "port"),
    [
        ("http://127.0.0.1:8787/v1", "127.0.0.1", 8787),
        ("http://localhost:8787", "127.0.0.1", 8787),
        ("http://LOCALHOST:8787", "127.0.0.1", 8787),
        ("http://[::1]:8787", "0.0.0.0", 8787),
        ("http://0.0.0.0:8787", "127.0.0.1", 8787),
        ("http://127.0.0.1", "127.0.0.1", 80),
        ("https://localhost/v1", "::1", 443),
        ("http://10.0.0.5:9/v1", "10.0.0.5", 9),
    ],
)
def test_an_upstream_that_is_this_proxy_is_refused(upstream: str, host: str, port: int) -> None:
    """It would call itself for ever."""
    error = refused(upstream=upstream, host=host, port=port, allow_open=True)

    assert error.field == "upstream"
    assert "this proxy" in error.problem


@pytest.mark.parametrize(
    ("upstream", "host", "port"),
    [
        ("http://127.0.0.1:8000/v1", "127.0.0.1", 8787),
        ("http://10.0.0.6:8787/v1", "0.0.0.0", 8787),
        ("http://127.0.0.1:8787/v1", "10.0.0.5", 8787),
        ("http://127.0.0.1:8000/v1", "127.0.0.1", 0),
    ],
)
def test_a_neighbour_is_no_loop(upstream: str, host: str, port: int) -> None:
    """Another port, or another machine's same port, is a fine upstream."""
    settings = load_settings(upstream=upstream, host=host, port=port, allow_open=True)

    assert (settings.upstream, settings.host, settings.port) == (upstream, host, port)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", 65536),
        ("port", -1),
        ("port", "http"),
        ("admin_port", 65536),
        ("admin_port", 8787),
        ("host", " "),
        ("connect_s", 0),
        ("idle_s", -1),
        ("idle_s", math.nan),
        ("lifetime_s", math.inf),
        ("drain_s", -0.1),
        ("body_max_bytes", 0),
        ("event_max_bytes", 10),
        ("streams_max", 0),
        ("queue_max", -1),
        ("log_level", "loud"),
        ("no_such_setting", 1),
    ],
)
def test_a_value_out_of_range_is_refused(name: str, value: object) -> None:
    """The complaint names the setting and has a mend."""
    error = refused(upstream=UP, **{name: value})

    assert error.field == name
    assert error.mend


def test_the_complaint_names_flag_and_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever set it finds where, and the value (a service link's address) is not repeated."""
    monkeypatch.setenv("STREAMGUARD_PORT", "tcp://10.11.12.13:8787")

    error = refused(upstream=UP)

    assert "--port or STREAMGUARD_PORT" in error.mend
    assert "enableServiceLinks" in error.mend
    assert "10.11.12.13" not in str(error)


def test_zero_where_it_means_something() -> None:
    """No queue, no draining, any port: zero is a value."""
    settings = load_settings(upstream=UP, queue_max=0, queue_wait_s=0, drain_s=0, port=0)

    assert (settings.queue_max, settings.queue_wait_s, settings.drain_s) == (0, 0.0, 0.0)
