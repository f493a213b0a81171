"""How much is taken on at once: so many requests, a short queue behind them, and a clear no.

A full server that says so within half a second is worth more than one that makes everybody wait.
Invariant: `taken` never exceeds the limit, and every `enter` that returned True is matched by one
`leave`.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Admission:
    """Counts requests in and out.

    Args:
        limit: requests at once.
        queue_max: how many may wait for a place.
        wait_s: how long each of them does.
    """

    def __init__(self, *, limit: int, queue_max: int, wait_s: float) -> None:
        self._limit = limit
        self._queue_max = queue_max
        self._wait_s = wait_s
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.taken = 0

    async def enter(self) -> bool:
        """Take a place, waiting a little for one. False: there is none; do not call `leave`."""
        if self.taken < self._limit and not self._waiting:
            self.taken += 1
            return True
        if len(self._waiting) >= self._queue_max:
            return False
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(self._wait_s):
                await place
        except TimeoutError:
            if not place.done() or place.cancelled():
                self._waiting = deque(other for other in self._waiting if other is not place)
                return False
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave()  # the place was given in the moment in which its owner left
            else:
                self._waiting = deque(other for other in self._waiting if other is not place)
            raise
        return True

    def leave(self) -> None:
        """Give the place back; the longest waiting gets it."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)  # the place changes hands: `taken` stays
                return
        self.taken -= 1
