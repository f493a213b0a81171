"""Who may import whom, where import-linter cannot say it, and what a bare import costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "streamguard"
CORE = sorted([*SRC.glob("core/**/*.py"), SRC / "errors.py"])

# The standard library's doors to the outside world: clocks, randomness, files, logs, the system.
WORLD = {
    "asyncio",
    "datetime",
    "io",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "socket",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "uuid",
}


def imported(path: Path) -> Iterator[str]:
    """Every module a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, "relative imports are banned"
            yield node.module


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.relative_to(SRC).as_posix())
def test_core_is_sans_io(path: Path) -> None:
    """`core` and `errors` import msgspec, themselves, and the harmless part of the stdlib."""
    for name in imported(path):
        top = name.partition(".")[0]
        if top == "streamguard":
            assert name.split(".")[1] in ("core", "errors"), name
        else:
            assert top == "msgspec" or (top in sys.stdlib_module_names and top not in WORLD), name


@pytest.mark.parametrize("module", ["streamguard", "streamguard.core.guard", "streamguard.cli.app"])
def test_an_import_is_cheap(module: str) -> None:
    """Importing the package, the core or the command pulls in no server and no numbers library."""
    heavy = {"aiohttp", "pydantic", "numpy", "httptools", "structlog", "prometheus_client"}
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20
    )

    assert heavy & set(done.stdout.split()) == set()


def test_public_names_load() -> None:
    """Every name in `__all__` exists, is loaded on use, and no other public name is promised."""
    import streamguard

    assert sorted(streamguard.__all__) == list(streamguard.__all__)
    for name in streamguard.__all__:
        assert getattr(streamguard, name).__name__ == name or callable(getattr(streamguard, name))
    assert {name for name in dir(streamguard) if not name.startswith("_")} == set(
        streamguard.__all__
    )


def test_no_module_reaches_for_the_network_on_import() -> None:
    """Importing everything opens no socket and starts no process (audit hook)."""
    modules = sorted(
        ".".join(path.relative_to(SRC.parent).with_suffix("").parts)
        for path in SRC.rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    )
    code = (
        "import sys\n"
        "def hook(event, args):\n"
        "    if event.startswith(('socket.connect', 'socket.bind', 'subprocess', 'os.exec')):\n"
        "        print(event); sys.exit(3)\n"
        "sys.addaudithook(hook)\n"
        f"import {', '.join(modules)}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=40
    )

    assert (done.returncode, done.stdout) == (0, ""), done.stderr
