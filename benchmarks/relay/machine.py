"""What the figures were taken on: enough to judge them, nothing that names a machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from benchmarks.relay.subjects import nginx_path

_LIBRARIES: Final = ("uvloop", "aiohttp", "httptools", "msgspec")


def describe() -> dict[str, str]:
    """Processor, kernel and versions, by name."""
    found = {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "streamguard": version("streamguard-proxy"),
        "nginx": _nginx(),
    }
    return found | {name: _version(name) for name in _LIBRARIES}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "absent"


def _nginx() -> str:
    path = nginx_path()
    if path is None:
        return "absent"
    told = subprocess.run([path, "-v"], capture_output=True, text=True, check=False)  # noqa: S603
    found = re.search(r"nginx/(\S+)", told.stderr)
    return found[1] if found else "unknown"
