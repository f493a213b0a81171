"""`streamguard serve`: flags and environment in, a running proxy out."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from streamguard.cli.policy_flags import (
    BelowFlag,
    FailFlag,
    FirstFlag,
    FromFlag,
    ModeFlag,
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
from streamguard.config.settings import load_settings
from streamguard.errors import ConfigError
from streamguard.proxy.app import check_parser, occupy_standard_files
from streamguard.proxy.app import serve as run
from streamguard.telemetry.logs import Log, Writer, place, type_name

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_STDOUT = 1


@app.command()
def serve(
    upstream: Annotated[
        str | None, typer.Option("--upstream", help="The URL an SDK would take.")
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on [127.0.0.1].")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port; 0 takes any [8787].")] = None,
    admin_port: Annotated[
        int | None, typer.Option("--admin-port", help="Port for /livez, /readyz and /metrics.")
    ] = None,
    allow_open: Annotated[
        bool, typer.Option("--allow-open", help="Listen beyond this machine, unauthenticated.")
    ] = False,
    log_level: Annotated[
        str | None, typer.Option("--log-level", help="debug, info (default), warning or error.")
    ] = None,
    policy: PolicyFlag = None,
    signal: SignalFlag = None,
    below: BelowFlag = None,
    start: FromFlag = None,
    first: FirstFlag = None,
    skip_blank: SkipBlankFlag = False,
    skip_special: SkipSpecialFlag = False,
    patience: PatienceFlag = None,
    tolerance: ToleranceFlag = None,
    mode: ModeFlag = None,
    on_abort: OnAbortFlag = None,
    refused: RefusedFlag = None,
    fail: FailFlag = None,
) -> None:
    """Watch the streams that pass through, and stop those that are not worth their tokens."""
    occupy_standard_files()
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
    try:
        check_parser()
        settings = load_settings(
            upstream=upstream,
            host=host,
            port=port,
            admin_port=admin_port,
            allow_open=allow_open or None,
            log_level=log_level,
        )
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    writer = Writer(_STDOUT)
    log = Log(writer.write, level=settings.log_level)
    log.take_over_libraries()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(run(settings, built, log=log, writer=writer))
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    except Exception as error:
        # Its text may quote anything; its place is enough to find it.
        log.error(error)
        print(f"streamguard: {type_name(error)} at {place(error)}", file=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        writer.close()


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed, asyncio's own loop elsewhere; both behave alike here."""
    try:
        from uvloop import Loop
    except ImportError:
        return None
    return Loop
