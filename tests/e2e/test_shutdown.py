"""Starting and stopping: what is refused at start, SIGTERM, and the second signal."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.bench import GUARD, Bench, Serve
from tests.support.client import Client
from tests.support.command import START_S, Command, until
from tests.support.streams import DONE, PATHS, nulled, payloads, request, stream, token_event
from tests.support.upstream import Upstream, endless, silence, sse, unused_port

DRAIN_S = 1.0
ENV = {"STREAMGUARD_DRAIN_S": str(DRAIN_S)}


@pytest.fixture
def own(serve: Serve) -> Bench:
    """A process of this test's own, with an admin port."""
    return serve(*GUARD, "--admin-port", "0", env=ENV, fresh=True)


def get(port: int, path: str) -> int:
    """The status of a GET on the admin port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_idle_stops_at_once(own: Bench) -> None:
    """Nothing in flight: SIGTERM ends it with status 0, well before the drain time."""
    assert (get(own.command.admin_port, "/livez"), get(own.command.admin_port, "/readyz")) == (
        200,
        200,
    )
    start = time.monotonic()
    own.command.signal(signal.SIGTERM)

    assert own.command.wait(5) == 0
    assert time.monotonic() - start < DRAIN_S


def test_an_idle_kept_connection_does_not_hold_it(own: Bench) -> None:
    """A client that keeps its connection open has nothing in flight."""
    own.upstream.answers(sse(stream("chat", [0.9] * 3)))
    client = own.ask("chat")
    client.answer()
    start = time.monotonic()
    own.command.signal(signal.SIGTERM)

    assert own.command.wait(5) == 0
    assert time.monotonic() - start < DRAIN_S


def test_open_streams_finish(own: Bench) -> None:
    """SIGTERM: not ready, no new connections, and what runs comes to its own end."""
    events = stream("chat", [0.9] * 8)
    own.upstream.answers(sse(events, pace_s=0.06))
    client = own.ask("chat")
    client.read_events(2)
    admin = own.command.admin_port

    own.command.signal(signal.SIGTERM)
    own.command.wait_records("server_draining", 1)

    assert get(admin, "/readyz") == 503
    assert get(admin, "/livez") == 200
    with pytest.raises(ConnectionRefusedError):
        Client(own.command.port)
    got = client.answer()
    assert (got.body, got.ending) == (nulled(b"".join(events)), "complete")
    assert own.command.wait(DRAIN_S + 2) == 0
    assert own.record()["outcome"] == "complete"


def test_streams_that_take_too_long_are_told(own: Bench) -> None:
    """At the end of the drain time: an error event, both sides closed, `shutdown`, status 0."""
    own.upstream.answers(endless(lambda n: token_event("chat", f"{n} ", -0.1), pace_s=0.02))
    client = own.ask("chat")
    client.read_events(2)
    start = time.monotonic()
    own.command.signal(signal.SIGTERM)

    got = client.answer()

    took = time.monotonic() - start
    assert DRAIN_S <= took < DRAIN_S + 2
    assert "error" in payloads(got.body)[-1]
    assert DONE not in got.body
    assert got.ending != "complete"
    own.upstream.exchange().closed_within(1)
    assert own.command.wait(2) == 0
    assert own.record()["outcome"] == "shutdown"


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_stops_at_once(own: Bench, second: signal.Signals) -> None:
    """Who signals twice does not want to wait: within a second, still told, still status 0."""
    own.upstream.answers(endless(lambda n: token_event("chat", f"{n} ", -0.1), pace_s=0.02))
    client = own.ask("chat")
    client.read_events(2)
    own.command.signal(signal.SIGTERM)
    own.command.wait_records("server_draining", 1)
    start = time.monotonic()
    own.command.signal(second)

    assert own.command.wait(2) == 0
    assert time.monotonic() - start < DRAIN_S
    assert "error" in payloads(client.answer().body)[-1]
    assert own.record()["outcome"] == "shutdown"


def test_requests_without_an_answer_yet_get_one(own: Bench) -> None:
    """A request that still waits for its head when the time is up gets a 503 of ours."""
    own.upstream.answers(silence)
    client = own.ask("chat")
    own.upstream.exchange()
    own.command.signal(signal.SIGTERM)
    own.command.wait_records("server_draining", 1)
    own.command.signal(signal.SIGTERM)

    got = client.answer()

    assert got.status == 503
    assert own.command.wait(2) == 0
    assert own.record()["outcome"] == "shutdown"


def test_a_killed_process_closes_its_upstream(own: Bench) -> None:
    """SIGKILL: the kernel closes the sockets, the provider sees it (E10)."""
    own.upstream.answers(sse(stream("chat", [0.9] * 300), pace_s=0.02))
    client = own.ask("chat")
    client.read_events(2)
    child = Command(["--upstream", own.upstream.url, *GUARD])
    killed = Client(child.port)
    killed.request("POST", PATHS["chat"], request("chat"))
    exchange = own.upstream.exchange(1)
    child.signal(signal.SIGKILL)

    exchange.closed_within(1)
    assert child.wait(2) == -signal.SIGKILL
    killed.sock.close()
    client.leave("rst")


def test_it_binds_again_at_once(own: Bench) -> None:
    """A restart on the same port does not have to wait for old connections."""
    own.upstream.answers(sse(stream("chat", [0.9] * 3)))
    own.stream("chat")
    port = own.command.port
    own.command.signal(signal.SIGTERM)
    own.command.wait(5)
    again = Command(["--upstream", own.upstream.url, *GUARD], port=port)
    try:
        assert again.port == port
    finally:
        again.close()


def test_the_console_script_serves(own: Bench) -> None:
    """`streamguard` and `python -m streamguard` are one command."""
    script = Command(["--upstream", own.upstream.url], module=False)
    try:
        assert script.started()["mode"] == "observe"
    finally:
        script.close()


def test_a_full_disk_costs_only_the_log(own: Bench) -> None:
    """Nothing can be written to standard output: requests are served all the same (E12)."""
    port = unused_port()
    with Path("/dev/full").open("wb") as full:
        deaf = subprocess.Popen(
            [
                *(sys.executable, "-m", "streamguard", "serve"),
                *("--upstream", own.upstream.url, "--port", str(port)),
            ],
            stdout=full,
            stderr=subprocess.PIPE,
        )
    try:
        until(lambda: accepts(port), "it listens", within_s=START_S)
        with Client(port) as client:
            client.request("GET", "/v1/models")
            assert client.answer().status == 200
        deaf.send_signal(signal.SIGTERM)
        _, complaint = deaf.communicate(timeout=5)
        assert (deaf.returncode, complaint) == (0, b"")
    finally:
        deaf.kill()


def accepts(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# --------------------------------------------------------------------------- refused at start


@pytest.fixture
def provider() -> Iterator[Upstream]:
    """A provider, for commands that never get to it."""
    upstream = Upstream()
    yield upstream
    upstream.close()


def refused(*arguments: str) -> str:
    """The complaint of a command that does not start."""
    done = subprocess.run(
        [sys.executable, "-m", "streamguard", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode not in (0, -9), done
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_bind_to_the_world_is_refused(provider: Upstream, host: str) -> None:
    """Nobody checks keys here: serving strangers needs `--allow-open` (F18)."""
    complaint = refused("--upstream", provider.url, "--host", host, "--port", "0")

    assert "--allow-open" in complaint


def test_a_bind_to_the_world_can_be_allowed(provider: Upstream) -> None:
    """With `--allow-open` it serves."""
    command = Command(["--upstream", provider.url, "--host", "0.0.0.0", "--allow-open"])
    try:
        with Client(command.port) as client:
            client.request("GET", "/v1/models")
            assert client.answer().status == 200
    finally:
        command.close()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_itself_as_upstream_is_refused(name: str) -> None:
    """An upstream that is the own address would call itself for ever (F11)."""
    port = unused_port()

    refused("--upstream", f"http://{name}:{port}/v1", "--port", str(port))


@pytest.mark.parametrize(
    "url",
    ["ftp://127.0.0.1/v1", "127.0.0.1:9", "http://user:canary-pw@127.0.0.1/v1", "http://h/?key=1"],
)
def test_an_upstream_that_is_none_is_refused(url: str) -> None:
    """A URL that cannot be an upstream is named as the reason; a password is not repeated."""
    complaint = refused("--upstream", url, "--port", "0")

    assert "upstream" in complaint.lower()
    assert "canary-pw" not in complaint


def test_a_port_in_use_is_refused(provider: Upstream) -> None:
    """The port is taken: a short complaint, no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused("--upstream", provider.url, "--port", str(taken.getsockname()[1]))


@pytest.mark.parametrize(
    "flags",
    [
        ("--signal", "no_such_signal", "--below", "0.5", "--first", "3"),
        ("--signal", "mean_prob", "--below", "0.5"),
        ("--signal", "mean_prob", "--below", "nan", "--first", "3"),
        ("--signal", "mean_prob", "--below", "0.5", "--first", "0"),
        ("--policy", "/nonexistent/policy.toml"),
        ("--mode", "sometimes"),
    ],
)
def test_a_policy_that_means_nothing_is_refused(provider: Upstream, flags: tuple[str, ...]) -> None:
    """A bad configuration at start: it does not start."""
    refused("--upstream", provider.url, "--port", "0", *flags)


def test_no_upstream_is_refused() -> None:
    """There is no default upstream: keys go nowhere by accident."""
    assert "upstream" in refused("--port", "0").lower()


def test_it_starts_within_its_file_limit(provider: Upstream) -> None:
    """With 64 files it derives a smaller number of streams and says so (E05)."""
    import resource

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    command = Command(["--upstream", provider.url], preexec=few_files)
    try:
        assert command.started()["streams_max"] <= 64 // 3
        until(lambda: command.records("files_limited"), "it says that files are few")
    finally:
        command.close()
