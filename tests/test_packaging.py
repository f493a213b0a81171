"""What is shipped: the wheel and the source archive hold the source tree and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCKS = (
    "requirements/run.txt",
    "requirements/test.txt",
    "requirements/model.txt",
    "requirements/model-file.txt",
    "requirements/vllm.txt",
    "requirements/vllm-server.txt",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both archives, built by the back end itself."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(out)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=50,
    )
    return out


def test_the_wheel_is_the_source_tree(built: Path) -> None:
    """Every module is in it, the type marker too; no start-up file, no test (F37)."""
    (wheel,) = built.glob("streamguard_proxy-*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    source = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert names == source
    assert "streamguard/py.typed" in names
    assert not any(name.endswith(".pth") for name in names)


def test_the_source_archive_can_run_its_tests(built: Path) -> None:
    """The tests, the locks and the Makefile travel with the source."""
    (archive,) = built.glob("streamguard_proxy-*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}

    assert {"Makefile", "pyproject.toml", "LICENSE", *LOCKS} <= names
    assert "tests/support/upstream.py" in names
    assert not any(name.startswith((".venv", "dist")) for name in names)


def pins(lock: str) -> dict[str, tuple[str, int]]:
    """Name, version and number of hashes of each requirement in a lock."""
    text = (ROOT / lock).read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if line and not line.lstrip().startswith("#"):
            match = re.match(r"([a-z0-9._-]+)==(\S+)", line)
            assert match, f"{lock}: {line[:60]!r} is no pinned requirement"
            found[match[1]] = (match[2], line.count("--hash=sha256:"))
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_are_pinned_and_hashed(lock: str) -> None:
    """Every line is one exact version with hashes; no option, no address of any index."""
    assert all(hashes for _, hashes in pins(lock).values())
    assert "://" not in (ROOT / lock).read_text()


def test_locks_cover_what_the_project_asks_for() -> None:
    """Each dependency stands in the lock of its kind, and the two locks agree."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    run, test = pins(LOCKS[0]), pins(LOCKS[1])

    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[\[>=<~!; ]", line)[0].lower() for line in requirements}

    assert names(project["project"]["dependencies"]) <= run.keys()
    assert names(project["dependency-groups"]["test"]) <= run.keys() | test.keys()
    assert {name for name in run.keys() & test.keys() if run[name] != test[name]} == set()


@pytest.mark.parametrize("name", ["aiohttp", "httptools", "msgspec", "uvloop"])
def test_locks_hold_for_other_platforms(name: str) -> None:
    """Compiled packages are hashed for every platform their index serves, not just for one."""
    _, hashes = pins(LOCKS[0])[name]

    assert hashes > 20
