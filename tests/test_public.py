"""The public interface: what is exported, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import streamguard

HEAVY = ("aiohttp", "pydantic", "pydantic_settings", "numpy", "typer", "rich", "structlog", "httpx")


def fresh(code: str) -> str:
    """The output of a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=50
    )
    return done.stdout.strip()


def test_importing_costs_nothing_that_is_not_needed() -> None:
    """`import streamguard` loads no server, no settings, no numbers, and nothing of our own."""
    code = "import sys, streamguard; print(*sorted(m.partition('.')[0] for m in sys.modules))"
    loaded = set(fresh(code).split())

    assert "streamguard" in loaded
    assert not loaded.intersection((*HEAVY, "anyio", "msgspec"))


def test_guarding_needs_no_server() -> None:
    """All public names together still load neither the proxy nor what it needs."""
    code = (
        "import sys, streamguard;"
        "[getattr(streamguard, name) for name in streamguard.__all__];"
        "print(*sys.modules)"
    )
    loaded = fresh(code).split()

    assert "streamguard.core.guard" in loaded
    assert not {name.partition(".")[0] for name in loaded}.intersection(HEAVY)
    assert not [n for n in loaded if n.startswith(("streamguard.proxy", "streamguard.config"))]


@pytest.mark.parametrize("name", streamguard.__all__)
def test_every_public_name_is_there(name: str) -> None:
    """What `__all__` promises loads, is documented, and is listed by `dir`."""
    assert getattr(streamguard, name).__doc__
    assert name in dir(streamguard)


def test_the_list_is_sorted_and_without_twins() -> None:
    """So that a change of it is seen in review."""
    assert streamguard.__all__ == sorted(set(streamguard.__all__))


def test_the_version_is_that_of_the_package() -> None:
    """It comes from the metadata; unknown names are refused as Python refuses them."""
    assert streamguard.__version__.count(".") >= 2
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = streamguard.nonsense
