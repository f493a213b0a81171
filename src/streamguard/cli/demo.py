"""`streamguard demo`: see it work, without a key and without a network."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.live import Live

from streamguard.demo import show
from streamguard.demo.cases import CAVEAT, plan
from streamguard.demo.check import failures
from streamguard.demo.child import COMMAND, ChildError
from streamguard.demo.run import Demo
from streamguard.errors import InputError
from streamguard.sim.recordings import load_recordings

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

FAILED = 1
_FRAMES_PER_S = 8
_STOPPED = 128 + signal.SIGTERM


@app.command()
def demo(
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Write a still of the table to this file.")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=45, help="How long the longest answer takes.")
    ] = 20.0,
    recordings: Annotated[
        Path | None,
        typer.Option(
            "--recordings", help="Folder of recordings [those in the package].", hidden=True
        ),
    ] = None,
) -> None:
    """Recorded answers of a real model, streamed side by side through the real proxy.

    Exits with 0 if the provider saw every cut and every uncut stream arrived byte for byte, and
    with 1, saying what failed, if not.
    """
    raise typer.Exit(run(as_json=as_json, svg=svg, seconds=seconds, recordings=recordings))


def run(
    *,
    as_json: bool,
    svg: Path | None,
    seconds: float,
    recordings: Path | None,
    command: Sequence[str] = COMMAND,
) -> int:
    """Run the demo and show it.

    Args:
        as_json, svg, seconds, recordings: as the options.
        command: the proxy's command line up to `serve`.

    Returns:
        The exit code.
    """
    try:
        found = load_recordings(recordings)
    except InputError as error:
        return _complain(str(error))
    if not found:
        return _complain("there are no recordings")
    longest_s = max(recording.duration_ms for recording in found.values()) / 1000
    speed = max(1.0, longest_s / seconds)
    staged = Demo(plan(found.values()), speed=speed, recordings=recordings, command=command)
    screen = Console(width=None if sys.stdout.isatty() else show.WIDTH)
    live = Live(
        get_renderable=lambda: show.table(staged.streams, screen.width),
        console=screen,
        refresh_per_second=_FRAMES_PER_S,
        transient=True,  # the whole table follows, however short the screen is
    )
    try:
        if screen.is_terminal and not as_json:
            with live:
                asyncio.run(_stoppable(staged))
        else:
            asyncio.run(_stoppable(staged))
    except ChildError as error:
        return _complain(str(error))
    except asyncio.CancelledError:
        return _STOPPED
    problems = failures(staged.streams)
    end = show.summary(staged.streams, problems, speed)
    if svg is not None:
        show.write_svg(svg, show.table(staged.streams), end)
    if as_json:
        print(msgspec.json.encode(show.as_json(staged.streams)).decode())
        print(f"streamguard demo: the policy was {CAVEAT}", file=sys.stderr)
        for problem in problems:
            _complain(problem)
    else:
        screen.print(show.table(staged.streams, screen.width), end)
    return FAILED if problems else 0


def _complain(problem: str) -> int:
    print(f"streamguard demo: {problem}", file=sys.stderr)
    return FAILED


async def _stoppable(staged: Demo) -> None:
    """SIGTERM ends it as SIGINT does: not without stopping provider and proxy."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await staged.run()
