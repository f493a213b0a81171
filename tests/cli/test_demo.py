"""`streamguard demo` from end to end: provider, proxy and clients, and proxies that misbehave."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.support.command import until
from tests.support.recordings import HIGH, LENGTH, LOW, mixed, recording, write

from streamguard.cli import demo
from streamguard.demo.cases import RULE

COMMAND = [sys.executable, "-W", "error", "-m", "streamguard", "demo"]
QUICK = ["--seconds", "0.2"]
CUT_AT = RULE.start or RULE.first


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each fate in each dialect, named by it."""
    return mixed(tmp_path_factory.mktemp("recordings"), until=RULE.first)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command, ended."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=40, check=False
    )


def test_json(folder: Path) -> None:
    """One object, exactly the fields that are promised, and figures that add up."""
    done = run("--json", "--recordings", folder, *QUICK)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)

    assert list(result) == ["streams", "not_generated_tokens", "false_aborts"]
    by_id = {stream["id"]: stream for stream in result["streams"]}
    assert len(by_id) == 8
    for name, stream in by_id.items():
        assert list(stream) == [
            *("id", "verdict", "position", "score", "threshold", "correct"),
            *("tokens_sent", "tokens_recorded", "upstream_closed_ms"),
        ]
        assert stream["correct"] == ("right" in name)
        assert stream["threshold"] == RULE.below
        if name.startswith("cut"):
            assert (stream["verdict"], stream["position"]) == ("abort", CUT_AT)
            assert stream["score"] == pytest.approx(LOW)
            assert CUT_AT <= stream["tokens_sent"] < stream["tokens_recorded"] == LENGTH
            assert 0 <= stream["upstream_closed_ms"] <= 250
        else:
            assert (stream["verdict"], stream["position"]) == ("commit", RULE.first)
            assert stream["score"] == pytest.approx(HIGH)
            assert stream["tokens_sent"] == stream["tokens_recorded"] == LENGTH
            assert stream["upstream_closed_ms"] is None
    assert result["false_aborts"] == 2
    assert result["not_generated_tokens"] == sum(
        stream["tokens_recorded"] - stream["tokens_sent"] for stream in by_id.values()
    )
    assert "picked by hand" in done.stderr


def test_table_and_still(folder: Path, tmp_path: Path) -> None:
    """Without a terminal: the last state of the table and the summary; as SVG the same."""
    svg = tmp_path / "demo.svg"
    done = run("--recordings", folder, "--svg", svg, *QUICK)
    assert (done.returncode, done.stderr) == (0, "")
    text = done.stdout
    picture = "".join(ElementTree.fromstring(svg.read_bytes()).itertext()).replace("\xa0", " ")

    for shown in (text, picture):
        assert "What about cut-right-chat?" in shown
        assert f"0.200 < {RULE.below:g}" in shown
        assert f"cut at {CUT_AT}" in shown
        assert "cut and wrong 2   cut and right (false aborts) 2   kept and wrong 2" in shown
        assert "of 640 recorded tokens not generated" in shown
        assert "it guarantees nothing" in shown
        assert "the provider saw every cut" in shown
    assert "\x1b" not in text
    # A picture that fetches something is no still.
    assert svg.read_text().count("http") == svg.read_text().count('xmlns="http')


@pytest.mark.parametrize("columns", [80, 140])
def test_on_a_terminal_the_table_is_live(folder: Path, columns: int) -> None:
    """It is drawn while the streams run, in whatever width there is, and stands at the end."""
    pid, screen = pty.fork()
    if pid == 0:
        os.environ.update(COLUMNS=str(columns), LINES="40", TERM="xterm-256color")
        os.execv(COMMAND[0], [*COMMAND, "--recordings", str(folder), "--seconds", "1"])
    shown = b""
    while True:
        try:
            data = os.read(screen, 65536)
        except OSError:  # how a terminal says that nobody writes to it any more
            break
        if not data:
            break
        shown += data
    os.close(screen)
    _, status = os.waitpid(pid, 0)
    text = " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).split())

    assert os.waitstatus_to_exitcode(status) == 0, text
    assert "waiting" in text or "streaming" in text
    assert text.count("question") > 2
    assert "cut and wrong 2 cut and right (false aborts) 2 kept and wrong 2 kept" in text


def test_the_demo_keeps_its_time(tmp_path: Path) -> None:
    """An answer that took five minutes is played in the seconds that are given."""
    slow = write(tmp_path / "slow", recording("slow", [0.9] * 30, pace_ms=10_000))
    begun = time.monotonic()
    done = run("--json", "--recordings", slow, "--seconds", "1")
    taken = time.monotonic() - begun

    assert done.returncode == 0, done.stderr
    assert 1.0 <= taken < 15


def test_without_recordings_there_is_nothing_to_show(tmp_path: Path) -> None:
    """Exit code 1 and a reason."""
    done = run("--recordings", write(tmp_path / "empty"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "streamguard demo: there are no recordings\n"


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in listed.split()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything(tmp_path: Path, number: signal.Signals) -> None:
    """Neither provider nor proxy outlive the demo."""
    slow = write(tmp_path / "slow", recording("slow", [0.9] * 30, pace_ms=1000))
    process = subprocess.Popen(
        [*COMMAND, "--recordings", str(slow)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    until(lambda: len(children(process.pid)) == 2, "both processes started", within_s=15)
    started = children(process.pid)
    process.send_signal(number)
    _, complaints = process.communicate(timeout=20)

    assert process.returncode not in (0, None)
    assert b"Traceback" not in complaints
    until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in started),
        "provider and proxy are gone",
    )


# --------------------------------------------------------------------------- proxies that misbehave

DEAF = """
from streamguard.proxy.upstream import Connection
class Sink:
    def head(self, head): pass
    def data(self, data, *, last): pass
    def done(self, ending): pass
Connection.abort = lambda self: setattr(self, "_downstream", Sink())
"""
OBSERVING = """
sys.argv += ["--mode", "observe"]
"""
MILDER = """
sys.argv[sys.argv.index("--below") + 1] = "0.1"
"""
FORGETFUL = """
from streamguard.core import guard
guard.put_null = lambda event, spans: event.raw
"""
CORRUPTING = """
from streamguard.serving.reply import Reply
write = Reply.write
Reply.write = lambda self, data, **more: write(self, data.replace(b"t7", b"t8"), **more)
"""
ENDLESS = """
from streamguard.core.dialects.tail import Tail
Tail.done = lambda self: b""
"""
SILENT_LOG = """
from streamguard.telemetry.logs import Writer
old = Writer.write
Writer.write = lambda self, line: None if b"stream_finished" in line else old(self, line)
"""
STILLBORN = """
print("no luck", file=sys.stderr)
sys.exit(3)
"""
UNREACHING = """
sys.argv[sys.argv.index("--upstream") + 1] = "http://127.0.0.1:1/v1"
"""


def with_proxy(
    mutation: str, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any] | None, str]:
    """The demo with a proxy that was changed: exit code, result, complaints."""
    script = tmp_path / "proxy.py"
    script.write_text(
        f"import sys\n{mutation}\nfrom streamguard.cli.app import main\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    command: Sequence[str] = (sys.executable, str(script))
    code = demo.run(as_json=True, svg=None, seconds=0.2, recordings=folder, command=command)
    out, err = capfd.readouterr()
    return code, json.loads(out) if out else None, err


def test_a_proxy_that_was_not_changed_passes(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The counter-example to all that follow."""
    code, result, _ = with_proxy("", folder, tmp_path, capfd)
    assert (code, len((result or {})["streams"])) == (0, 8)


@pytest.mark.parametrize(
    ("mutation", "says"),
    [
        pytest.param(DEAF, "the provider saw no close", id="does not close the upstream"),
        pytest.param(OBSERVING, "it should have been cut, and was not", id="only observes"),
        pytest.param(
            MILDER, f"the verdict was commit at {RULE.first}", id="judges by another bound"
        ),
        pytest.param(FORGETFUL, "byte for byte", id="leaves in what it injected"),
        pytest.param(CORRUPTING, "did not arrive byte for byte", id="changes one byte"),
        pytest.param(ENDLESS, "does not end with one event", id="forgets the end mark"),
        pytest.param(SILENT_LOG, "the proxy has no record of it", id="loses its records"),
        pytest.param(UNREACHING, "no whole response (status 502)", id="finds no upstream"),
    ],
)
def test_a_proxy_that_misbehaves_is_found_out(
    mutation: str,
    says: str,
    folder: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Exit code 1 and what failed, per stream; the figures are still given."""
    code, result, complaints = with_proxy(mutation, folder, tmp_path, capfd)
    assert code == 1
    assert result is not None
    assert says in complaints


def test_a_proxy_that_does_not_start_is_told(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 at once, no result, no traceback."""
    code, result, complaints = with_proxy(STILLBORN, folder, tmp_path, capfd)
    assert (code, result) == (1, None)
    assert complaints == "streamguard demo: the proxy ended with 3: no luck\n"
