"""`streamguard simulate`: a provider without a model, to try and to test against."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from streamguard.errors import ConfigError, InputError
from streamguard.sim.provider import Provider
from streamguard.sim.recordings import load_recordings
from streamguard.sim.script import Script, load_script

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

FAILED = 1


@app.command()
def simulate(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes any.")
    ] = 8788,
    script: Annotated[
        Path | None, typer.Option("--script", help="Models of your own, and faults (TOML).")
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option("--speed", min=0.000001, help="How much faster recordings play [1]."),
    ] = None,
    recordings: Annotated[
        Path | None,
        typer.Option("--recordings", help="Folder of recordings [those in the package]."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", help="Speak TLS: certificate chain (PEM).")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", help="Its private key (PEM).")
    ] = None,
) -> None:
    """Answer like a model provider: recorded, made-up and broken streams, chosen by model name.

    Prints one line when it listens, with the port. Ends on SIGTERM or SIGINT.
    """
    try:
        if recordings is not None and not recordings.is_dir():
            raise ConfigError("--recordings", "is no folder", "name one that holds .jsonl files")
        found = load_recordings(recordings)
        read = load_script(script, found) if script is not None else Script()
        context = _tls(tls_cert, tls_key)
    except (ConfigError, InputError) as error:
        raise typer.BadParameter(str(error)) from error
    if speed is not None:
        read = msgspec.structs.replace(read, speed=speed)
    provider = Provider(found, read, host=host, port=port, tls=context)
    try:
        asyncio.run(_serve(provider, host))
    except OSError as error:
        typer.echo(f"streamguard simulate: {error.strerror}", err=True)
        raise typer.Exit(FAILED) from None


async def _serve(provider: Provider, host: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with provider:
        started = {"event": "simulate_started", "host": host, "port": provider.port}
        print(json.dumps(started), flush=True)
        await stop.wait()


def _tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if cert is None:
        if key is not None:
            raise ConfigError("--tls-key", "has no certificate", "add --tls-cert")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:  # an SSLError too
        raise ConfigError("--tls-cert", f"can't be used: {error}", "give PEM files") from error
    return context
