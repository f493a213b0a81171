"""The docs are true: their commands run, their settings exist, the tests they name are there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from streamguard.config.policy import parse_policy
from streamguard.config.settings import Settings
from streamguard.core.events import Outcome
from streamguard.core.signals import SIGNALS
from streamguard.core.specs import FailPolicy

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
FAILURES = (ROOT / "docs" / "failures.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def commands(text: str) -> list[list[str]]:
    """The commands of the console blocks, continued lines joined."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        lines = block.replace("\\\n", " ").splitlines()
        found += [shlex.split(line[2:]) for line in lines if line.startswith("$ ")]
    return found


def streamguard(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run(
        [sys.executable, "-m", "streamguard", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_the_replay_of_the_readme_runs() -> None:
    """The README's first example that needs no key does what the README says."""
    (replay,) = [words for words in commands(README) if words[1:2] == ["replay"]]
    done = streamguard(*replay[1:])

    assert done.returncode == 0, done.stderr
    assert "abort@4" in done.stdout


def test_every_flag_of_the_readme_exists() -> None:
    """No flag in README or docs is one that `serve` or `replay` does not have."""
    known = streamguard("serve", "--help").stdout + streamguard("replay", "--help").stdout
    for flag in set(re.findall(r"`(--[a-z-]+)", README + FAILURES)):
        assert re.search(rf"{flag}\b", known), flag


def test_the_policy_of_the_readme_is_one() -> None:
    """The TOML example is a valid policy, of the mode it says."""
    (example,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)

    assert parse_policy(example).mode == "enforce"


def test_every_setting_is_documented_with_its_default() -> None:
    """The table of defaults names every setting there is, and no other."""
    named = set(re.findall(r"STREAMGUARD_([A-Z_]+)`", FAILURES))
    flags = {"upstream", "host", "port", "admin_port", "allow_open", "log_level"}

    assert {name.lower() for name in named} == set(Settings.model_fields) - flags
    for name, number in re.findall(r"\| ([0-9.]+) \| `STREAMGUARD_([A-Z_]+)`", FAILURES):
        assert Settings.model_fields[number.lower()].default == float(name), number


@pytest.mark.parametrize("page", ["docs/failures.md", "docs/architecture.md", "SECURITY.md"])
def test_named_tests_exist(page: str) -> None:
    """Every test file and test function that a page points to is there."""
    text = (ROOT / page).read_text()
    for path in set(re.findall(r"tests/[a-z0-9_/]+\.py", text)):
        assert (ROOT / path).is_file(), path
    for path, name in set(re.findall(r"(tests/[a-z0-9_/]+\.py)::(\w+)", text)):
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_links_lead_somewhere(page: str) -> None:
    """Links within the repository are not broken."""
    folder = (ROOT / page).parent
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", (ROOT / page).read_text()):
        assert (folder / target).exists(), target


def test_closed_lists_are_complete() -> None:
    """Signals, causes and outcomes: the docs know every one."""
    for signal in SIGNALS:
        assert f"`{signal}`" in README, signal
        assert f"`{signal}`" in ARCHITECTURE, signal
    for cause in FailPolicy.__struct_fields__:
        assert f"`{cause}`" in FAILURES, cause
    for outcome in get_args(Outcome):
        assert f"`{outcome}`" in ARCHITECTURE, outcome


def test_every_room_is_in_the_house() -> None:
    """The picture of the house names every room (errors.py aside), and none that is not there."""
    (picture,) = re.findall(r"```\nsrc/streamguard/\n(.*?)```", ARCHITECTURE, re.DOTALL)
    named = set(re.findall(r"^  ([a-z_]+)(?:/|\.py)", picture, re.MULTILINE))
    rooms = {
        path.stem
        for path in (ROOT / "src" / "streamguard").iterdir()
        if not path.name.startswith("_") and path.suffix in ("", ".py")
    }

    assert named == rooms - {"errors"}
