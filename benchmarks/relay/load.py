"""A small event loop for the load: epoll on raw sockets, and timers finer than a millisecond.

asyncio and uvloop round timers to whole milliseconds, which would bundle the events of different
streams into bursts. Nothing here allocates per event what it can keep.
"""

from __future__ import annotations

import heapq
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

READ_BYTES: Final = 256 * 1024
_READ: Final = select.EPOLLIN | select.EPOLLRDHUP

now = time.monotonic


class LoadError(Exception):
    """The subject did something that makes the figures meaningless."""


class Loop:
    """Sockets, timers, and work for every turn."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._soon: deque[Callable[[], None]] = deque()
        self._order = 0

    def close(self) -> None:
        """Give the epoll descriptor back."""
        self._epoll.close()

    def watch(self, sock: socket.socket, handler: Callable[[int], None]) -> None:
        """Call the handler whenever the socket can be read or has been closed."""
        self._handlers[sock.fileno()] = handler
        self._epoll.register(sock.fileno(), _READ)

    def want_write(self, sock: socket.socket, *, wanted: bool) -> None:
        """Call it also when the socket can be written, or no longer."""
        self._epoll.modify(sock.fileno(), _READ | (select.EPOLLOUT if wanted else 0))

    def forget(self, sock: socket.socket) -> None:
        """Before it is closed."""
        self._epoll.unregister(sock.fileno())
        del self._handlers[sock.fileno()]

    def at(self, when: float, work: Callable[[], None]) -> None:
        """Do it at this time."""
        self._order += 1
        heapq.heappush(self._timers, (when, self._order, work))

    def soon(self, work: Callable[[], None]) -> None:
        """Do it in the next turn."""
        self._soon.append(work)

    def run_for(self, seconds: float) -> None:
        """Turn for so long."""
        end = now() + seconds
        while now() < end:
            self._turn(end)

    def run_until(self, done: Callable[[], bool], what: str, *, within_s: float = 20.0) -> None:
        """Turn until this is so.

        Raises:
            LoadError: it is not, after `within_s`.
        """
        end = now() + within_s
        while not done():
            if now() >= end:
                raise LoadError(f"waited {within_s:g} s in vain: {what}")
            self._turn(end)

    def _turn(self, end: float) -> None:
        ready = self._epoll.poll(0)
        if not ready and not self._soon:
            due = min(end, self._timers[0][0]) if self._timers else end
            pause = due - now()
            if pause > 0:
                # epoll counts milliseconds, select microseconds; and epoll's own descriptor
                # can be waited for.
                select.select((self._epoll.fileno(),), (), (), pause)
                ready = self._epoll.poll(0)
        handlers = self._handlers
        for fd, mask in ready:
            handler = handlers.get(fd)
            if handler is not None:
                handler(mask)
        timers = self._timers
        while timers and timers[0][0] <= now():
            heapq.heappop(timers)[2]()
        for _ in range(len(self._soon)):
            self._soon.popleft()()


@contextmanager
def running() -> Iterator[Loop]:
    """A loop that is closed afterwards."""
    loop = Loop()
    try:
        yield loop
    finally:
        loop.close()
