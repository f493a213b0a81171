"""The subjects: each a process of its own, all running at once, loaded one after the other."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec
from benchmarks.relay.load import LoadError
from benchmarks.relay.process import on_core

Name = Literal["direct", "nginx", "plain", "scoring", "decided", "stripping"]

NAMES: Final[tuple[Name, ...]] = get_args(Name)
LABELS: Final[dict[Name, str]] = {
    "direct": "direct connection",
    "nginx": "nginx, unbuffered",
    "plain": "plain aiohttp relay",
    "scoring": "streamguard, scoring every event",
    "decided": "streamguard, after the verdict",
    "stripping": "streamguard, scoring and stripping",
}
START_S: Final = 20.0
ROOT: Final = Path(__file__).parents[2]

# A look at every token, far from the bound: what a rule costs that never fires.
_EVERY: Final = (
    *("--signal", "mean_prob", "--below", "0.05"),
    *("--from", "1", "--first", "1000000"),
)
# The verdict falls at the first token; the rest is relayed.
_FIRST: Final = ("--signal", "mean_prob", "--below", "0.05", "--first", "1")

_NGINX: Final = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/log crit;
worker_rlimit_nofile 8192;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 100000000;
    upstream sender {{
        server 127.0.0.1:{upstream};
        keepalive 1024;
        keepalive_requests 100000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location / {{
            proxy_pass http://sender;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""


class _Started(msgspec.Struct):
    """The line of a log that says where its process listens."""

    port: int


@dataclass(frozen=True, slots=True)
class Subject:
    """One that is running.

    Attributes:
        port: where clients connect.
        pid: of the top of its process tree; None for the direct connection.
    """

    name: Name
    port: int
    pid: int | None

    @property
    def client_asks(self) -> bool:
        """Whether clients ask for logprobs themselves; if not, they are put in and taken out."""
        return self.name != "stripping"

    @property
    def is_streamguard(self) -> bool:
        """Whether it is one of ours."""
        return self.name in ("scoring", "decided", "stripping")


def nginx_path() -> str | None:
    """The nginx of this machine, if it has one."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextmanager
def running(
    names: Sequence[Name], upstream: int, *, folder: Path, core: int | None
) -> Iterator[dict[Name, Subject]]:
    """Start them, and end them afterwards.

    Args:
        names: which; nginx is left out where there is none.
        upstream: the sender's port.
        folder: for their files.
        core: the core that they share; None: any.

    Raises:
        LoadError: one does not come up.
    """
    with ExitStack() as stack:
        found: dict[Name, Subject] = {}
        for name in names:
            own = folder / name
            own.mkdir()
            if name == "direct":
                found[name] = Subject(name, upstream, None)
            elif name != "nginx" or nginx_path() is not None:
                with on_core(core):
                    process, port = _start(name, upstream, own)
                stack.callback(_end, process)
                found[name] = Subject(name, port or _announced(process, own), process.pid)
                _await_port(found[name].port, process)
        yield found


def _start(name: Name, upstream: int, folder: Path) -> tuple[subprocess.Popen[bytes], int | None]:
    port: int | None = None
    if name == "nginx":
        path = nginx_path()
        assert path is not None
        port = _free_port()
        (folder / "conf").write_text(_NGINX.format(folder=folder, upstream=upstream, port=port))
        command = [path, "-p", str(folder), "-c", str(folder / "conf"), "-e", str(folder / "log")]
    elif name == "plain":
        command = [sys.executable, "-m", "benchmarks.relay.plain", str(upstream)]
    else:
        rule = _FIRST if name == "decided" else _EVERY
        command = [sys.executable, "-m", "streamguard", "serve", "--port", "0", *rule]
        command += ["--upstream", f"http://127.0.0.1:{upstream}/v1"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STREAMGUARD_")}
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(  # noqa: S603  # our own words
            command, cwd=ROOT, env=clean, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    return process, port


def _announced(process: subprocess.Popen[bytes], folder: Path) -> int:
    """The port that a subject has told us."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        line, whole, _ = (folder / "out").read_text().partition("\n")
        if whole:
            return int(line) if line.isdigit() else msgspec.json.decode(line, type=_Started).port
        time.sleep(0.02)
    raise LoadError(f"a subject did not start: {(folder / 'out').read_text()[-500:]}")


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise LoadError("a subject does not listen")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
