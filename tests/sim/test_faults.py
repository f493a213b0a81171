"""Every fault does what its name says, as seen by a client that knows HTTP by hand."""

from __future__ import annotations

import gzip
import json
import ssl
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.support.client import Answer, Client
from tests.support.simulator import Simulator
from tests.support.streams import DONE, PATHS, payloads, request

from streamguard.sim.faults import FAULTS

# Short answers without waiting; 20 tokens make 23 events: role, tokens, finish, [DONE].
QUICK = "length=20&pace_ms=0"
EVENTS = 23


def name(fault: str, **options: object) -> str:
    """A model with this fault."""
    return f"fault/{fault}?" + "&".join([QUICK, *(f"{k}={v}" for k, v in options.items())])


def ask(simulator: Simulator, model: str, **more: Any) -> Answer:
    """One exchange."""
    with Client(simulator.port) as client:
        client.request("POST", PATHS["chat"], request("chat", model=model, **more))
        return client.answer()


def test_the_vocabulary_is_complete() -> None:
    """Toxiproxy's seven and the rest; a name that is missing here is tested nowhere below."""
    tested = (Path(__file__)).read_text()
    assert set(FAULTS) == {
        *("latency", "bandwidth", "slicer", "limit_data", "timeout", "reset_peer", "slow_close"),
        *("half_close", "rst_on_accept", "accept_then_silent", "lie_framing", "encode"),
        *("tls_truncate", "error_first", "error_midstream", "refuse_logprobs", "no_done"),
    }
    for fault in FAULTS:
        assert f'name("{fault}"' in tested, fault


def test_latency(simulator: Simulator) -> None:
    """The answer is whole, and late."""
    begun = time.monotonic()
    answer = ask(simulator, name("latency", ms=150))

    assert time.monotonic() - begun >= 0.15
    assert answer.body.endswith(DONE)


def test_bandwidth(simulator: Simulator) -> None:
    """The answer is whole, and takes as long as its bytes need."""
    begun = time.monotonic()
    answer = ask(simulator, name("bandwidth", bytes_per_s=20_000))
    taken = time.monotonic() - begun

    assert answer.body.endswith(DONE)
    assert taken >= 0.9 * len(answer.body) / 20_000


def test_slicer(simulator: Simulator) -> None:
    """The answer is whole, and no read brings more than a segment."""
    fields = ["Connection: close"]
    with Client(simulator.port) as client:
        model = name("slicer", bytes=40, pause_ms=2)
        client.request("POST", PATHS["chat"], request("chat", model=model), fields)
        reads = []
        while data := client.sock.recv(65536):
            reads.append(data)

    assert reads[-1].endswith(b"0\r\n\r\n")
    # Two segments are read as one where this side is late; most are not.
    assert sorted(map(len, reads))[len(reads) // 2] == 40


def test_limit_data(simulator: Simulator) -> None:
    """FIN after exactly so many bytes, head included."""
    model = name("limit_data", bytes=1000)
    with Client(simulator.port) as client:
        client.request("POST", PATHS["chat"], request("chat", model=model))
        raw = client.read_all()

    assert (len(raw), client.broken) == (1000, "fin")
    assert simulator.closed(model)["closed_by"] == "server"


@pytest.mark.parametrize("after", [0, 1, 6])
def test_timeout(simulator: Simulator, after: int) -> None:
    """So many events, then an open connection without a word; the close is seen in the silence."""
    model = name("timeout", after=after)
    with Client(simulator.port) as client:
        client.request("POST", PATHS["chat"], request("chat", model=model))
        client.head()
        assert len(client.read_events(after)) == after
        client.sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.sock.recv(1)
        client.leave("fin")

    line = simulator.closed(model)
    assert (line["closed_by"], line["tokens_sent"]) == ("client", max(0, after - 1))


@pytest.mark.parametrize(("after", "events"), [(0, 0), (4, 4), (99, EVENTS)])
def test_reset_peer(simulator: Simulator, after: int, events: int) -> None:
    """So many events, then RST; in a shorter answer before its end is marked."""
    answer = ask(simulator, name("reset_peer", after=after))

    # An RST may overtake what was sent before it: never more than so many events, and no end.
    assert answer.ending == "rst"
    assert len(payloads(answer.body)) <= events
    assert simulator.closed(name("reset_peer", after=after))["closed_by"] == "server"


def test_slow_close(simulator: Simulator) -> None:
    """The body ends with the connection, and that comes late."""
    answer = ask(simulator, name("slow_close", ms=200))
    last_read_at = answer.reads[-1][0]

    assert (answer.ending, answer.head.get("transfer-encoding")) == ("fin", None)
    assert answer.body.endswith(DONE)
    assert time.monotonic() - last_read_at >= 0.19


def test_half_close(simulator: Simulator) -> None:
    """FIN after so many events; the provider goes on listening until the client leaves."""
    model = name("half_close", after=3)
    with Client(simulator.port) as client:
        client.request("POST", PATHS["chat"], request("chat", model=model))
        answer = client.answer()
        assert (answer.ending, len(payloads(answer.body))) == ("fin", 3)
        assert simulator.line(model)["closed_by"] is None
    assert simulator.closed(model)["closed_by"] == "client"


def test_rst_on_accept(simulator: Simulator) -> None:
    """RST instead of an answer."""
    with Client(simulator.port) as client:
        client.request("POST", PATHS["chat"], request("chat", model=name("rst_on_accept")))
        assert client.wait_closed() == "rst"


def test_accept_then_silent(simulator: Simulator) -> None:
    """Not a byte; the close is seen."""
    model = name("accept_then_silent")
    with Client(simulator.port) as client:
        client.request("POST", PATHS["chat"], request("chat", model=model))
        client.sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.sock.recv(1)
    line = simulator.closed(model)

    assert (line["closed_by"], line["closed_after_ms"]) == ("client", None)


def test_lie_framing_long(simulator: Simulator) -> None:
    """A Content-Length that the body does not reach."""
    answer = ask(simulator, name("lie_framing", how="long"))

    assert answer.ending == "fin"
    assert int(answer.head.get("content-length") or 0) == len(answer.body) + 1000


def test_lie_framing_short(simulator: Simulator) -> None:
    """A Content-Length that the body exceeds."""
    with Client(simulator.port) as client:
        model = name("lie_framing", how="short")
        client.request("POST", PATHS["chat"], request("chat", model=model))
        raw = client.read_all()
    head, _, body = raw.partition(b"\r\n\r\n")

    assert f"Content-Length: {len(body) // 2}".encode() in head
    assert body.endswith(DONE)


def test_lie_framing_chunk(simulator: Simulator) -> None:
    """The third chunk's size is no number."""
    with Client(simulator.port) as client:
        model = name("lie_framing", how="chunk")
        client.request("POST", PATHS["chat"], request("chat", model=model))
        raw = client.read_all()

    assert raw.index(b"\r\nsize\r\n") > raw.index(b"data:", raw.index(b"data:") + 1)


def test_lie_framing_both(simulator: Simulator) -> None:
    """Two framings at once."""
    head = ask(simulator, name("lie_framing", how="both")).head

    assert head.get("content-length") == "1000"
    assert head.get("transfer-encoding") == "chunked"


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_encode(simulator: Simulator, coding: str) -> None:
    """Compressed without being asked; what zlib knows is decoded, the rest names itself."""
    answer = ask(simulator, name("encode", coding=coding))

    assert (answer.ending, answer.head.get("content-encoding")) == ("complete", coding)
    match coding:
        case "gzip":
            assert gzip.decompress(answer.body).endswith(DONE)
        case "deflate":
            assert zlib.decompress(answer.body).endswith(DONE)
        case "br":
            assert answer.body[-1:] == b"\x03"
        case _:
            assert answer.body[:4] == b"\x28\xb5\x2f\xfd"


def test_error_first_as_an_event(simulator: Simulator) -> None:
    """200, one error event, `[DONE]`."""
    answer = ask(simulator, name("error_first"))
    error, end = payloads(answer.body)

    assert (answer.status, end) == (200, "[DONE]")
    assert error["error"]["code"] == "server_error"


def test_error_first_as_a_status(simulator: Simulator) -> None:
    """A JSON error answer."""
    answer = ask(simulator, name("error_first", status=503))

    assert answer.status == 503
    assert json.loads(answer.body)["error"]["code"] == "server_error"


def test_error_midstream(simulator: Simulator) -> None:
    """So many events, an error event, `[DONE]`, a clean end."""
    answer = ask(simulator, name("error_midstream", after=3))
    *events, error, end = payloads(answer.body)

    assert (answer.ending, len(events), end) == ("complete", 3, "[DONE]")
    assert "error" in error


@pytest.mark.parametrize("status", [400, 422, 200])
def test_refuse_logprobs(simulator: Simulator, status: int) -> None:
    """Who asks is refused by name of the field, who does not is served."""
    model = name("refuse_logprobs", status=status)
    refused = ask(simulator, model, logprobs=True)
    served = ask(simulator, model)
    found = payloads(refused.body)[0] if status == 200 else json.loads(refused.body)

    assert refused.status == status
    assert found["error"]["param"] == "logprobs"
    assert len(payloads(served.body)) == EVENTS


def test_no_done(simulator: Simulator) -> None:
    """The finish reason comes, the end mark does not; the end is clean."""
    answer = ask(simulator, name("no_done"))

    assert answer.ending == "complete"
    assert payloads(answer.body)[-1]["choices"][0]["finish_reason"] == "stop"


# --------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Simulator, ssl.SSLContext]]:
    """A provider that speaks TLS, and a context that trusts it."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    running = Simulator("--tls-cert", cert, "--tls-key", key)
    yield running, context
    assert running.stop() == (0, "")


def exchange(port: int, context: ssl.SSLContext, model: str) -> tuple[bytes, bool]:
    """Everything an answer brings, and whether its end was a close-notify."""
    with Client(port) as client:
        # The harness looks the name up by itself; here only the bytes are of interest.
        wrapped = context.wrap_socket(
            client.sock, server_hostname="127.0.0.1", suppress_ragged_eofs=False
        )
        with wrapped:
            client.sock = wrapped
            client.request("POST", PATHS["chat"], request("chat", model=model))
            found = b""
            try:
                while data := wrapped.recv(65536):
                    found += data
            except (ssl.SSLEOFError, ConnectionResetError):
                return found, False
            return found, True


def test_tls_truncate(secure: tuple[Simulator, ssl.SSLContext]) -> None:
    """So many events, then an end without close-notify; `slow_close` is the counter-example."""
    simulator, context = secure
    cut, cut_notified = exchange(simulator.port, context, name("tls_truncate", after=4))
    whole, notified = exchange(simulator.port, context, name("slow_close", ms=0))

    assert (cut.count(b"data: "), cut_notified) == (4, False)
    assert (whole.count(b"data: "), notified) == (EVENTS, True)
    assert b"chunked" not in cut


@pytest.mark.parametrize("fault", ["half_close"])
def test_what_tls_can_not_do_is_said(secure: tuple[Simulator, ssl.SSLContext], fault: str) -> None:
    """TLS 1.3 over asyncio has no half close that means anything: 400, not silence."""
    simulator, context = secure
    with Client(simulator.port) as client:
        client.sock = context.wrap_socket(client.sock, server_hostname="127.0.0.1")
        client.request("POST", PATHS["chat"], request("chat", model=name(fault)))
        answer = client.answer()

    assert answer.status == 400


def test_tls_truncate_needs_tls(simulator: Simulator) -> None:
    """Over a plain socket it would be another fault: refused."""
    answer = ask(simulator, name("tls_truncate"))

    assert answer.status == 400
    assert "needs TLS" in json.loads(answer.body)["error"]["message"]


# --------------------------------------------------------------------------- before any request


def greeting(port: int) -> str:
    """What a new connection meets."""
    try:
        with Client(port) as client:
            client.request("GET", "/v1/models")
            client.sock.settimeout(0.1)
            client.sock.recv(1)
    except (ConnectionResetError, BrokenPipeError):  # as early as in the connect
        return "rst"
    except TimeoutError:
        return "silent"
    return "served"


@pytest.mark.parametrize("kind", ["rst", "silent"])
def test_on_accept(tmp_path: Path, kind: str) -> None:
    """The first connections are reset or left in silence, the later ones served."""
    script = tmp_path / "script.toml"
    script.write_text(f'[on_accept]\nkind = "{kind}"\nconnections = 2\n')
    simulator = Simulator("--script", script)
    try:
        for _ in range(2):
            assert greeting(simulator.port) == kind
        assert ask(simulator, f"generated?{QUICK}").body.endswith(DONE)
    finally:
        assert simulator.stop() == (0, "")
