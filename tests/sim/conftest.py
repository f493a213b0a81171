"""One provider for all tests that need no script of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.recordings import recording, write
from tests.support.simulator import Simulator


@pytest.fixture(scope="session")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    """The command, with two recordings made up for the tests."""
    folder = write(
        tmp_path_factory.mktemp("recordings"),
        recording("spoken", [0.9, 0.2, 0.8], pace_ms=40.0),
        recording("written", [0.9, 0.2, 0.8], dialect="completions"),
    )
    running = Simulator("--recordings", folder)
    yield running
    assert running.stop() == (0, "")
