"""`streamguard simulate` as a user starts and stops it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.client import Client
from tests.support.simulator import Simulator
from tests.support.streams import PATHS, request
from typer.testing import CliRunner

from streamguard.cli.simulate import app

runner = CliRunner()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_ends_on_a_signal(number: signal.Signals) -> None:
    """One line with the port; a stream that is still running does not hold it up."""
    simulator = Simulator()
    assert simulator.started == {
        "event": "simulate_started",
        "host": "127.0.0.1",
        "port": simulator.port,
    }
    with Client(simulator.port) as client:
        model = "generated?pace_ms=30000"
        client.request("POST", PATHS["chat"], request("chat", model=model))
        client.read_events(1)
        assert simulator.stop(number) == (0, "")
        assert client.wait_closed() in ("fin", "rst")


def test_a_script_is_used(tmp_path: Path) -> None:
    """Its models answer, and are listed."""
    script = tmp_path / "script.toml"
    script.write_text('[models."my model"]\ngenerated = {length = 2, pace_ms = 0}\n')
    simulator = Simulator("--script", script)
    with Client(simulator.port) as client:
        client.request("POST", PATHS["chat"], request("chat", model="my model"))
        assert client.answer().body.count(b"data: ") == 5
        client.request("GET", "/v1/models")
        assert b'"my model"' in client.answer().body
    assert simulator.stop() == (0, "")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--script", "none.toml"], "none.toml: No such file"),
        (["--script", "bad.toml"], "is no key here; did you mean 'speed'?"),
        (["--recordings", "none"], "--recordings: is no folder"),
        (["--recordings", "."], "odd.jsonl, line 1: is no recording"),
        (["--speed", "0"], "Invalid value"),
        (["--tls-key", "key.pem"], "--tls-key: has no certificate"),
        (["--tls-cert", "bad.toml"], "--tls-cert: can't be used"),
        (["--port", "70000"], "Invalid value"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    """Exit code 2 and a complaint that names the place."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("sped = 1")
    (tmp_path / "odd.jsonl").write_text("{}\n")
    done = runner.invoke(app, arguments)

    assert done.exit_code == 2
    assert says in " ".join(done.stderr.replace("│", " ").split())


def test_a_port_that_is_taken_is_told() -> None:
    """Exit code 1, no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "streamguard", "simulate", "--port", port],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("streamguard simulate: ")
    assert "Traceback" not in done.stderr
