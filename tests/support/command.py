"""The installed command as the subject: its own process, its real log, its real exit.

Never the application object inside the test's loop: what a framework's test server does about a
client that leaves is not what the shipped process does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

Record: TypeAlias = dict[str, Any]

START_S = 20.0
# Each of these in the log is a bug of ours, whatever the client or the upstream did.
CRASH_MARKS = (
    "Task exception was never retrieved",
    "never awaited",
    "Unclosed",
    "Traceback",
    "ResourceWarning",
)
# These records mean the same: the log shows exceptions by type and place only.
CRASH_RECORDS = ("internal_error", "library_log")


class Command:
    """`python -m streamguard serve ...`, running.

    Args:
        arguments: what follows `serve`; `--port` is added.
        env: added to an environment without `STREAMGUARD_*`. The drain time is short unless
            it is given here: what a test leaves open should not hold up the next one.
        module: False runs the console script instead.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        port: int = 0,
        module: bool = True,
        preexec: Callable[[], None] | None = None,
    ) -> None:
        start = (
            [sys.executable, "-W", "default", "-m", "streamguard"]
            if module
            else [str(Path(sys.executable).with_name("streamguard"))]
        )
        clean = {k: v for k, v in os.environ.items() if not k.startswith("STREAMGUARD_")}
        self.process = subprocess.Popen(
            [*start, "serve", *arguments, "--port", str(port)],
            env={**clean, "STREAMGUARD_DRAIN_S": "0.3", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=preexec,
        )
        self._changed = threading.Condition()
        self._stdout: list[str] = []
        self._stderr: list[str] = []
        self._records: list[Record] = []
        self._readers = [
            threading.Thread(target=self._read, args=(pipe, into), daemon=True)
            for pipe, into in (
                (self.process.stdout, self._stdout),
                (self.process.stderr, self._stderr),
            )
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: Any, into: list[str]) -> None:
        with pipe:
            for line in pipe:
                text = line.decode("utf-8", "backslashreplace")
                with self._changed:
                    into.append(text)
                    if into is self._stdout and text.startswith("{"):
                        self._records.append(json.loads(text))
                    self._changed.notify_all()

    # ------------------------------------------------------------------ what it says

    @property
    def stdout(self) -> str:
        """Everything on standard output so far."""
        return "".join(self._stdout)

    @property
    def stderr(self) -> str:
        """Everything on standard error so far."""
        return "".join(self._stderr)

    def records(self, event: str | None = None) -> list[Record]:
        """The log records so far, of one event if named."""
        return [record for record in list(self._records) if event in (None, record["event"])]

    def wait_records(self, event: str, count: int, *, within_s: float = 5.0) -> list[Record]:
        """Wait until at least `count` records of an event are there."""
        deadline = time.monotonic() + within_s
        with self._changed:
            while len(found := self.records(event)) < count:
                left = deadline - time.monotonic()
                assert left > 0, (
                    f"{len(found)} of {count} {event} records within {within_s} s\n"
                    f"{self.stdout[-4000:]}{self.stderr[-4000:]}"
                )
                assert self._alive(), f"exited {self.process.returncode}\n{self.stderr[-4000:]}"
                self._changed.wait(min(left, 0.1))
        return found

    def _alive(self) -> bool:
        return self.process.poll() is None or any(r.is_alive() for r in self._readers)

    def started(self) -> Record:
        """The `server_started` record, waiting for it."""
        return self.wait_records("server_started", 1, within_s=START_S)[0]

    @property
    def port(self) -> int:
        """The port it listens on."""
        port = self.started()["port"]
        assert isinstance(port, int)
        return port

    @property
    def admin_port(self) -> int:
        """The port of the admin listener."""
        port = self.started()["admin_port"]
        assert isinstance(port, int)
        return port

    # ------------------------------------------------------------------ what it holds

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def fds(self) -> list[str]:
        """What its open descriptors point to."""
        found = []
        for entry in Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                found.append(str(entry.readlink()))
            except FileNotFoundError:  # closed while we looked
                continue
        return found

    def sockets(self) -> int:
        """The number of its open sockets."""
        return sum(target.startswith("socket:") for target in self.fds())

    # ------------------------------------------------------------------ how it ends

    def signal(self, number: signal.Signals) -> None:
        """Send one signal to this process and no other."""
        self.process.send_signal(number)

    def wait(self, within_s: float) -> int:
        """The exit status, waiting for it."""
        code = self.process.wait(within_s)
        for reader in self._readers:
            reader.join(5)
        return code

    def close(self) -> None:
        """Stop it at once and check that nothing in its log is a crash (I13)."""
        if self.process.poll() is None and not self.records("server_draining"):
            self.signal(signal.SIGTERM)
        try:
            code = self.wait(5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.wait(5.0)
            raise AssertionError(f"did not stop\n{self.stdout[-2000:]}{self.stderr}") from None
        assert code == 0, f"exit {code}\n{self.stderr[-4000:]}"
        self.check_log()

    def check_log(self) -> None:
        """Nothing in the log is a crash, a leak or a lost exception."""
        for mark in CRASH_MARKS:
            for name, text in (("stderr", self.stderr), ("stdout", self.stdout)):
                at = text.find(mark)
                assert at < 0, f"{mark!r} on {name}:\n{text[max(0, at - 1500) : at + 3000]}"
        for event in CRASH_RECORDS:
            assert self.records(event) == [], f"{event}: {self.records(event)}"


def until(condition: Callable[[], object], what: str, *, within_s: float = 5.0) -> None:
    """Poll a condition with a deadline; fails with `what` when it does not come true."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.002)
