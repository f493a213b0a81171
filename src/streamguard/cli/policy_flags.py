"""The policy flags that `serve` and `replay` share, and the policy they make.

The common case, one rule, fits into flags; everything else is a file (`config.policy`). A flag
beats the file's field, and the rule of the flags replaces the file's rules as a whole: half a rule
from each would be a rule that nobody wrote.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, get_args

import msgspec
import typer

from streamguard.config.policy import load_policy
from streamguard.core import checks
from streamguard.core.events import Fail, Mode, OnAbort, Refused
from streamguard.core.signals import SIGNALS
from streamguard.core.specs import FailPolicy, Policy, Rule
from streamguard.errors import ConfigError

_PANEL: Final = "Policy"
_WORDS: Final = {
    "mode": get_args(Mode),
    "on_abort": get_args(OnAbort),
    "refused": get_args(Refused),
    "fail": get_args(Fail),
}

PolicyFlag = Annotated[
    Path | None,
    typer.Option("--policy", help="Policy file (TOML).", rich_help_panel=_PANEL),
]
SignalFlag = Annotated[
    str | None,
    typer.Option("--signal", help="One of: " + ", ".join(SIGNALS) + ".", rich_help_panel=_PANEL),
]
BelowFlag = Annotated[
    float | None,
    typer.Option("--below", help="Abort when the signal is below this.", rich_help_panel=_PANEL),
]
FromFlag = Annotated[
    int | None,
    typer.Option("--from", help="First token to look at [--first].", rich_help_panel=_PANEL),
]
FirstFlag = Annotated[
    int | None,
    typer.Option("--first", help="Last token to look at.", rich_help_panel=_PANEL),
]
SkipBlankFlag = Annotated[
    bool,
    typer.Option("--skip-blank", help="Don't count blank tokens.", rich_help_panel=_PANEL),
]
SkipSpecialFlag = Annotated[
    bool,
    typer.Option("--skip-special", help="Don't count special tokens.", rich_help_panel=_PANEL),
]
PatienceFlag = Annotated[
    int | None,
    typer.Option("--patience", help="Low looks in a row that abort [1].", rich_help_panel=_PANEL),
]
ToleranceFlag = Annotated[
    float | None,
    typer.Option("--tolerance", help="Slack below the bound [0.001].", rich_help_panel=_PANEL),
]
ModeFlag = Annotated[
    str | None,
    typer.Option("--mode", help="enforce, observe or off.", rich_help_panel=_PANEL),
]
OnAbortFlag = Annotated[
    str | None,
    typer.Option("--on-abort", help="What a client sees: finish or error.", rich_help_panel=_PANEL),
]
RefusedFlag = Annotated[
    str | None,
    typer.Option(
        "--refused",
        help="When the upstream refuses logprobs: retry, pass or reject.",
        rich_help_panel=_PANEL,
    ),
]
FailFlag = Annotated[
    str | None,
    typer.Option("--fail", help="What can't be watched: open or closed.", rich_help_panel=_PANEL),
]


def build_policy(
    *,
    policy: Path | None = None,
    signal: str | None = None,
    below: float | None = None,
    start: int | None = None,
    first: int | None = None,
    skip_blank: bool = False,
    skip_special: bool = False,
    patience: int | None = None,
    tolerance: float | None = None,
    mode: str | None = None,
    on_abort: str | None = None,
    refused: str | None = None,
    fail: str | None = None,
) -> Policy:
    """The policy that the flags and the file say together.

    Without a file and without a rule nothing is decided: the mode is `observe`. A policy that is
    given is enforced, unless the file or `mode` says otherwise.

    Args:
        policy: the policy file.
        signal, below, start, first, patience, tolerance, skip_blank, skip_special: one rule.
        mode, on_abort, refused, fail: as in the file.

    Raises:
        typer.BadParameter: naming the flag, or the file and key, and what to write instead; the
            command line ends with exit code 2.
    """
    rule_flags: dict[str, Any] = {
        "signal": signal,
        "below": below,
        "start": start,
        "first": first,
        "patience": patience,
        "tolerance": tolerance,
        "skip": (*["blank"] * skip_blank, *["special"] * skip_special) or None,
    }
    given = {name: value for name, value in rule_flags.items() if value is not None}
    try:
        base = Policy(mode="observe") if policy is None else load_policy(policy)
        changes: dict[str, Any] = {}
        if given:
            changes["rule"] = _rule(given)
            if policy is None:
                changes["mode"] = "enforce"
        if fail is not None:
            closed = _word("fail", fail) == "closed"
            changes["fail"] = FailPolicy.all("closed" if closed else "open")
        for name, value in (("mode", mode), ("on_abort", on_abort), ("refused", refused)):
            if value is not None:
                changes[name] = _word(name, value)
        built = msgspec.structs.replace(base, **changes)
        if built.mode == "enforce" and built.rule is None:
            raise ConfigError(
                "--mode" if mode else str(policy),
                "there is no rule to enforce",
                "give --signal, --below and --first, or [[rules]] in the --policy file",
            )
        return built
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error


def _flag(field: str) -> str:
    return "--from" if field == "start" else "--" + field.replace("_", "-")


def _word(field: str, value: str) -> str:
    return checks.word(_flag(field), value, _WORDS[field])


def _rule(given: dict[str, Any]) -> Rule:
    for needed in ("signal", "below", "first"):
        if needed not in given:
            others = " and ".join(_flag(name) for name in given if name != "skip") or "--skip-*"
            raise ConfigError(
                _flag(needed), f"is missing beside {others}", "a rule is --signal, --below, --first"
            )
    try:
        return Rule(**given)
    except ConfigError as error:
        raise error.at(_flag(error.field)) from error
