"""`python -m benchmarks.relay`: measure, print the tables, write them into their page."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from benchmarks.relay import machine, report
from benchmarks.relay.figures import Figures
from benchmarks.relay.load import LoadError
from benchmarks.relay.run import run
from benchmarks.relay.scenarios import FULL, QUICK
from benchmarks.relay.subjects import NAMES, ROOT, Name, nginx_path
from rich.console import Console
from rich.progress import Progress

PAGE = ROOT / "docs" / "benchmarks.md"


def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="Two short rounds; the page is left alone.")
    ] = False,
    only: Annotated[
        str, typer.Option("--only", help="Subjects, by commas; the page is left alone.")
    ] = "",
    json: Annotated[
        Path | None, typer.Option("--json", help="Every sample and every figure, to this file.")
    ] = None,
) -> None:
    """Measure what relays cost, side by side."""
    errors = Console(stderr=True)
    names: list[Name] = [name for name in NAMES if not only or name in only.split(",")]
    unknown = set(filter(None, only.split(","))) - set(NAMES)
    if unknown:
        raise typer.BadParameter(f"--only knows {', '.join(NAMES)}")
    if "nginx" in names and nginx_path() is None:
        errors.print("nginx is not installed: its rows will be missing (Debian: nginx-light).")
    scale = QUICK if quick else FULL
    with Progress(console=errors, disable=not errors.is_terminal, transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def tell(done: int, steps: int, what: str) -> None:
            progress.update(task, completed=done, total=steps, description=what)

        try:
            samples = run(scale, names=names, tell=tell)
        except LoadError as error:
            errors.print(f"benchmarks: {error}", markup=False)
            raise typer.Exit(1) from None
    figures = Figures(samples)
    known = machine.describe()
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    command = "make bench" if not quick else "make bench BENCH=--quick"
    preface = report.preface(known, figures, date=date, command=command, rounds=scale.rounds)
    text = f"{preface}\n\n{report.tables(figures, scale)}"
    typer.echo(text)
    if json is not None:
        content = {
            "date": date,
            "machine": known,
            "scale": msgspec.to_builtins(scale),
            "figures": figures.as_dict(),
            "samples": samples,
        }
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
    if not quick and not only:
        report.write(PAGE, text)
        errors.print(f"written to {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    typer.run(main)
