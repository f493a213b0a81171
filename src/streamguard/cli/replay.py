"""`streamguard replay`: recordings in, one line a stream out."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, cast

import msgspec
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from streamguard.cli.policy_flags import (
    BelowFlag,
    FailFlag,
    FirstFlag,
    FromFlag,
    OnAbortFlag,
    PatienceFlag,
    PolicyFlag,
    RefusedFlag,
    SignalFlag,
    SkipBlankFlag,
    SkipSpecialFlag,
    ToleranceFlag,
    build_policy,
)
from streamguard.core import checks
from streamguard.core.events import ChoiceReport, DialectName, StreamReport
from streamguard.errors import ConfigError, InputError
from streamguard.lab.replay import find_recordings, replay

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_DIALECTS: Final = ("auto", "chat", "completions")
_MODES: Final = ("observe", "enforce")
_UNREADABLE: Final = 2
_PIPE_WIDTH: Final = 240
CELL_MAX: Final = 120
"""Characters of one cell of the table; `--json` has it whole."""


@app.command("replay")
def replay_command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            help="Recordings (.http, .sse, .json, .jsonl), or directories of them.",
        ),
    ],
    dialect: Annotated[str, typer.Option("--dialect", help="auto, chat or completions.")] = "auto",
    requested: Annotated[
        int | None,
        typer.Option(
            "--requested-top-logprobs",
            min=0,
            help="Alternatives per token that the requests asked for.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, every field of the report.")
    ] = False,
    mode: Annotated[
        str, typer.Option("--mode", help="observe, or enforce: cut as a live stream is cut.")
    ] = "observe",
    policy: PolicyFlag = None,
    signal: SignalFlag = None,
    below: BelowFlag = None,
    start: FromFlag = None,
    first: FirstFlag = None,
    skip_blank: SkipBlankFlag = False,
    skip_special: SkipSpecialFlag = False,
    patience: PatienceFlag = None,
    tolerance: ToleranceFlag = None,
    on_abort: OnAbortFlag = None,
    refused: RefusedFlag = None,
    fail: FailFlag = None,
) -> None:
    """Score recorded streams, and say where a policy would have cut them.

    Exits with 0 whatever the verdicts, and with 2 if something could not be read.
    """
    try:
        checks.word("--dialect", dialect, _DIALECTS)
        checks.word("--mode", mode, _MODES)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    built = build_policy(
        policy=policy,
        signal=signal,
        below=below,
        start=start,
        first=first,
        skip_blank=skip_blank,
        skip_special=skip_special,
        patience=patience,
        tolerance=tolerance,
        mode=mode,
        on_abort=on_abort,
        refused=refused,
        fail=fail,
    )
    shape = None if dialect == "auto" else cast(DialectName, dialect)
    table = None if as_json else _table()
    unreadable = False
    for path in _progress(list(find_recordings(paths))):
        found = (
            [path]
            if isinstance(path, InputError)
            else replay(path, built, dialect=shape, requested=requested)
        )
        for result in found:
            if isinstance(result, InputError):
                typer.echo(f"streamguard replay: {result}", err=True)
                unreadable = True
            elif table is None:
                sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
            else:
                table.add_row(*map(Text, _row(result)))
    if table is not None:
        # Into a pipe or a file nothing is folded to fit a screen that is not there.
        Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(table)
    if unreadable:
        raise typer.Exit(_UNREADABLE)


def _progress(paths: list[Path | InputError]) -> Iterable[Path | InputError]:
    """The paths; on a terminal's standard error with a bar for more than one."""
    shown = len(paths) > 1 and sys.stderr.isatty()
    bar = Console(stderr=True)
    return track(paths, "replaying", console=bar, transient=True) if shown else paths


def _table() -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("recording", overflow="fold")
    for name in ("outcome", "entries", "mean_prob", "verdict", "finish"):
        table.add_column(name, justify="right" if name in ("entries", "mean_prob") else "left")
    return table


def _row(report: StreamReport) -> tuple[str, ...]:
    """One line a stream; what there is of each choice is joined by commas."""
    name = report.path or ""
    if report.path and report.path.lower().endswith(".jsonl"):
        name = f"{report.path} {report.id or ''}".rstrip()
    cells = (
        [str(choice.entries) for choice in report.choices],
        [_mean_prob(choice) for choice in report.choices],
        [_verdict(choice) for choice in report.choices],
        [choice.finish_reason or "-" for choice in report.choices],
    )
    return tuple(
        _plain(text) for text in (name, report.outcome, *(", ".join(cell) or "-" for cell in cells))
    )


def _plain(text: str) -> str:
    """Text that a terminal shows and does not obey: much of it was written by strangers."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= CELL_MAX else shown[: CELL_MAX - 1] + "…"


def _mean_prob(choice: ChoiceReport) -> str:
    """Over every scorable entry of the choice, whatever the rule looks at."""
    return "-" if choice.mean_logprob is None else f"{math.exp(choice.mean_logprob):.3f}"


def _verdict(choice: ChoiceReport) -> str:
    if choice.verdict is None:
        return choice.reason or "-"
    return f"{choice.verdict}@{choice.position}"
