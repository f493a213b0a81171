"""The proxy as a process: its sockets, its parts, its start and its end.

One listener for everybody, one strict parser for what clients send (aiohttp's, the C one), one
upstream. The admin port, if any, is another listener that shares no path with the proxy.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Iterable
from importlib.metadata import version
from typing import Final

from aiohttp import http_parser

from streamguard.config.settings import Settings
from streamguard.core.specs import Policy
from streamguard.errors import ConfigError
from streamguard.proxy.handler import Handler
from streamguard.proxy.pool import Pool, client_tls
from streamguard.proxy.target import Upstream
from streamguard.serving.admin import ADMIN_HOST, Admin
from streamguard.serving.admission import Admission
from streamguard.serving.drain import Drain
from streamguard.serving.listener import Listener
from streamguard.telemetry.logs import (
    FILES_LIMITED,
    SERVER_DRAINING,
    SERVER_STARTED,
    SERVER_STOPPED,
    Log,
    Writer,
)
from streamguard.telemetry.metrics import Metrics

BACKLOG: Final = 1024
STREAMS_WANTED: Final = 512
FILES_PER_STREAM: Final = 3


def check_parser() -> None:
    """Refuse the pure-Python HTTP parser: nearly every published smuggling hole is in it.

    Raises:
        ConfigError: the C extension is missing or switched off.
    """
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
        raise ConfigError(
            "AIOHTTP_NO_EXTENSIONS",
            "aiohttp would use its pure-Python HTTP parser",
            "unset it, and install aiohttp with its C extension",
        )


def occupy_standard_files() -> None:
    """Open what of standard input, output and error is closed, as nothing.

    Else the first socket would get the free number, and log lines would be written into it.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


async def serve(settings: Settings, policy: Policy, *, log: Log, writer: Writer) -> None:
    """Serve until a signal says otherwise and the last stream has ended.

    Args:
        settings: of the process.
        policy: what to judge.
        log: where lines go.
        writer: the end of the log, for the count of lines it lost.

    Raises:
        ConfigError: a socket cannot be bound, or the upstream is ourselves.
    """
    loop = asyncio.get_running_loop()
    upstream = Upstream.parse(settings.upstream)
    pool = Pool(upstream.host, upstream.port, tls=client_tls() if upstream.tls else None)
    metrics = Metrics(log_dropped=lambda: writer.dropped)
    servers: list[asyncio.Server] = []

    def on_drain(open_requests: int) -> None:
        servers[0].close()
        listener.pre_shutdown()
        log.info(SERVER_DRAINING, open=open_requests, drain_s=settings.drain_s)

    drain = Drain(drain_s=settings.drain_s, on_drain=on_drain)
    handler = Handler(
        settings,
        policy,
        upstream=upstream,
        pool=pool,
        admission=Admission(
            limit=settings.streams_max,
            queue_max=settings.queue_max,
            wait_s=settings.queue_wait_s,
        ),
        drain=drain,
        log=log,
        metrics=metrics,
    )
    loop.set_exception_handler(lambda _, context: handler.failed(context.get("exception")))

    def listen(answer: Handler | Admin) -> Listener:
        return Listener(
            answer,
            events=handler,
            head_s=settings.head_s,
            write_s=settings.write_s,
            keepalive_s=settings.keepalive_s,
        )

    listener = listen(handler)
    listeners = [listener]
    try:
        servers.append(await _bind(loop, listener, settings.host, settings.port, "port"))
        if settings.admin_port is not None:
            admin = listen(Admin(ready=lambda: drain.ready, metrics=metrics.page))
            listeners.append(admin)
            servers.append(await _bind(loop, admin, ADMIN_HOST, settings.admin_port, "admin_port"))
        await _refuse_self(loop, upstream, servers, settings.connect_s)
        for server in servers:
            await server.start_serving()
        drain.listen(loop)
        drain.serving()
        log.info(
            SERVER_STARTED,
            version=version("streamguard-proxy"),
            host=settings.host,
            port=_port(servers[0]),
            admin_port=_port(servers[1]) if settings.admin_port is not None else None,
            policy=policy.name,
            mode=policy.mode,
            streams_max=settings.streams_max,
            loop=type(loop).__module__.partition(".")[0],
        )
        _warn_of_few_files(settings, log)
        await drain.finished()
    finally:
        drain.deaf(loop)
        for server in servers:
            server.close()
        for each in listeners:
            await each.stop()
        pool.close()
    log.info(SERVER_STOPPED, requests=handler.requests, log_dropped=writer.dropped)


def _warn_of_few_files(settings: Settings, log: Log) -> None:
    """A stream takes two files. Say at the start what would otherwise show under load."""
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max != resource.RLIM_INFINITY and files_max < FILES_PER_STREAM * STREAMS_WANTED:
        log.warning(FILES_LIMITED, files_max=files_max, streams_max=settings.streams_max)


async def _bind(
    loop: asyncio.AbstractEventLoop, listener: Listener, host: str, port: int, field: str
) -> asyncio.Server:
    try:
        return await loop.create_server(
            listener, host, port, backlog=BACKLOG, reuse_address=True, start_serving=False
        )
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        raise ConfigError(
            field, f"{host}:{port} cannot be bound ({reason})", "give another one"
        ) from error


def _port(server: asyncio.Server) -> int:
    port = server.sockets[0].getsockname()[1]
    assert isinstance(port, int)
    return port


async def _refuse_self(
    loop: asyncio.AbstractEventLoop,
    upstream: Upstream,
    servers: Iterable[asyncio.Server],
    timeout_s: float,
) -> None:
    """The upstream must be neither this proxy (a loop) nor its admin port (a way in).

    The settings compare the spelling; this compares what the name stands for. A name that cannot
    be looked up now is no reason not to start.
    """
    bound = [sock.getsockname()[:2] for server in servers for sock in server.sockets]
    if upstream.port not in (port for _, port in bound):
        return
    try:
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(upstream.host, upstream.port, type=socket.SOCK_STREAM)
    except OSError:
        return
    addresses = {str(entry[4][0]) for entry in found}
    for host, port in bound:
        here = _is_any(host) and any(_is_of_this_machine(address) for address in addresses)
        if port == upstream.port and (host in addresses or here):
            raise ConfigError(
                "upstream",
                "is an address this process itself listens on",
                "give the model server's URL, or another port",
            )


def _is_any(host: str) -> bool:
    return host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


def _is_of_this_machine(address: str) -> bool:
    """Whether an address could be bound here: the kernel knows all names of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
