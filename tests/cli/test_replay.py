"""`streamguard replay` as a user calls it: lines, table, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.reference.build import said
from typer.testing import CliRunner

from streamguard.cli.replay import app

LOW = said(("a", -2.0), ("b", -3.0))
RULE = ["--signal", "mean_prob", "--below", "0.5", "--first", "2"]
runner = CliRunner()


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "low.sse"
    path.write_bytes(LOW)
    return path


def test_json_is_one_object_a_line(recording: Path) -> None:
    """Standard output holds nothing but lines; the verdict does not change the exit code."""
    done = runner.invoke(app, [str(recording), str(recording), "--json", *RULE])
    assert (done.exit_code, done.stderr) == (0, "")
    first, second = map(json.loads, done.stdout.splitlines())
    assert first == second
    assert (first["path"], first["choices"][0]["verdict"]) == (str(recording), "abort")
    assert first["mode"] == "observe"


def test_mode_comes_from_the_flag_never_from_the_file(recording: Path, tmp_path: Path) -> None:
    """A file that enforces is observed; `--mode enforce` enforces it."""
    policy = tmp_path / "policy.toml"
    policy.write_text('mode = "enforce"\n[[rules]]\nsignal = "mean_prob"\nbelow = 0.5\nfirst = 2\n')
    arguments = [str(recording), "--json", "--policy", str(policy)]
    observed = json.loads(runner.invoke(app, arguments).stdout)
    enforced = json.loads(runner.invoke(app, [*arguments, "--mode", "enforce"]).stdout)
    assert (observed["mode"], observed["outcome"]) == ("observe", "complete")
    assert (enforced["mode"], enforced["outcome"]) == ("enforce", "aborted")


def test_table_names_every_stream(recording: Path) -> None:
    """Without --json: one row a stream, nothing folded where no screen is."""
    done = runner.invoke(app, [str(recording), *RULE])
    assert done.exit_code == 0
    head, row = done.stdout.splitlines()
    assert head.split() == ["recording", "outcome", "entries", "mean_prob", "verdict", "finish"]
    assert row.split() == [str(recording), "complete", "2", "0.082", "abort@2", "stop"]


def test_table_names_records_by_id(tmp_path: Path) -> None:
    """JSON Lines: path and id; a name that looks like markup is a name."""
    path = tmp_path / "[red]a.jsonl"
    path.write_text('{"id": "[b]x", "tokens": [["a", null]]}\n')
    done = runner.invoke(app, [str(path), *RULE])
    assert done.stdout.splitlines()[1].split() == [
        str(path), "[b]x", "complete", "1", "-", "no_signal", "-",
    ]  # fmt: skip


def test_unreadable_is_named_and_the_rest_is_read(recording: Path, tmp_path: Path) -> None:
    """Exit 2, the name on standard error, and the lines of everything else."""
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"id": "x", "tokens": []}\nnonsense\n')
    empty = tmp_path / "empty"
    empty.mkdir()
    names = [str(tmp_path / "none.http"), str(empty), str(lines), str(recording)]
    done = runner.invoke(app, [*names, "--json"])
    assert done.exit_code == 2
    assert [json.loads(line)["path"] for line in done.stdout.splitlines()] == names[2:]
    for name in (*names[:2], f"{lines}:2"):
        assert f"streamguard replay: {name}: " in done.stderr
    assert "nonsense" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "Missing argument"),
        (["a", "--dialect", "chta"], "chat"),
        (["a", "--mode", "off"], "observe"),
        (["a", "--requested-top-logprobs", "-1"], "--requested-top-logprobs"),
        (["a", "--signal", "mean_prob"], "--below"),
        (["a", "--mode", "enforce"], "rule"),
    ],
)
def test_wrong_flags_exit_2(arguments: list[str], problem: str) -> None:
    """What is wrong, and what would be right."""
    done = runner.invoke(app, arguments, env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert done.exit_code == 2
    assert problem in done.stderr


def test_requested_and_dialect_reach_the_report(recording: Path) -> None:
    """The two facts about the request that a recording can't tell."""
    zeros = recording.with_name("zeros.sse")
    zeros.write_bytes(LOW.replace(b"-2.0", b"0").replace(b"-3.0", b"-1"))
    zeros.write_bytes(zeros.read_bytes().replace(b'"top_logprobs":[{"token":"a"', b'"x":[{"a":"a"'))
    arguments = [str(zeros), "--json", "--dialect", "completions", "--requested-top-logprobs"]
    found = [json.loads(runner.invoke(app, [*arguments, k]).stdout) for k in ("0", "1")]
    assert [line["dialect"] for line in found] == ["completions"] * 2
    assert [line["choices"][0]["scorable"] for line in found] == [2, 1]


def test_base_install_is_enough(recording: Path) -> None:
    """A replay imports no HTTP server, no numpy, nothing but the base dependencies it uses."""
    code = (
        "import sys\nfrom streamguard.cli.app import app\n"
        f"app(['replay', {str(recording)!r}, '--json'], standalone_mode=False)\n"
        "heavy = {'aiohttp', 'numpy', 'uvloop', 'httptools', 'prometheus_client'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["outcome"] == "complete"
