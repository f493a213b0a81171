"""`streamguard simulate` in its own process, and its books read over the wire."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.client import Client
from tests.support.command import until


class Simulator:
    """The running command.

    Args:
        arguments: after `simulate`; the port is any.
    """

    def __init__(self, *arguments: str | Path) -> None:
        words = ["simulate", "--port", "0", *map(str, arguments)]
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "streamguard", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1].decode()
        self.started: dict[str, Any] = json.loads(line)
        self.port: int = self.started["port"]

    def books(self) -> list[dict[str, Any]]:
        """`GET /sim/requests`."""
        with Client(self.port) as client:
            client.request("GET", "/sim/requests")
            found: list[dict[str, Any]] = json.loads(client.answer().body)
            return found

    def line(self, model: str) -> dict[str, Any]:
        """The last entry about a model."""
        return [line for line in self.books() if line["model"] == model][-1]

    def closed(self, model: str, *, within_s: float = 5.0) -> dict[str, Any]:
        """That entry, once the exchange is over."""
        until(lambda: self.line(model)["closed_by"], f"{model} closed", within_s=within_s)
        return self.line(model)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """End it; its exit code and what it complained about."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, complaints = self.process.communicate(timeout=10)
        return self.process.returncode, complaints.decode()
