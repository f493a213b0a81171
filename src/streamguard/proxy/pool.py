"""Connections to the one upstream: opening them, and keeping a few that are idle.

A connection is kept only after a clean end with nothing left over, and not for long. One that
turns out to be closed before a byte of the next request was written is replaced; nothing else is
ever tried twice.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

from aiohappyeyeballs import start_connection

from streamguard.proxy.upstream import Connection

HAPPY_EYEBALLS_DELAY_S: Final = 0.25
IDLE_MAX: Final = 64
# Shorter than the shortest keep-alive in common use (uvicorn: 5 s), so that we are the side that
# closes: a request written into a connection that the other side is closing is lost, and nothing
# is sent twice.
IDLE_S: Final = 4.0

_KEEPALIVE_IDLE_S: Final = 60
_KEEPALIVE_INTERVAL_S: Final = 15
_KEEPALIVE_PROBES: Final = 4


class Pool:
    """Opens connections to one upstream and keeps a few idle ones."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._idle: list[Connection] = []

    @property
    def idle(self) -> int:
        """How many connections wait."""
        return len(self._idle)

    async def open(self, *, fresh: bool = False) -> Connection:
        """A connection ready for an exchange; the caller owns it and sets the time limit.

        Args:
            fresh: never one that waited here. For a second attempt: the first one's connection may
                be on its way to being closed, and there is no third attempt.

        Raises:
            OSError: no connection came about (names, sockets and TLS alike).
        """
        while self._idle and not fresh:
            connection = self._idle.pop()
            connection.unpark()
            try:
                # Two turns of the loop: a close that has already arrived is seen before anything
                # is written, and the connection replaced.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                connection.abort()
                raise
            if connection.is_open:
                return connection
        return await self._connect()

    def keep(self, connection: Connection) -> None:
        """Take back a connection whose exchange ended cleanly."""
        if len(self._idle) >= IDLE_MAX or not connection.is_open:
            connection.abort()
            return
        self._idle.append(connection)
        connection.resume_reading()
        connection.park(IDLE_S)

    def forget(self, connection: Connection) -> None:
        """The connection is closed, or about to be."""
        connection.unpark()
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close what is idle."""
        for connection in tuple(self._idle):
            connection.abort()

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        # uvloop's create_connection knows no happy eyeballs; racing the addresses ourselves keeps
        # both loops alike.
        found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        if not found:
            raise OSError("no address")
        sock = await start_connection(
            found, happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY_S, interleave=1, loop=loop
        )
        try:
            _tune(sock)
            _, connection = await loop.create_connection(
                lambda: Connection(self),
                sock=sock,
                ssl=self._tls,
                server_hostname=self._host if self._tls is not None else None,
            )
        except BaseException:
            sock.close()
            raise
        return connection


def client_tls() -> ssl.SSLContext:
    """TLS as a client of a stranger: verified against the system's authorities, 1.2 or newer.

    `ssl.create_default_context` would also write session keys to the file that SSLKEYLOGFILE
    names, and with them every prompt; this does not.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
    ):
        option = getattr(socket, name, None)  # named differently, or absent, off Linux
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
