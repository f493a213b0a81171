"""The command line's root. One command per file, each imported only when it is called.

`streamguard --version` must not pay for an HTTP server, so nothing here imports one.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

_COMMANDS: Final = {
    "demo": "streamguard.cli.demo",
    "replay": "streamguard.cli.replay",
    "serve": "streamguard.cli.serve",
    "simulate": "streamguard.cli.simulate",
}


class _Lazy(TyperGroup):
    """A group that knows its commands by name and imports them by need."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        module = _COMMANDS.get(cmd_name)
        return None if module is None else typer.main.get_command(import_module(module).app)


app = typer.Typer(
    cls=_Lazy,
    name="streamguard",
    help="Stops LLM answers that are not worth their tokens, upstream, while they stream.",
    no_args_is_help=True,
    add_completion=False,
    # typer's pretty tracebacks show local variables: keys and prompts among them.
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"streamguard {version('streamguard-proxy')}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Stops LLM answers that are not worth their tokens, upstream, while they stream."""


def main() -> None:
    """The `streamguard` command."""
    app()
