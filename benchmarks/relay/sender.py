"""The upstream: sends the events of a plan, one write each, and notes when a close arrives."""

from __future__ import annotations

import re
import select
import socket
from typing import Final

from benchmarks.relay.load import READ_BYTES, LoadError, Loop, now
from benchmarks.relay.wire import HEAD, PLAN_HEADER, Plan

_PLAN: Final = re.compile(rb"\r\n" + PLAN_HEADER + rb": (\d+)\r\n", re.IGNORECASE)
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


class Sender:
    """A listening socket and its connections.

    Attributes:
        plans: by the number that stands in the request.
        open: connections that are open.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.plans: dict[int, Plan] = {}
        self.open: set[_Peer] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)
        loop.watch(self._listener, self._accept)

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def close(self) -> None:
        """Close everything."""
        for peer in tuple(self.open):
            peer.close()
        self.loop.forget(self._listener)
        self._listener.close()

    def _accept(self, mask: int) -> None:
        sock, _ = self._listener.accept()
        self.open.add(_Peer(self, sock))


class _Peer:
    """One connection from a relay, or from a client without one."""

    def __init__(self, sender: Sender, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sender = sender
        self._sock = sock
        self._heard = b""
        self._unsent = b""
        self._held = False  # an event is due, and waits for what is unsent
        self._plan: Plan | None = None
        self._begun = 0.0
        sender.loop.watch(sock, self._ready)

    def close(self) -> None:
        """Close it, and note that in the plan."""
        if self not in self._sender.open:
            return
        self._sender.open.discard(self)
        if self._plan is not None:
            self._plan.closed_at = now()
            self._plan = None
        self._sender.loop.forget(self._sock)
        self._sock.close()

    def _ready(self, mask: int) -> None:
        if mask & ~select.EPOLLOUT:
            try:
                data = self._sock.recv(READ_BYTES)
            except ConnectionError:
                data = b""
            if not data:
                self.close()
                return
            self._heard += data
            self._read_request()
        if mask & select.EPOLLOUT and self._unsent:
            self._flush()

    def _read_request(self) -> None:
        head_end = self._heard.find(b"\r\n\r\n") + 4
        if head_end < 4:
            return
        head = self._heard[: head_end - 2]
        length, number = _LENGTH.search(head), _PLAN.search(head)
        if length is None or number is None:
            raise LoadError("a request arrived without its length or its plan")
        if len(self._heard) < head_end + int(length[1]):
            return
        self._heard = b""
        if self._plan is not None:
            raise LoadError("a request arrived before the last one was answered")
        self._plan = self._sender.plans.get(int(number[1]))
        if self._plan is None:
            self.close()  # that client left before its request came through
            return
        self._begun = now()
        self._write(HEAD)
        self._send_next()

    def _send_next(self) -> None:
        plan = self._plan
        if plan is None:
            return  # closed meanwhile
        if self._unsent:
            self._held = True
            return
        number = len(plan.sent_at)
        plan.sent_at.append(now())
        last = number + 1 == plan.course.length
        if last:
            self._plan = None
        self._write(plan.course.chunk(number))
        if last:
            return
        if plan.pace_s:
            # In its own beat, and no faster after a delay: models don't catch up.
            beats = int((plan.sent_at[-1] - self._begun) / plan.pace_s) + 1
            self._sender.loop.at(self._begun + beats * plan.pace_s, self._send_next)
        else:
            self._sender.loop.soon(self._send_next)

    def _write(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except ConnectionError:
            self.close()
            return
        if sent < len(data):
            self._unsent = data[sent:]
            self._sender.loop.want_write(self._sock, wanted=True)

    def _flush(self) -> None:
        data, self._unsent = self._unsent, b""
        self._sender.loop.want_write(self._sock, wanted=False)
        self._write(data)
        if self._held and not self._unsent:
            self._held = False
            self._send_next()
