"""The policy flags: what they build, alone and over a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from streamguard.cli import policy_flags as flags
from streamguard.core.specs import AnyOf, FailPolicy, Policy, Rule

ONE: dict[str, Any] = {"signal": "mean_prob", "below": 0.5, "first": 8}


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    path = tmp_path / "p.toml"
    path.write_text(
        """
        name = "answers"
        on_abort = "error"
        refused = "pass"
        rules = [
            {signal = "mean_prob", below = 0.4, first = 4},
            {signal = "min_prob", below = 0.1, first = 4},
        ]
        """
    )
    return path


def refused(**given: Any) -> str:
    with pytest.raises(typer.BadParameter) as caught:
        flags.build_policy(**given)
    return str(caught.value)


def test_without_any_policy_nothing_is_decided() -> None:
    """No file and no rule: observe."""
    assert flags.build_policy() == Policy(mode="observe")


def test_one_rule_is_enforced() -> None:
    """A policy that is given is enforced."""
    assert flags.build_policy(**ONE) == Policy(mode="enforce", rule=Rule("mean_prob", 0.5, 8))


def test_every_rule_flag() -> None:
    """All parts of a rule that have a flag."""
    policy = flags.build_policy(
        **ONE, start=2, patience=3, tolerance=0.0, skip_blank=True, skip_special=True
    )

    assert policy.rule == Rule(
        "mean_prob", 0.5, 8, start=2, patience=3, tolerance=0.0, skip=("blank", "special")
    )


def test_mode_flag_beats_all(policy_file: Path) -> None:
    """Whatever is given, `mode` says how it is used."""
    assert flags.build_policy(**ONE, mode="observe").mode == "observe"
    assert flags.build_policy(policy=policy_file, mode="off").mode == "off"


def test_a_file_is_taken_as_it_is(policy_file: Path) -> None:
    """Without flags the file is the policy."""
    policy = flags.build_policy(policy=policy_file)

    assert (policy.name, policy.mode, policy.on_abort) == ("answers", "enforce", "error")
    assert policy.rule == AnyOf((Rule("mean_prob", 0.4, 4), Rule("min_prob", 0.1, 4)))


def test_flags_beat_the_files_fields(policy_file: Path) -> None:
    """Field by field; the rule of the flags replaces the file's rules as a whole."""
    policy = flags.build_policy(policy=policy_file, on_abort="finish", fail="closed", **ONE)

    assert policy == Policy(
        name="answers",
        on_abort="finish",
        refused="pass",
        fail=FailPolicy.all("closed"),
        rule=Rule("mean_prob", 0.5, 8),
    )


def test_the_files_mode_stays_with_a_rule_from_flags(policy_file: Path) -> None:
    """A file that observes goes on observing, with another rule."""
    policy_file.write_text('mode = "observe"')

    policy = flags.build_policy(policy=policy_file, **ONE)

    assert (policy.mode, policy.rule) == ("observe", Rule("mean_prob", 0.5, 8))


@pytest.mark.parametrize("missing", sorted(ONE))
def test_half_a_rule_is_refused(missing: str) -> None:
    """The complaint names the flag that is missing."""
    given = {name: value for name, value in ONE.items() if name != missing}

    assert refused(**given).startswith(f"--{missing}: is missing beside --")


@pytest.mark.parametrize(
    "extra", [{"skip_blank": True}, {"patience": 2}, {"start": 1}, {"tolerance": 0.0}]
)
def test_parts_of_a_rule_alone_are_refused(extra: dict[str, Any], policy_file: Path) -> None:
    """Also beside a file: they would belong to no rule."""
    assert refused(**extra).startswith("--signal: is missing beside --")
    assert refused(policy=policy_file, **extra).startswith("--signal: is missing beside --")


@pytest.mark.parametrize(
    ("given", "start", "mend"),
    [
        ({"signal": "mean_pob"}, "--signal: ", "did you mean 'mean_prob'?"),
        ({"below": 50.0}, "--below: ", "between 0 and 1"),
        ({"first": 0}, "--first: ", "from 1"),
        ({"start": 9}, "--from: ", "from 1 to 8"),
        ({"mode": "enforced"}, "--mode: ", "did you mean 'enforce'?"),
        ({"on_abort": "drop"}, "--on-abort: ", "finish, error"),
        ({"refused": "deny"}, "--refused: ", "retry, pass, reject"),
        ({"fail": "shut"}, "--fail: ", "open, closed"),
    ],
)
def test_complaints_name_the_flag(given: dict[str, Any], start: str, mend: str) -> None:
    """As it is typed, with what to write instead."""
    message = refused(**(ONE | given))

    assert message.startswith(start)
    assert mend in message


def test_enforcing_nothing_is_refused(tmp_path: Path) -> None:
    """Nobody should believe to be guarded by a policy without a rule."""
    empty = tmp_path / "empty.toml"
    empty.write_text('name = "x"')

    assert refused(mode="enforce").startswith("--mode: there is no rule")
    assert refused(policy=empty).startswith(f"{empty}: there is no rule")
    assert flags.build_policy(policy=empty, mode="observe").rule is None


def test_a_file_with_a_mistake_is_named(policy_file: Path) -> None:
    """File and key path."""
    policy_file.write_text("rules = [{signal = 'mean_prob'}]")

    assert refused(policy=policy_file).startswith(f"{policy_file}: rules[0].below: ")


# --------------------------------------------------------------------------- through typer

app = typer.Typer(add_completion=False)
built: list[Policy] = []


@app.command()
def run(
    policy: flags.PolicyFlag = None,
    signal: flags.SignalFlag = None,
    below: flags.BelowFlag = None,
    start: flags.FromFlag = None,
    first: flags.FirstFlag = None,
    skip_blank: flags.SkipBlankFlag = False,
    skip_special: flags.SkipSpecialFlag = False,
    patience: flags.PatienceFlag = None,
    tolerance: flags.ToleranceFlag = None,
    mode: flags.ModeFlag = None,
    on_abort: flags.OnAbortFlag = None,
    refused: flags.RefusedFlag = None,
    fail: flags.FailFlag = None,
) -> None:
    built.append(flags.build_policy(**locals()))


def test_the_command_line() -> None:
    """Every flag under its name."""
    line = (
        "--signal min_prob --below 0.2 --from 3 --first 9 --skip-blank --skip-special --patience 2"
        " --tolerance 0.01 --mode observe --on-abort error --refused reject --fail closed"
    )
    built.clear()

    result = CliRunner().invoke(app, line.split())

    assert result.exit_code == 0, result.output
    assert built == [
        Policy(
            mode="observe",
            on_abort="error",
            refused="reject",
            fail=FailPolicy.all("closed"),
            rule=Rule(
                "min_prob",
                0.2,
                9,
                start=3,
                patience=2,
                tolerance=0.01,
                skip=("blank", "special"),
            ),
        )
    ]


@pytest.mark.parametrize("line", ["--below 0.5", "--signal luck --below 0.5 --first 3", "--mode x"])
def test_a_mistake_ends_with_exit_code_two(line: str) -> None:
    """A usage error, as for any flag that can't be read."""
    assert CliRunner().invoke(app, line.split()).exit_code == 2
